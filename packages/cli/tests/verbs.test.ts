import { lacking, TestServer } from '@dsec/testkit';
import { chmod, mkdir, mkdtemp, readFile, readlink, rm, stat, symlink, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';

const lack = lacking('root', 'btrfs', 'erofs', 'overlay', 'cgroup');
const anyCode = Array.from({ length: 256 }, (_, code) => code);

describe.skipIf(lack !== undefined)(`the verbs of dsec${lack === undefined ? '' : ` (${lack})`}`, () => {
  let server: TestServer | undefined;
  let directory = '';

  beforeAll(async () => {
    server = await TestServer.start({ volumeSize: '16G' });
    directory = await mkdtemp(join(tmpdir(), 'dsec-cp-'));
  }, 900_000);

  afterAll(async () => {
    await rm(directory, { recursive: true, force: true });
    await server?.[Symbol.asyncDispose]();
  }, 120_000);

  const dsec = async (
    args: readonly string[],
    stdin?: string,
  ): Promise<{ readonly code: number; readonly out: string; readonly err: string }> => {
    const result = await (server ?? expect.unreachable()).cli(args, {
      okExitCodes: anyCode,
      ...(stdin === undefined ? {} : { stdin }),
    });
    return { code: result.exitCode, out: result.stdout.toString(), err: result.stderrTail };
  };
  const create = async (...options: readonly string[]): Promise<string> =>
    (await dsec(['create', 'debian', '--disk', '256', '-m', '128', ...options])).out.trim();

  test('run ends with the code of the command, passes both streams on, and leaves no sandbox', async () => {
    const result = await dsec([
      'run',
      'debian',
      '--disk',
      '256',
      '-e',
      'WHO=you',
      '--',
      'sh',
      '-c',
      'echo hello $WHO; echo oops >&2; exit 7',
    ]);
    expect(result).toMatchObject({ code: 7, out: 'hello you\n' });
    expect(result.err).toContain('oops');
    expect((await dsec(['ls', '--json'])).out).toBe('[]\n');
  });

  test('run without a such program or environment says what to do, with the codes of a shell', async () => {
    const missing = await dsec(['run', 'debian', '--disk', '256', '--', 'no-such-program']);
    expect(missing.code).toBe(127);
    expect(missing.err).toContain('[command_not_found]');
    const unknown = await dsec(['run', 'no-such-environment', '--', 'true']);
    expect(unknown.code).toBe(125);
    expect(unknown.err).toMatch(/\[environment_not_found\][\s\S]*to do: .*dsec env/);
  });

  test('exec passes stdin on, byte for byte, and its timeout ends the command', async () => {
    const id = await create();
    expect((await dsec(['exec', '-i', id, '--', 'tr', 'a-z', 'A-Z'], 'shout\n')).out).toBe('SHOUT\n');
    expect((await dsec(['exec', '-w', '/tmp', '-u', '12345', id, '--', 'sh', '-c', 'pwd; id -u'])).out).toBe(
      '/tmp\n12345\n',
    );
    const timedOut = await dsec(['exec', '--timeout', '1s', id, '--', 'sleep', '60']);
    expect(timedOut.code).toBe(137);
    expect(timedOut.err).toContain('ended by its timeout');
    expect((await dsec(['stop', id])).out).toBe(`${id}\n`);
  });

  test('a detached command is listed, and logs prints what it wrote', async () => {
    const id = await create();
    const execId = (await dsec(['exec', '-d', id, '--', 'sh', '-c', 'echo first; sleep 1; echo second'])).out.trim();
    expect((await dsec(['logs', '-f', id, execId])).out).toBe('first\nsecond\n');
    expect((await dsec(['logs', id])).out).toContain(execId);
    await dsec(['stop', id]);
  });

  test('cp takes files and directories there and back as they are', async () => {
    const id = await create();
    const tree = join(directory, 'tree');
    await mkdir(join(tree, 'empty'), { recursive: true });
    await writeFile(join(tree, 'run.sh'), 'echo from the tree\n');
    await chmod(join(tree, 'run.sh'), 0o755);
    await symlink('run.sh', join(tree, 'link'));
    expect((await dsec(['cp', tree, `${id}:/opt/tree`])).code).toBe(0);
    expect((await dsec(['exec', id, '--', 'sh', '/opt/tree/link'])).out).toBe('from the tree\n');
    expect((await dsec(['cp', `${id}:/opt/tree`, join(directory, 'back')])).code).toBe(0);
    expect(await readlink(join(directory, 'back/link'))).toBe('run.sh');
    expect((await stat(join(directory, 'back/run.sh'))).mode & 0o777).toBe(0o755);
    expect((await stat(join(directory, 'back/empty'))).isDirectory()).toBe(true);
    await dsec(['cp', join(tree, 'run.sh'), `${id}:/tmp/`]);
    await dsec(['cp', `${id}:/tmp/run.sh`, join(directory, 'one.sh')]);
    expect(await readFile(join(directory, 'one.sh'), 'utf8')).toBe('echo from the tree\n');
    const missing = await dsec(['cp', `${id}:/no/such`, directory]);
    expect(missing).toMatchObject({ code: 1 });
    expect(missing.err).toContain('[file_not_found]');
    await dsec(['stop', id]);
  });

  test('ls, inspect and stop by label see the same sandboxes', async () => {
    const ids = [await create('--metadata', 'job=a=b', '--hostname', 'one'), await create('--metadata', 'job=a=b')];
    const other = await create('--metadata', 'job=other');
    const listed = JSON.parse((await dsec(['ls', '--json', '--metadata', 'job=a=b'])).out) as readonly {
      readonly sandboxId: string;
    }[];
    expect(listed.map(({ sandboxId }) => sandboxId).toSorted()).toEqual(ids.toSorted());
    const shown = JSON.parse((await dsec(['inspect', ids[0] ?? ''])).out) as {
      readonly hostname: string;
      readonly usage: { readonly pids: number };
    };
    expect(shown.hostname).toBe('one');
    expect(shown.usage.pids).toBeGreaterThan(0);
    expect((await dsec(['stop', '--metadata', 'job=a=b'])).out.trim().split('\n').toSorted()).toEqual(ids.toSorted());
    expect((await dsec(['ls', '-q'])).out).toBe(`${other}\n`);
    expect((await dsec(['ls', '--all'])).out).toContain('stopped (stopped)');
    await dsec(['stop', '--all']);
  });

  test('a read-only key may look, and a revoked one nothing', async () => {
    const created = JSON.parse((await dsec(['key', 'create', 'reader', '--read-only', '--json'])).out) as {
      readonly key: string;
      readonly info: { readonly keyId: string };
    };
    const { endpoint, connect } = {
      endpoint: server?.endpoint ?? '',
      connect: (apiKey: string) => server?.connect({ apiKey }),
    };
    expect(endpoint).not.toBe('');
    await using reader = connect(created.key) ?? expect.unreachable();
    expect(await reader.sandboxes().toArray()).toEqual([]);
    await expect(reader.runContainer({ containerImage: 'debian' })).rejects.toMatchObject({
      code: 'permission_denied',
    });
    expect((await dsec(['key', 'revoke', created.info.keyId])).code).toBe(0);
    await expect(reader.sandboxes().toArray()).rejects.toMatchObject({ code: 'unauthenticated' });
    expect((await dsec(['key', 'ls'])).out).toContain('revoked');
  });

  test('env shows and removes; a recipe that is wrong is refused with the place', async () => {
    expect((await dsec(['env', 'ls'])).out).toContain('debian');
    const bad = join(directory, 'bad.yaml');
    await writeFile(bad, 'name: bad\npackages: [1]\n');
    const refused = await dsec(['env', 'build', bad]);
    expect(refused.code).toBe(1);
    expect(refused.err).toMatch(/\[recipe_invalid\]/);
    expect((await dsec(['env', 'rm', 'no-such'])).err).toContain('[environment_not_found]');
  });

  test('up on a directory in use is refused, and what cannot be meant is a usage error', async () => {
    const second = await dsec(['up', '--listen', '127.0.0.1:0', '--data', server?.data ?? '']);
    expect(second.code).toBe(1);
    expect(second.err).toContain('[already_running]');
    expect((await dsec(['no-such-verb'])).code).toBe(2);
    expect((await dsec(['create', 'debian', '--memory', 'much'])).code).toBe(2);
    expect((await dsec(['stop'])).err).toContain('[invalid_argument]');
  });
});
