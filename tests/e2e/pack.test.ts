/** pack_diff: live sandboxes become workspaces, toolkits and environments. */
import { SystemRandom } from '@dsec/kit';
import type { PackReport, Sandbox } from '@dsec/libdsec';
import { lstat, mkdtemp, readdir, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, test } from 'vitest';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer();

const run = async (sandbox: Sandbox, script: string): Promise<string> => {
  const { exitCode, stdout, stderr } = await sandbox.runShell(script);
  expect(exitCode, stderr).toBe(0);
  return stdout;
};

const levelOf = ({ checks }: PackReport, rule: string): string | undefined =>
  checks.find((check) => check.rule === rule)?.level;

const RESIDUE = `set -e
  mkdir -p /project/src/__pycache__ /root/.cache/pip /var/cache/apt/archives /root/.ssh /project/.pytest_cache
  echo 'print(1)' > /project/src/main.py; head -c 5000 /dev/urandom > /project/src/__pycache__/main.pyc
  head -c 70000 /dev/urandom > /root/.cache/pip/wheel; head -c 300000 /dev/urandom > /var/cache/apt/archives/x.deb
  echo 'curl https://user:hunter2@example.test/ # typed by somebody' > /root/.bash_history
  echo 'example.test ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI' > /root/.ssh/known_hosts; echo key > /root/.ssh/config
  echo x > /project/src/.main.py.swp; echo x > /tmp/scratch; echo x > /project/.pytest_cache/v; echo log > /var/log/app.log`;

describe('a workspace', () => {
  test('is packed without residue, named, found in a new sandbox, and packed again from there as its next version', async () => {
    await using first = await server().sandbox();
    await run(first, RESIDUE);
    const steps: string[] = [];
    const packed = await first.packDiff({
      name: 'work:1',
      workdir: '/project',
      env: { TASK: 'one' },
      onProgress: ({ step }) => steps.push(step),
    });
    expect(packed.environment).toMatchObject({ name: 'work:1', kind: 'workspace' });
    expect(packed.environment?.image.layers).toHaveLength(1);
    expect(packed.frozenMs).toBeGreaterThan(0);
    expect(packed.frozenMs).toBeLessThan(2000);
    expect(steps.length).toBeGreaterThan(0);
    const by = packed.report.omitted.map((omitted) => omitted.by);
    for (const rule of ['shell-history', 'user-cache', 'package-cache', 'ssh-known-hosts', 'python-bytecode']) {
      expect(by).toContain(rule);
    }
    expect(packed.report.checks.map(({ rule, level }) => [rule, level])).toContainEqual(['scrubbed', 'pass']);
    await using second = await server().sandbox({ workspace: 'work:1' });
    expect(
      await run(second, 'pwd; echo $TASK; find /project /root /tmp /var/log/app.log 2>/dev/null | LC_ALL=C sort'),
    ).toBe(
      '/project\none\n/project\n/project/src\n/project/src/main.py\n/root\n/root/.bashrc\n/root/.profile\n/root/.ssh\n/root/.ssh/config\n/tmp\n',
    );
    await run(second, 'echo 2 > two; rm src/main.py');
    const next = await second.packDiff({ name: 'work:2' });
    expect(next.environment?.image.layers.slice(1)).toEqual(packed.environment?.image.layers);
    await using third = await server().sandbox({ workspace: 'work:2' });
    expect(await run(third, 'pwd; find . | sort')).toBe('/project\n.\n./src\n./two\n');
  });

  test("is root's, as all that stands among the layers, and nothing is left where it was packed", async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, 'mkdir /owned; head -c 600000 /dev/urandom > /owned/file');
    const { environment } = await sandbox.packDiff({ name: 'owned' });
    const { data } = server();
    const hex = environment?.image.layers[0]?.slice('sha256:'.length) ?? '';
    const files = ['', 'data', 'layer.json', 'rootfs.erofs'].map((name) => join(data, 'layers', hex, name));
    for (const path of [join(data, 'layers'), ...files]) {
      const { uid, gid, mode } = await lstat(path);
      expect([path, uid, gid, mode & 0o022]).toEqual([path, 0, 0, 0]);
    }
    expect(await readdir(join(data, 'state/packer/layers'))).toEqual([]);
    await using other = await server().sandbox({ workspace: 'owned' });
    expect(await run(other, 'cksum < /owned/file')).toBe(await run(sandbox, 'cksum < /owned/file'));
  });

  test('is packed, and put together with others, while the publisher is killed', async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, 'mkdir /through; head -c 30000000 /dev/urandom > /through/file');
    await Promise.all([sandbox.packDiff({ name: 'through' }), server().kill('publisher')]);
    const [other] = await Promise.all([server().sandbox({ workspace: 'through' }), server().kill('publisher')]);
    await using _other = other;
    expect(await run(other, 'cksum < /through/file')).toBe(await run(sandbox, 'cksum < /through/file'));
    for (const directory of ['layers', 'sets', 'state/edge/sets', 'state/packer/layers']) {
      const names = await readdir(join(server().data, directory));
      expect([directory, names.filter((name) => !/^[0-9a-f]{64}$/.test(name))]).toEqual([directory, []]);
    }
  });

  test('has only the paths that were asked for, less what was named', async () => {
    await using sandbox = await server().sandbox();
    await run(
      sandbox,
      'mkdir -p /a/b /c; echo 1 > /a/b/in; echo 2 > /a/b/not; echo 3 > /a/out; echo 4 > /c/out; chmod 711 /a',
    );
    const { report } = await sandbox.packDiff({ name: 'part', paths: ['/a/b'], scrub: { omit: ['/a/b/not'] } });
    expect(report.omitted).toContainEqual({ by: 'named', entries: 1, bytes: 2 });
    await using other = await server().sandbox({ workspace: 'part' });
    expect(await run(other, 'find /a /c 2>/dev/null | sort; stat -c %a /a')).toBe('/a\n/a/b\n/a/b/in\n711\n');
  });

  test('keeps a file whose other name is left out', async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, 'mkdir /keep; echo bytes > /tmp/first; ln /tmp/first /keep/second; ln /tmp/first /keep/third');
    await sandbox.packDiff({ name: 'linked' });
    await using other = await server().sandbox({ workspace: 'linked' });
    expect(await run(other, 'cat /keep/second; stat -c %h /keep/third; ls /tmp')).toBe('bytes\n2\n');
  });
});

