/** Environments from Dockerfiles: every step runs in a sandbox of the server that the environment is for. */
import { mkdir, mkdtemp, readdir, rm, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { imageArchive } from './image-archive.ts';
import { ImageRegistry } from './image-registry.ts';
import { useServer } from './started-server.ts';

const server = useServer();

/** Each build is a process of its own, which loads all that reads and writes images. */
const SLOW = { timeout: 180_000 };

let directory = '';
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-dockerfile-'));
});
afterAll(() => rm(directory, { recursive: true }));

/** Writes a context with its Dockerfile, and returns its path. */
async function contextOf(name: string, files: Readonly<Record<string, string>>): Promise<string> {
  const context = join(directory, name);
  for (const [path, content] of Object.entries(files)) {
    await mkdir(dirname(join(context, path)), { recursive: true });
    await writeFile(join(context, path), content);
  }
  return context;
}

async function build(...args: string[]): Promise<{ readonly exitCode: number | undefined; readonly said: string }> {
  const { exitCode, stderrTail } = await server().cli(['env', 'build', ...args]);
  return { exitCode, said: stderrTail };
}

const environments = async (): Promise<string[]> =>
  (await server().client.environments.list().toArray()).map(({ name }) => name);

/** The steps that ran: each writes a line into a file of the environment, with a number that no other run has. */
const MARK = `printf '%s ' "$0" >> /marks; cat /proc/sys/kernel/random/uuid >> /marks`;
const marks = async (name: string): Promise<string[]> => {
  await using sandbox = await server().client.runContainer({ containerImage: name, memoryLimitMb: 64 });
  return (await sandbox.files.readText('/marks')).trim().split('\n');
};

describe('a build of several stages', () => {
  const dockerfile = [
    `ARG from=e2e`,
    'FROM $from AS builder',
    'WORKDIR /src',
    'COPY hello.py lib ./',
    'ARG word=hello',
    'RUN python3 -m py_compile hello.py && echo "$word from $PWD as $(id -un)" > built && touch -d 2001-02-03 built',
    'RUN ["/bin/sh", "-c", "rm -r /usr/share/doc && mkdir /usr/share/doc && chown 1000:1000 built && chmod 4755 built"]',
    'FROM $from',
    'ENV GREETING="good day" PATH=/opt/app:$PATH',
    'COPY --from=builder --chown=user /src /opt/app',
    'COPY --from=builder /usr/share/doc /doc',
    'RUN <<EOF',
    'set -e',
    'ln -s /opt/app/hello.py /usr/bin/hello',
    'rm /etc/debian_version',
    'EOF',
    'RUN <<EOF',
    '#!/usr/bin/env python3',
    'import os',
    'open("/by-python", "w").write(os.environ["GREETING"])',
    'EOF',
    'USER user',
    'WORKDIR /home/user',
    'RUN id -un > who',
    'RUN true',
    'LABEL org.example.kind=test',
    'EXPOSE 8080',
    'ENTRYPOINT ["hello"]',
  ].join('\n');

  test('becomes an environment of several layers, in which commands find what the steps left', SLOW, async () => {
    const context = await contextOf('app', {
      Dockerfile: dockerfile,
      'hello.py': 'print("hello")\n',
      'lib/data': 'data',
      'lib/left.pyc': 'x',
      '.dockerignore': '**/*.pyc\n',
    });
    const built = await build(context, '--name', 'org/App__1:v2', '--build-arg', 'word=bye');
    expect(built, built.said).toMatchObject({ exitCode: 0 });
    const base = await server().client.environments.get('e2e');
    const { image, kind } = await server().client.environments.get('org/App__1:v2');
    expect(kind).toBe('base');
    expect(image.layers.slice(-base.image.layers.length)).toEqual(base.image.layers);
    // COPY, COPY, RUN, RUN, RUN: what changes nothing has no layer.
    expect(image.layers).toHaveLength(base.image.layers.length + 5);
    expect(image.config).toMatchObject({
      user: 'user',
      workdir: '/home/user',
      entrypoint: ['hello'],
      labels: { 'org.example.kind': 'test' },
      exposedPorts: ['8080/tcp'],
    });
    await using sandbox = await server().client.runContainer({ containerImage: 'org/App__1:v2', memoryLimitMb: 128 });
    const script =
      'cat /opt/app/built who /by-python; echo; stat -c "%a %U %Y" /opt/app/built; ls /opt/app /doc /etc/debian_version 2>&1; readlink /usr/bin/hello; which hello';
    const { stdout } = await sandbox.runShell(script);
    expect(stdout.split('\n')).toEqual([
      'bye from /src as root',
      'user',
      'good day',
      '4755 user 981158400',
      "ls: cannot access '/etc/debian_version': No such file or directory",
      '/doc:',
      '',
      '/opt/app:',
      '__pycache__',
      'built',
      'data',
      'hello.py',
      '/opt/app/hello.py',
      '',
    ]);
    expect(await environments()).toEqual(['e2e', 'org/App__1:v2']);
  });

  test('runs nothing the second time, and after a change only what comes behind it', SLOW, async () => {
    const lines = [
      'FROM e2e',
      `RUN ["/bin/sh", "-c", "${MARK.replaceAll('"', '\\"')}", "one"]`,
      'COPY file /',
      `RUN ["/bin/sh", "-c", "${MARK.replaceAll('"', '\\"')}", "two"]`,
      'ARG v',
      `RUN ["/bin/sh", "-c", "${MARK.replaceAll('"', '\\"')}", "three"]`,
    ];
    const context = await contextOf('cached', { Dockerfile: lines.join('\n'), file: '1' });
    const ran = async (...args: string[]) => {
      const result = await build(context, ...args);
      expect(result, result.said).toMatchObject({ exitCode: 0 });
      return await marks('cached');
    };
    const first = await ran();
    expect(first.map((line) => line.split(' ')[0])).toEqual(['one', 'two', 'three']);
    expect(await ran()).toEqual(first);
    const otherValue = await ran('--build-arg', 'v=1');
    expect(otherValue.slice(0, 2)).toEqual(first.slice(0, 2));
    expect(otherValue[2]).not.toBe(first[2]);
    await writeFile(join(context, 'file'), '2');
    const otherFile = await ran();
    expect(otherFile[0]).toBe(first[0]);
    expect(otherFile[1]).not.toBe(first[1]);
    const none = await ran('--no-cache');
    expect(none[0]).not.toBe(first[0]);
  });
});

