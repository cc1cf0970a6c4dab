/**
 * A real build of the small recipe, with files, a user and a command added. It takes half a minute, so its layer is kept between runs under
 * the digest of all that it is made from: the recipe and the code.
 */
import { createHash } from 'node:crypto';
import { mkdir, mkdtemp, readdir, readFile, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { EnvironmentImage } from '@dsec/contract';
import { SeededRandom } from '@dsec/kit';
import { afterAll, beforeAll, describe, expect, it } from 'vitest';
import { type BuildContext, buildRecipe, listLayers, parseRecipe } from './index.ts';
import { checkLayer, clock, mounted, opened, PATH, tool } from './build.fixture.ts';

const root = join(import.meta.dirname, '../../..');
const cache = join(root, '.cache', 'environment-tests');
const recipePath = join(root, 'environments', 'debian.yaml');

const addition = `
files:
  - path: /opt/test/run me
    content: "#!/bin/sh\\necho it ran\\n"
    mode: "0755"
    owner: dev
  - path: /opt/test/it's "quoted" $HOME
    content: "as it is"
  - path: /var/run/through-an-absolute-link
    content: "inside"
users:
  - {name: dev, uid: 1234, gid: 4321, shell: /bin/sh, sudo: nopasswd}
commands:
  - echo "$GREETING" > /opt/test/greeting
  - test ! -e /opt/test/missing
  - |
    for i in 1 2 3; do echo "it's $i"; done > /opt/test/lines
`;

const digestOf = async (...directories: string[]): Promise<string> => {
  const hash = createHash('sha256')
    .update(addition)
    .update(await readFile(recipePath));
  for (const directory of directories) {
    const names = (await readdir(directory, { recursive: true })).filter(
      (name) => name.endsWith('.ts') && !/\.(test|fixture)\.ts$/.test(name),
    );
    for (const name of names.sort((a, b) => a.localeCompare(b, 'en'))) {
      hash.update(name).update(await readFile(join(directory, name)));
    }
  }
  return hash.digest('hex').slice(0, 16);
};

describe('an environment that was built from a recipe', () => {
  let context: BuildContext;
  let built: EnvironmentImage;
  let mountPoint: string;
  let mount: AsyncDisposable | undefined;

  beforeAll(async () => {
    const key = await digestOf(join(root, 'packages/environment/src'), join(root, 'packages/erofs/src'));
    const layersDirectory = join(cache, key);
    for (const name of await readdir(cache).catch(() => [])) {
      if (name !== key) await rm(join(cache, name), { recursive: true, force: true });
    }
    await mkdir(layersDirectory, { recursive: true });
    context = {
      layersDirectory,
      clock,
      random: new SeededRandom(7),
      onProgress: ({ step }) => void process.stderr.write(`debian.yaml: ${step}\n`),
    };
    const [known] = await listLayers(layersDirectory);
    const text = (await readFile(recipePath, 'utf8')).replace(/^env:\n/m, 'env:\n  GREETING: hello\n');
    built =
      known === undefined
        ? await buildRecipe(context, { recipe: parseRecipe(text + addition), directory: root })
        : {
            layers: [known.digest],
            config: known.config,
            sizeBytes: known.sizeBytes,
            architecture: known.architecture,
          };
    mountPoint = await mkdtemp(join(tmpdir(), 'dsec-environment-'));
    mount = await mounted(context, built, mountPoint);
  }, 300_000);

  afterAll(async () => {
    await mount?.[Symbol.asyncDispose]();
    if (mountPoint !== undefined) await rm(mountPoint, { recursive: true, force: true });
  });

  const inside = async (...argv: string[]): Promise<string> => {
    const { stdout } = await tool('env', '-i', `PATH=${PATH}`, 'chroot', mountPoint, ...argv);
    return stdout.toString();
  };

  it('is sound to fsck.erofs and no larger than a small image should be', async () => {
    await checkLayer(context, built);
    expect(built.sizeBytes).toBeLessThan(300_000_000);
  });

  it('runs what its packages brought', async () => {
    expect(await inside('python3', '-c', 'print(6 * 7)')).toBe('42\n');
    expect(await inside('bash', '-c', 'command -v ps')).toBe('/usr/bin/ps\n');
  });

  it('has the files of the recipe with their modes and owners, wherever links in it lead', async () => {
    expect(await inside('stat', '-c', '%a %U %G', '/opt/test/run me')).toBe('755 dev root\n');
    expect(await inside('/opt/test/run me')).toBe('it ran\n');
    expect(await inside('cat', `/opt/test/it's "quoted" $HOME`)).toBe('as it is');
    // /var/run is a link to /run, which is empty in an image.
    await using image = await opened(context, built);
    expect(await image.text('run/through-an-absolute-link')).toBeUndefined();
    expect(await readdir('/run')).not.toContain('through-an-absolute-link');
  });

  it('has the users of the recipe', async () => {
    expect(await inside('id', 'dev')).toBe('uid=1234(dev) gid=4321(dev) groups=4321(dev)\n');
    expect(await inside('getent', 'passwd', 'dev')).toBe('dev:x:1234:4321::/home/dev:/bin/sh\n');
    expect(await inside('stat', '-c', '%a %U', '/home/dev')).toMatch(/^7[05][05] dev\n$/);
    expect(await inside('cat', '/etc/sudoers.d/dev')).toBe('dev ALL=(ALL:ALL) NOPASSWD: ALL\n');
  });

  it('has what its commands made, with the environment of the recipe', async () => {
    expect(await inside('cat', '/opt/test/greeting')).toBe('hello\n');
    expect(await inside('cat', '/opt/test/lines')).toBe("it's 1\nit's 2\nit's 3\n");
    expect(built.config.env).toMatchObject({ GREETING: 'hello', LANG: 'C.UTF-8' });
  });

  it('has nothing of the machine that built it: no sources, no network, no logs, no identity', async () => {
    for (const name of ['etc/apt/sources.list', 'etc/hostname', 'etc/hosts', 'etc/resolv.conf', 'etc/machine-id']) {
      expect(await readFile(join(mountPoint, name), 'utf8'), name).toBe('');
    }
    for (const name of ['etc/apt/sources.list.d', 'dev', 'run', 'tmp', 'var/tmp']) {
      expect(await readdir(join(mountPoint, name)), name).toEqual([]);
    }
    for (const name of ['var/log', 'var/lib/apt/lists', 'var/cache/apt']) {
      const { stdout } = await tool('find', join(mountPoint, name), '-type', 'f');
      expect(stdout.toString(), name).toBe('');
    }
    const { stdout } = await tool('find', mountPoint, '-name', '99mmdebstrap');
    expect(stdout.toString()).toBe('');
  });
});