test('a toolkit lies above any workspace', async () => {
  await using sandbox = await server().sandbox();
  await run(
    sandbox,
    'mkdir -p /opt/tool/bin; printf "#!/bin/sh\\necho tool\\n" > /opt/tool/bin/tool; chmod 755 /opt/tool/bin/tool',
  );
  const { environment } = await sandbox.packDiff({ name: 'tool', kind: 'toolkit', env: { PATH: '/opt/tool/bin' } });
  expect(environment).toMatchObject({ kind: 'toolkit' });
  await using other = await server().sandbox({ toolkits: ['tool'] });
  expect(await run(other, 'tool')).toBe('tool\n');
});

test('an environment is all that the sandbox stood on, with its changes above', async () => {
  await using sandbox = await server().sandbox();
  await run(sandbox, 'rm -r /usr/share/doc; mkdir -p /srv/site; echo hello > /srv/site/index');
  const { environment } = await sandbox.packDiff({ name: 'whole', kind: 'environment', description: 'with a site' });
  expect(environment).toMatchObject({ kind: 'base', description: 'with a site' });
  await using other = await server().client.runContainer({ containerImage: 'whole', memoryLimitMb: 256 });
  expect(await run(other, 'cat /srv/site/index; ls -d /usr/share/doc 2>&1 || true')).toMatch(/^hello\n.*No such/);
});

describe('a dry run', () => {
  test('lists what would be packed and what would be left out, and packs nothing', async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, RESIDUE);
    const { environment, report } = await sandbox.packDiff({ name: 'dry', dryRun: true });
    expect(environment).toBeNull();
    expect(report.listed).toContainEqual({ path: '/project/src/main.py', kind: 'file', sizeBytes: 9, omittedBy: null });
    expect(report.listed).toContainEqual({
      path: '/project/src/__pycache__/main.pyc',
      kind: 'file',
      sizeBytes: 5000,
      omittedBy: 'python-bytecode',
    });
    expect(await failureOf(server().client.environments.get('dry'))).toMatchObject({ code: 'environment_not_found' });
  });
});