describe('builds', () => {
  test('of one name at the same time all succeed, and the name stands for one of them', SLOW, async () => {
    const dockerfile = 'FROM e2e\nARG who\nRUN echo "$who" > /who; sleep 0.2\nCOPY Dockerfile /';
    const context = await contextOf('at-once', { Dockerfile: dockerfile });
    const name = 'org__task-1__0a1b.c';
    const built = await Promise.all(
      ['a', 'b', 'a'].map((who) => build(context, '--name', name, '--build-arg', `who=${who}`)),
    );
    for (const { exitCode, said } of built) expect(exitCode, said).toBe(0);
    await using sandbox = await server().client.runContainer({ containerImage: name, memoryLimitMb: 64 });
    expect((await sandbox.runShell('cat /who /Dockerfile')).stdout).toMatch(/^[ab]\nFROM e2e\n/);
  });

  test('take away the names that killed ones have left, and no others', async () => {
    const { client } = server();
    const { image } = await client.environments.get('e2e');
    // A process of that number may live: it is not the one that began then.
    const left = ['dsec-build/build-1-1-abc', 'dsec-build/build-4194304-5-abc'];
    const others = ['dsec-build/mine', 'dsec-builds'];
    for (const name of [...left, ...others]) await client.environments.put(name, image);
    const metadata = { 'dsec-build': left[0] ?? '' };
    const orphan = await client.runContainer({ containerImage: 'e2e', memoryLimitMb: 64, metadata });
    expect(await build(await contextOf('after', { Dockerfile: 'FROM e2e' }))).toMatchObject({ exitCode: 0 });
    const names = await environments();
    expect(names).toEqual(expect.arrayContaining(others));
    for (const name of left) expect(names).not.toContain(name);
    expect((await orphan.info()).state).toBe('stopped');
    for (const name of others) await client.environments.remove(name);
  });
});

