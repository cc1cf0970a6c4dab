/** Base, workspace and toolkits: real layers, put together at each create. */
import type { EnvironmentKind } from '@dsec/libdsec';
import { mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { layerOfFiles, type LayerSpec } from './layer-of-files.ts';
import { useServer } from './started-server.ts';

const server = useServer();

const put = async (name: string, kind: EnvironmentKind, spec: LayerSpec): Promise<void> =>
  void (await server().client.environments.put(name, await layerOfFiles(server().data, spec), { kind }));

const tool = (answer: string): string => `#!/bin/sh\necho ${answer}\n`;

describe('a composed sandbox', () => {
  test('has the files of all, the last toolkit topmost, and works in its workspace as in any directory', async () => {
    await put('task:1', 'workspace', {
      files: { 'project/main.py': 'print(1)\n', 'project/lib/a.txt': 'workspace', 'etc/motd': 'workspace' },
      workdir: '/project',
    });
    await put('first', 'toolkit', {
      files: { 'opt/first/bin/agent': tool('first'), 'usr/bin/which-tool': tool('first'), 'etc/motd': 'first' },
      env: { PATH: '/opt/first/bin', TOOL: 'first' },
    });
    await put('second', 'toolkit', { files: { 'usr/bin/which-tool': tool('second') }, env: { TOOL: 'second' } });
    await using sandbox = await server().sandbox({ workspace: 'task:1', toolkits: ['first', 'second'] });
    const script = 'pwd; agent; which-tool; cat /etc/motd; echo " $TOOL"; cat lib/a.txt; ls /bin/sh';
    expect((await sandbox.runShell(script)).stdout).toBe('/project\nfirst\nsecond\nfirst second\nworkspace/bin/sh\n');
    // What tools leave beside the files of a workspace, and what replaces them.
    const writes =
      'mkdir __pycache__ && echo x > __pycache__/main.pyc && echo more >> main.py && rm -r lib && mv main.py b.py';
    expect((await sandbox.runShell(`${writes} && ls -A && cat b.py`)).stdout).toBe(
      '__pycache__\nb.py\nprint(1)\nmore\n',
    );
    expect(await sandbox.info()).toMatchObject({ workspace: 'task:1', toolkits: ['first', 'second'] });
    await using other = await server().sandbox({ workspace: 'task:1' });
    expect((await other.runShell('cat main.py; command -v agent')).stdout).toBe('print(1)\n');
    expect(await other.info()).toMatchObject({ workspace: 'task:1', toolkits: [] });
  });

  test('stands on twenty layers as on one, and outlives the restart of everything', async () => {
    const names = Array.from({ length: 20 }, (_, i) => `kit-${i}`);
    for (const name of names) await put(name, 'toolkit', { files: { [`opt/${name}`]: name, 'opt/all': name } });
    await using sandbox = await server().sandbox({ toolkits: names });
    const check = async (): Promise<void> =>
      expect((await sandbox.runShell('cat /opt/all; ls /opt | wc -l')).stdout).toBe('kit-1921\n');
    await check();
    await using single = await server().sandbox();
    const mounts = 'cat /proc/self/mountinfo';
    const [many, one] = await Promise.all([sandbox, single].map((each) => each.runShell(mounts)));
    const kinds = (table = ''): string[] => table.split('\n').map((line) => line.split(' - ')[1]?.split(' ')[0] ?? '');
    expect(kinds(many?.stdout)).toEqual(kinds(one?.stdout));
    expect(many?.stdout.match(/lowerdir/g)).toHaveLength(1);
    for (const daemon of ['launcher', 'edge', 'apiserver'] as const) await server().kill(daemon);
    await check();
    expect(await sandbox.info()).toMatchObject({ toolkits: names });
  });

  test('is made although its set is damaged or gone, once nobody stands on that', async () => {
    await put('mended', 'toolkit', { files: { 'opt/mended': 'yes' } });
    const sets = join(server().data, 'sets');
    const damages = [
      (image: string) => writeFile(image, 'nothing'),
      (image: string) => rm(image),
      (image: string) => rm(dirname(image), { recursive: true }),
    ];
    for (const damage of damages) {
      {
        await using sandbox = await server().sandbox({ toolkits: ['mended'] });
        expect((await sandbox.runShell('cat /opt/mended')).stdout).toBe('yes');
      }
      // The next launcher has nothing mounted yet, and the edge takes the sets for whole.
      await server().kill('launcher');
      for (const name of await readdir(sets)) await damage(join(sets, name, 'rootfs.erofs'));
    }
    await using sandbox = await server().sandbox({ toolkits: ['mended'] });
    expect((await sandbox.runShell('cat /opt/mended')).stdout).toBe('yes');
  });

  test('keeps what it stands on when a name is given to something newer', async () => {
    await put('moving', 'toolkit', { files: { 'opt/version': '1' } });
    await using old = await server().sandbox({ toolkits: ['moving'] });
    await put('moving', 'toolkit', { files: { 'opt/version': '2' } });
    await using young = await server().sandbox({ toolkits: ['moving'] });
    const versions = await Promise.all([old, young].map((one) => one.runShell('cat /opt/version')));
    expect(versions.map(({ stdout }) => stdout)).toEqual(['1', '2']);
  });

  test('is made by the CLI out of recipes', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-kit-'));
    try {
      await mkdir(join(directory, 'bin'));
      await writeFile(join(directory, 'bin/hello-kit'), tool('hello'), { mode: 0o755 });
      const kit =
        'name: cli-kit\nkind: toolkit\ntrees: [{path: /opt/kit/bin, source: bin}]\nenv: {PATH: /opt/kit/bin}\n';
      const work =
        'name: cli-work\nkind: workspace\nworkdir: /project\nfiles: [{path: /project/a, content: "a file\\n"}]\n';
      for (const [name, text] of Object.entries({ kit, work })) {
        await writeFile(join(directory, `${name}.yaml`), text);
        expect((await server().cli(['env', 'build', join(directory, `${name}.yaml`)])).exitCode).toBe(0);
      }
      const options = ['--workspace', 'cli-work', '--toolkit', 'cli-kit'];
      const ran = await server().cli(['run', 'e2e', ...options, '--', 'sh', '-c', 'hello-kit; cat a']);
      expect(ran.stdout.toString()).toBe('hello\na file\n');
      const listed = (await server().cli(['env', 'ls'])).stdout.toString();
      expect(listed).toMatch(/^cli-kit +toolkit /m);
      expect(listed).toMatch(/^cli-work +workspace /m);
    } finally {
      await rm(directory, { recursive: true });
    }
  });

  test('is refused by the name that is wrong', async () => {
    await put('a-kit', 'toolkit', { files: { 'opt/a': 'a' } });
    const codeOf = async (work: PromiseLike<unknown>): Promise<string> => (await failureOf(work)).code;
    expect(await codeOf(server().sandbox({ workspace: 'no-such' }))).toBe('environment_not_found');
    expect(await codeOf(server().sandbox({ workspace: 'a-kit' }))).toBe('invalid_argument');
    expect(await codeOf(server().client.runContainer({ containerImage: 'a-kit' }))).toBe('invalid_argument');
  });
});