describe('packing rules', () => {
  test('refuse setuid files and capabilities unless they are allowed, and warn of state that changes', async () => {
    await using sandbox = await server().sandbox();
    await run(
      sandbox,
      `mkdir -p /opt/x /var/lib/mysql; cp /bin/true /opt/x/suid; chmod 4755 /opt/x/suid; echo 1 > /opt/x/app.pid; echo d > /var/lib/mysql/ibdata1
       python3 -c "import socket; socket.socket(socket.AF_UNIX).bind('/opt/x/s.sock')"
       cp /bin/true /opt/x/cap; python3 -c "import os; os.setxattr('/opt/x/cap', 'security.capability', bytes.fromhex('0100000200040000000000000000000000000000'))"`,
    );
    const refused = await failureOf(sandbox.packDiff({ name: 'rules' }));
    expect(refused).toMatchObject({ code: 'pack_refused', details: { rules: ['setuid', 'capabilities'] } });
    const { report } = await sandbox.packDiff({ name: 'rules', allow: ['setuid', 'capabilities'] });
    expect(['setuid', 'capabilities', 'mutable-state', 'sockets'].map((rule) => levelOf(report, rule))).toEqual([
      'warn',
      'warn',
      'warn',
      'warn',
    ]);
    await using other = await server().sandbox({ workspace: 'rules' });
    const script = `stat -c %a /opt/x/suid; python3 -c "import os; print(os.getxattr('/opt/x/cap', 'security.capability').hex())"; ls /opt/x`;
    expect(await run(other, script)).toBe('4755\n0100000200040000000000000000000000000000\napp.pid\ncap\nsuid\n');
  });

  test('bound size and entries by what the caller says', async () => {
    await using sandbox = await server().sandbox();
    await run(
      sandbox,
      'mkdir /many; for i in $(seq 50); do echo x > /many/$i; done; head -c 100000 /dev/urandom > /big',
    );
    const size = await failureOf(sandbox.packDiff({ name: 'large', limits: { maxBytes: 50_000 } }));
    expect(size).toMatchObject({ code: 'pack_refused', details: { rules: ['size'] } });
    const entries = await failureOf(sandbox.packDiff({ name: 'large', limits: { maxEntries: 20 } }));
    expect(entries).toMatchObject({ code: 'pack_refused', details: { rules: ['entries'] } });
  });
});

describe('what cannot be packed', () => {
  test('is refused with the code that says why', async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, 'echo 1 > /srv/file');
    await sandbox.packDiff({ name: 'taken', kind: 'toolkit' });
    const { client } = server();
    const ended = await server().sandbox();
    await ended.stop();
    const agent = server().connect({ apiKey: (await client.keys.create('agent')).key });
    const reader = server().connect({ apiKey: (await client.keys.create('reader', { readOnly: true })).key });
    const cases: readonly (readonly [string, () => Promise<unknown>, object])[] = [
      ['a sandbox that has ended', () => ended.packDiff({ name: 'x' }), { code: 'sandbox_ended' }],
      [
        'a name of another kind',
        () => sandbox.packDiff({ name: 'taken' }),
        { code: 'invalid_argument', details: { field: 'name', kind: 'toolkit' } },
      ],
      ['a name that is none', () => sandbox.packDiff({ name: '../x' }), { code: 'invalid_argument' }],
      ['an unknown kind', () => sandbox.packDiff({ name: 'x', kind: 'layer' as never }), { code: 'invalid_argument' }],
      [
        'a path that is not absolute',
        () => sandbox.packDiff({ name: 'x', paths: ['srv'] }),
        { code: 'invalid_argument', details: { field: 'paths' } },
      ],
      [
        'a path outside',
        () => sandbox.packDiff({ name: 'x', paths: ['/srv/../../etc'] }),
        { code: 'invalid_argument', details: { field: 'paths' } },
      ],
      [
        'an unknown rule',
        () => sandbox.packDiff({ name: 'x', allow: ['devices' as never] }),
        { code: 'invalid_argument' },
      ],
      [
        'the key of an agent',
        async () => (await agent.getSandbox(sandbox.sandboxId)).packDiff({ name: 'x' }),
        { code: 'permission_denied' },
      ],
      [
        'a key that only reads',
        async () => (await reader.getSandbox(sandbox.sandboxId)).packDiff({ name: 'x' }),
        { code: 'permission_denied' },
      ],
    ];
    for (const [what, work, expected] of cases) expect(await failureOf(work()), what).toMatchObject(expected);
    const answer = await fetch(`${server().endpoint}/v1/sandboxes/${await server().idOfEdge(0)}/pack`, {
      method: 'POST',
      headers: { authorization: `Bearer ${server().apiKey}`, 'content-type': 'application/json' },
      body: JSON.stringify({ name: 'x' }),
    });
    expect([answer.status, await answer.json()]).toMatchObject([404, { error: { code: 'sandbox_not_found' } }]);
    expect(await failureOf(client.environments.get('x'))).toMatchObject({ code: 'environment_not_found' });
  });

  test('is not done twice under one idempotency key', async () => {
    await using sandbox = await server().sandbox();
    await run(sandbox, 'echo 1 > /srv/file');
    const idempotencyKey = new SystemRandom().base36(12);
    const first = await sandbox.packDiff({ name: 'once', idempotencyKey });
    await run(sandbox, 'echo 2 > /srv/other');
    const again = await sandbox.packDiff({ name: 'once', idempotencyKey });
    expect(again.environment?.image.layers).toEqual(first.environment?.image.layers);
    expect(again.frozenMs).toBe(first.frozenMs);
    expect(await failureOf(sandbox.packDiff({ name: 'twice', idempotencyKey }))).toMatchObject({
      code: 'idempotency_conflict',
    });
  });
});