describe('a build that fails', () => {
  test('says the step, the line, the exit code and the last words, and leaves no name behind', async () => {
    const context = await contextOf('failing', {
      'sub/Dockerfile.dev': 'FROM e2e\n\nRUN true\nRUN echo said on stdout; \\\n  echo said on stderr >&2; exit 7\n',
    });
    const before = await environments();
    const { exitCode, said } = await build('-f', join(context, 'sub/Dockerfile.dev'), context, '-t', 'failing');
    expect(exitCode).toBe(1);
    expect(said).toContain('line 4, RUN: the command ended with exit code 7 [build_failed]');
    for (const line of ['said on stdout', 'said on stderr']) expect(said).toContain(`  | ${line}`);
    expect(await environments()).toEqual(before);
    const layers = await readdir(join(server().data, 'layers'));
    expect(layers.filter((name) => name.startsWith('.'))).toEqual([]);
  });

  test.each([
    [
      'a program that is not there',
      'FROM e2e\nRUN ["/none"]',
      /line 2, RUN: the command could not be run \[build_failed\]/,
    ],
    ['a user that is not there', 'FROM e2e\nUSER nobody-here\nRUN true', /line 3, RUN: .*\[build_failed\]/],
    ['an instruction that is none', 'FROM e2e\nFETCH x', /line 2, FETCH: .*\[dockerfile_invalid\]/],
    ['no FROM', 'RUN true', /line 1, RUN: .*\[dockerfile_invalid\]/],
    ['a file that is not there', 'FROM e2e\nCOPY missing /', /line 2, COPY: .*missing \[dockerfile_invalid\]/],
    ['a path out of the context', 'FROM e2e\nCOPY ../x /', /line 2, COPY: .*\[dockerfile_invalid\]/],
    ['a link out of the context', 'FROM e2e\nCOPY link /', /line 2, COPY: .*\[dockerfile_invalid\]/],
    ['something remote', 'FROM e2e\nADD http://127.0.0.1/x /', /line 2, ADD: .*\[dockerfile_invalid\]/],
    ['an image that is nowhere', 'FROM 127.0.0.1:1/none', /\[registry_unavailable\]/],
    [
      'a command beyond the memory',
      'FROM e2e\nRUN python3 -c "bytearray(1<<30)"',
      /line 2, RUN: .*memory.*\[build_failed\]/,
    ],
  ])('for %s says where', async (_, text, pattern) => {
    const context = await contextOf('wrong', { Dockerfile: text });
    await symlink('/etc/passwd', join(context, 'link')).catch(() => undefined);
    const before = await environments();
    const { exitCode, said } = await build(context, '--memory', '64M');
    expect([exitCode, said]).toEqual([1, expect.stringMatching(pattern)]);
    expect(await environments()).toEqual(before);
  });
});

async function built(name: string, lines: readonly string[], ...options: string[]): Promise<readonly string[]> {
  const file = join(directory, `${name}.Dockerfile`);
  await writeFile(file, lines.join('\n'));
  return await layersOf(name, ['build', file, ...options]);
}

/** Makes an environment; its layers, top first. */
async function layersOf(name: string, verb: readonly string[]): Promise<readonly string[]> {
  const { exitCode, stderrTail } = await server().cli(['env', ...verb, '--name', name]);
  expect(exitCode, stderrTail).toBe(0);
  return (await server().client.environments.get(name)).image.layers;
}

async function said(name: string, path: string): Promise<string> {
  await using sandbox = await server().client.runContainer({ containerImage: name, memoryLimitMb: 64 });
  return (await sandbox.exec(['busybox', 'cat', path], { user: 'root' })).stdout;
}

test('an image of a registry is built on, and another on the same base shares its layers', {
  timeout: 180_000,
}, async () => {
  await using donor = await server().sandbox();
  const busybox = await donor.files.read('/usr/bin/busybox');
  const base = [
    { name: 'bin/', type: '5', mode: 0o755 },
    { name: 'bin/busybox', content: busybox, mode: 0o755 },
    { name: 'bin/sh', type: '2', target: 'busybox' },
    { name: 'etc/', type: '5', mode: 0o755 },
    { name: 'etc/of', content: 'the base' },
    { name: 'srv/', type: '5', mode: 0o777 },
  ];
  await using registry = await ImageRegistry.start(join(directory, 'registry'));
  const baseImage = await registry.push('base:1', imageArchive(base));
  const above = [[{ name: 'etc/of', content: 'the image' }]];
  const image = await registry.push('app:1', imageArchive(base, { above }));
  const insecure = ['--insecure', registry.host];
  const onBase = await built('on-base', [`FROM ${baseImage}`, 'RUN busybox cp /etc/of copied'], ...insecure);
  const pulled = await layersOf('app', ['pull', image, ...insecure]);
  expect([onBase.length, pulled.length]).toEqual([2, 2]);
  expect(pulled[1]).toBe(onBase[1]);
  expect(await said('on-base', '/srv/copied')).toBe('the base');
  expect(await said('app', '/etc/of')).toBe('the image');
  const mixed = await built('mixed', ['FROM on-base', 'COPY --from=app /etc/of /of-app']);
  expect(mixed.slice(1)).toEqual(onBase);
  expect(await said('mixed', '/of-app')).toBe('the image');
});
