import { mkdir, readFile, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { describe, expect, it } from 'vitest';
import { opened, script, testPlace, type TestPlace, tool } from './build.fixture.ts';
import { tarOf } from './tar/tar.fixture.ts';
import { parseRecipe } from './recipe.ts';
import { buildRecipe, type RecipeBuild } from './recipe-build.ts';

const minimal = parseRecipe('name: test\nfiles: [{path: /etc/kept, content: x}]');

/** Builds with a program in mmdebstrap's place, and expects a failure that leaves nothing behind. */
const refused = async (place: TestPlace, body: string, change: Partial<RecipeBuild> = {}): Promise<PlatformError> => {
  const mmdebstrap = await script(place.path, body);
  const error: unknown = await buildRecipe(place.context, {
    recipe: minimal,
    directory: place.path,
    mmdebstrap,
    ...change,
  }).catch((caught: unknown) => caught);
  expect(await place.layers()).toEqual([]);
  if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
  return error;
};

describe('a build that fails leaves nothing and says why', () => {
  it('when the program fails: with its last words', async () => {
    await using place = await testPlace();
    const error = await refused(
      place,
      'cat >/dev/null; echo "I: running..." >&2; echo "E: no such package" >&2; exit 25',
    );
    expect(error.code).toBe('build_failed');
    expect(error.details['exitCode']).toBe(25);
    expect(error.details['output']).toContain('E: no such package');
  });

  it('when it fails in the middle of the archive', async () => {
    await using place = await testPlace();
    await writeFile(join(place.path, 'part'), tarOf({ name: 'a', content: 'x'.repeat(5000) }).subarray(0, 2000));
    const error = await refused(place, `cat >/dev/null; cat '${place.path}/part'; echo broken >&2; exit 1`);
    expect(error.code).toBe('build_failed');
    expect(error.details['output']).toContain('broken');
  });

  it('when it succeeds with nothing', async () => {
    await using place = await testPlace();
    expect((await refused(place, 'cat >/dev/null; exit 0')).code).toBe('build_failed');
  });

  it('when the disk is full, by its own words or by ours', async () => {
    await using place = await testPlace();
    const byWords = await refused(place, 'echo "dpkg: error: No space left on device" >&2; exit 1');
    expect(byWords.code).toBe('disk_full');
    const { layersDirectory } = place.context;
    await writeFile(join(place.path, 'whole'), tarOf({ name: 'a', content: Buffer.alloc(9_000_000, 1) }));
    await tool('mount', '-t', 'tmpfs', '-o', 'size=4m', 'dsec-test', layersDirectory);
    try {
      expect((await refused(place, `cat '${place.path}/whole'`)).code).toBe('disk_full');
    } finally {
      await tool('umount', layersDirectory);
    }
  });

  it('when its archive is hostile, even if it would go on for ever', async () => {
    await using place = await testPlace();
    await writeFile(join(place.path, 'bad'), tarOf({ name: '../x', content: 'x' }));
    const error = await refused(place, `cat '${place.path}/bad'; exec yes`);
    expect([error.code, error.details['reason']]).toEqual(['archive_unsafe', 'path_dot_dot']);
  });

  it('when it is cancelled: the program is ended', async () => {
    await using place = await testPlace();
    const controller = new AbortController();
    const mmdebstrap = await script(place.path, 'echo "I: started..." >&2; cat >/dev/null; exec sleep 1000');
    const build = buildRecipe(
      {
        ...place.context,
        signal: controller.signal,
        onProgress: ({ step }) => {
          if (step === 'started') controller.abort();
        },
      },
      { recipe: minimal, directory: place.path, mmdebstrap },
    );
    await expect(build).rejects.toMatchObject({ code: 'cancelled' });
    expect(await place.layers()).toEqual([]);
  });

  it('when mmdebstrap is not there', async () => {
    await using place = await testPlace();
    const error = await refused(place, '', { mmdebstrap: join(place.path, 'nothing') });
    expect(error.code).toBe('host_unsuitable');
  });

  it('when a source file is missing, leads out of the directory, or is no file', async () => {
    await using place = await testPlace();
    const directory = join(place.path, 'recipe');
    await mkdir(join(directory, 'sub'), { recursive: true });
    await writeFile(join(place.path, 'secret'), 'x');
    await symlink('../secret', join(directory, 'link'));
    for (const source of ['missing', '../secret', '/etc/hostname', 'link', 'sub']) {
      const recipe = parseRecipe(`name: test\nfiles: [{path: /a, source: "${source}"}]`);
      const error = await refused(place, 'exit 0', { recipe, directory });
      expect([error.code, error.details['field']]).toEqual(['recipe_invalid', 'files.0.source']);
    }
  });
});

describe('what mmdebstrap writes', () => {
  it('loses what is of the machine and the moment, but nothing of the recipe', async () => {
    await using place = await testPlace();
    const recipe = parseRecipe(
      'name: test\nworkdir: /srv/work\nfiles: [{path: /etc/apt/sources.list, content: own}, {path: /var/log/kept, content: own}]',
    );
    const content = 'of the host';
    const gone = [
      'dev/shm/x',
      'etc/apt/apt.conf.d/99mmdebstrap',
      'etc/apt/auth.conf.d/x',
      'etc/apt/sources.list.d/0000main.sources',
      'etc/dpkg/dpkg.cfg.d/99mmdebstrap',
      'etc/passwd-',
      'etc/ssh/ssh_host_rsa_key',
      'run/x',
      'tmp/x',
      'var/cache/apt/archives/x.deb',
      'var/lib/apt/lists/x',
      'var/lib/dbus/machine-id',
      'var/log/apt/history.log',
    ];
    const emptied = ['etc/machine-id', 'etc/hostname', 'etc/hosts', 'etc/resolv.conf'];
    const kept = ['etc/apt/sources.list', 'etc/apt/apt.conf.d/01autoremove', 'etc/passwd', 'var/log/kept'];
    const archive = tarOf(
      { name: './', type: '5', mode: 0o755 },
      { name: './dev/null', type: '3' },
      ...[...gone, ...emptied, ...kept].map((name) => ({ name: `./${name}`, content })),
    );
    await writeFile(join(place.path, 'archive'), archive);
    const mmdebstrap = await script(place.path, `cat >/dev/null; cat '${place.path}/archive'`);
    const built = await buildRecipe(place.context, { recipe, directory: place.path, mmdebstrap });
    await using image = await opened(place.context, built);
    const text = (name: string) => image.text(name);
    expect(await Promise.all(gone.map(text))).toEqual(gone.map(() => undefined));
    expect(await Promise.all(emptied.map(text))).toEqual(emptied.map(() => ''));
    expect(await Promise.all(kept.map(text))).toEqual(kept.map(() => content));
    expect(await text('srv/work')).toBe('directory');
    expect(built.config).toMatchObject({ user: 'root', workdir: '/srv/work' });
  });

  it('is asked for with the sources of this machine on its standard input, and no environment but what is given', async () => {
    await using place = await testPlace();
    await mkdir(join(place.path, 'apt'));
    await writeFile(join(place.path, 'apt', 'sources.list'), 'deb http://one.example/debian bookworm main\n');
    await writeFile(join(place.path, 'archive'), tarOf({ name: 'a' }));
    const mmdebstrap = await script(
      place.path,
      `cat >'${place.path}/stdin'; env >'${place.path}/env'; echo "$@" >'${place.path}/args'; cat '${place.path}/archive'`,
    );
    await buildRecipe(place.context, {
      recipe: parseRecipe('name: test\nsuite: bookworm\npackages: [git, curl]'),
      directory: place.path,
      mmdebstrap,
      env: { http_proxy: 'http://proxy.example' },
      aptSources: { directory: join(place.path, 'apt') },
    });
    expect(await readFile(join(place.path, 'stdin'), 'utf8')).toContain(
      'uris: http://one.example/debian\nsuites: bookworm\n',
    );
    const args = await readFile(join(place.path, 'args'), 'utf8');
    expect(args).toContain('--include=git,curl');
    expect(args).toMatch(/ bookworm - -\n$/);
    const names = (await readFile(join(place.path, 'env'), 'utf8')).split('\n').map((line) => line.split('=')[0]);
    expect(names).toContain('http_proxy');
    expect(names).not.toContain('VITEST');
  });
});