test('the command packs, and lists with --dry-run', async () => {
  await using sandbox = await server().sandbox();
  await run(sandbox, 'mkdir /project; echo 1 > /project/file; echo secret > /root/.bash_history');
  const dry = await server().cli(['pack', sandbox.sandboxId, '--as', 'by-cli', '--dry-run']);
  expect(dry).toMatchObject({ exitCode: 0 });
  expect(String(dry.stdout)).toMatch(/2 B +file +\/project\/file/);
  expect(String(dry.stdout)).toMatch(/shell-history +\/root\/\.bash_history/);
  const done = await server().cli([
    'pack',
    sandbox.sandboxId,
    '--as',
    'by-cli',
    '--kind',
    'workspace',
    '--path',
    '/project',
  ]);
  expect([done.exitCode, String(done.stdout)]).toEqual([0, 'by-cli\n']);
});

test('an environment that was packed comes back from an exported image as it was', { timeout: 180_000 }, async () => {
  await using sandbox = await server().sandbox();
  await run(
    sandbox,
    `rm -r /etc/init.d; mkdir -p /srv/site; echo hello > /srv/site/index; ln /srv/site/index /srv/site/again; chown 1000:33 /srv/site/index
     rm -rf /usr/local/lib; mkdir /usr/local/lib; echo n > /usr/local/lib/new; python3 -c "open(b'/srv/\\xe9\\n', 'w')"`,
  );
  await sandbox.packDiff({ name: 'exported', kind: 'environment' });
  const directory = await mkdtemp(join(tmpdir(), 'dsec-e2e-export-'));
  try {
    const archive = join(directory, 'image.tar');
    const exported = await server().cli(['env', 'export', 'exported', '--output', archive]);
    expect(exported.exitCode, exported.stderrTail).toBe(0);
    expect(String(exported.stdout)).toMatch(/^sha256:[0-9a-f]{64}\n$/);
    const again = await server().cli(['env', 'export', 'exported', '--output', archive]);
    expect([again.exitCode, again.stderrTail]).toEqual([1, expect.stringContaining('file_exists')]);
    const imported = await server().cli(['env', 'build', archive, '--name', 'imported']);
    expect(imported.exitCode, imported.stderrTail).toBe(0);
  } finally {
    await rm(directory, { recursive: true });
  }
  const list = `cd /; find etc usr srv opt home root var -xdev -print0 | LC_ALL=C sort -z | xargs -0 stat -c '%N %f %u:%g %Y %s' | grep -v "'etc/host\\|'etc/resolv" | grep -v directory
    find srv etc -xdev -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum | grep -v ' etc/host'`;
  await using one = await server().client.runContainer({ containerImage: 'exported', memoryLimitMb: 256 });
  await using two = await server().client.runContainer({ containerImage: 'imported', memoryLimitMb: 256 });
  const withoutDirectories = (text: string): string[] =>
    text.split('\n').filter((line) => !/' 4[0-9a-f]{3} /.test(line));
  expect(withoutDirectories(await run(two, list))).toEqual(withoutDirectories(await run(one, list)));
});

const HOSTILE = String.raw`
import os, socket
os.makedirs('/h'); os.chdir('/h')
os.symlink('/etc/shadow', 'link'); os.symlink('../../../../../..', 'up'); os.symlink('/proc/self/root', 'root')
for name in (b'new\nline', b'\xff\xfe', b'a b', b'.wh.x', b'.wh..wh..opq', b"quote'\"", b'\x1b[31m', b'=', b'-rf', b'\\'):
    open(name, 'w').write('x')
os.setxattr(b'new\nline', b'user.\xff\n', b'v\0')
socket.socket(socket.AF_UNIX).bind('sock'); os.mkfifo('pipe')
for depth in range(200):
    os.mkdir('d' * 10); os.chdir('d' * 10)
open('deepest', 'w').write('x')
`;

describe('a hostile sandbox', () => {
  test('cannot make a pack read, follow or name anything outside, whatever its files are called', async () => {
    await using sandbox = await server().sandbox();
    await sandbox.files.write('/tmp/hostile.py', HOSTILE);
    await run(sandbox, 'python3 /tmp/hostile.py');
    const { report } = await sandbox.packDiff({ name: 'hostile' });
    expect(levelOf(report, 'image-names')).toBe('warn');
    expect(JSON.stringify(report)).not.toContain('shadow');
    await using other = await server().sandbox({ workspace: 'hostile' });
    const seen = String.raw`import os
os.chdir('/h')
print(sorted(os.listdir(b'.')), os.readlink('link'), os.getxattr(b'new\nline', b'user.\xff\n'))
print(sum(len(files) for _, _, files in os.walk('.')))`;
    const { stdout, stderr } = await other.exec(['python3', '-c', seen]);
    expect(stderr).toBe('');
    expect(stdout).toBe(
      String.raw`[b'\x1b[31m', b'-rf', b'.wh..wh..opq', b'.wh.x', b'=', b'\\', b'a b', b'dddddddddd', b'link', b'new\nline', b'pipe', b'quote\'"', b'root', b'up', b'\xff\xfe'] /etc/shadow b'v\x00'
13
`,
    );
  });

  test('with paths that no program could name is refused, and goes on', async () => {
    await using sandbox = await server().sandbox();
    await run(
      sandbox,
      `python3 -c "
import os
os.chdir('/srv')
for depth in range(40): os.mkdir('d' * 200); os.chdir('d' * 200)"`,
    );
    const refused = await failureOf(sandbox.packDiff({ name: 'deep' }));
    expect(refused).toMatchObject({ code: 'archive_unsafe', details: { stage: 'read' } });
    expect(await run(sandbox, 'echo alive')).toBe('alive\n');
  });

  test('that writes all the time is packed as it was at one moment', async () => {
    await using sandbox = await server().sandbox();
    // Two files that are always changed together, the second first: at no moment is the first ahead.
    await run(sandbox, 'mkdir /w; echo 0 > /w/one; echo 0 > /w/two');
    const writer = await sandbox.execDetached([
      'python3',
      '-c',
      `import os
n = 0
while True:
    n += 1
    for name in ('two', 'one'):
        with open('/w/.new', 'w') as f: f.write(str(n))
        os.rename('/w/.new', '/w/' + name)`,
    ]);
    expect(writer.state).toBe('running');
    for (const name of ['moving:1', 'moving:2']) {
      const { frozenMs } = await sandbox.packDiff({ name, paths: ['/w'] });
      expect(frozenMs).toBeLessThan(2000);
      await using other = await server().sandbox({ workspace: name });
      const [one = 0, two = 0] = (await run(other, 'cat /w/one; echo; cat /w/two')).split('\n').map(Number);
      expect(two - one).toBeGreaterThanOrEqual(0);
      expect(two - one).toBeLessThanOrEqual(1);
    }
  });

  test('with 100,000 small files is packed in bounded time', { timeout: 180_000 }, async () => {
    await using sandbox = await server().sandbox({ diskLimitMb: 2048 });
    await run(
      sandbox,
      `python3 -c "
import os
for d in range(100):
    os.makedirs(f'/many/{d}')
    for f in range(1000): open(f'/many/{d}/{f}', 'w').write(str(f))"`,
    );
    const { report } = await sandbox.packDiff({ name: 'many', timeoutMs: 120_000 });
    expect(report.entries).toBe(100_102);
    await using other = await server().sandbox({ workspace: 'many' });
    expect(await run(other, 'find /many -type f | wc -l; cat /many/99/999')).toBe('100000\n999');
  });

  test('whose sandbox is stopped while it is packed leaves nothing', async () => {
    const sandbox = await server().sandbox();
    await run(sandbox, 'head -c 200000000 /dev/urandom > /srv/big');
    const packing = sandbox.packDiff({ name: 'stopped' });
    const outcome = await Promise.allSettled([packing, sandbox.stop()]);
    // What was fixed before the end is whole; what was not is refused.
    if (outcome[0].status === 'rejected')
      expect(['sandbox_ended', 'sandbox_not_ready', 'sandbox_not_found', 'connection_lost']).toContain(
        (outcome[0].reason as { code: string }).code,
      );
    else expect(outcome[0].value.report.bytes).toBe(200_000_000);
    await waitFor(
      'no snapshot',
      async () => !(await readdir(join(server().data, 'volume/u'))).some((name) => name.startsWith('changes-')),
    );
  });
});
