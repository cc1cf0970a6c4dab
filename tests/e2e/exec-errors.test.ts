/** Why a command did not start, and as whom it runs. */
import { expect, test } from 'vitest';
import type { ExecOptions } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { timed } from './wait-for.ts';

const server = useServer();

const script = (path: string, first: string): string => `printf '${first}' > ${path}; chmod 755 ${path}`;

const failing: readonly (readonly [
  string,
  { argv: readonly string[]; options?: ExecOptions; prepare?: string; code: string; detail: [string, string] },
])[] = [
  ['a program that is not there', { argv: ['nope'], code: 'command_not_found', detail: ['program', 'nope'] }],
  ['a path that is not there', { argv: ['/no/such'], code: 'command_not_found', detail: ['program', '/no/such'] }],
  [
    'a path through a file',
    { argv: ['/etc/passwd/x'], code: 'command_not_found', detail: ['program', '/etc/passwd/x'] },
  ],
  [
    'a file without x bit',
    { argv: ['/etc/passwd'], code: 'command_not_executable', detail: ['program', '/etc/passwd'] },
  ],
  ['a directory', { argv: ['/etc'], code: 'command_not_executable', detail: ['program', '/etc'] }],
  [
    'a script whose interpreter is missing',
    {
      argv: ['/tmp/s'],
      prepare: script('/tmp/s', '#!/no/such/interpreter\\n'),
      code: 'command_not_found',
      detail: ['program', '/tmp/s'],
    },
  ],
  [
    'a cwd that is not there',
    { argv: ['true'], options: { cwd: '/nonexistent' }, code: 'cwd_not_found', detail: ['cwd', '/nonexistent'] },
  ],
  [
    'a cwd that is a file',
    { argv: ['true'], options: { cwd: '/etc/passwd' }, code: 'cwd_not_found', detail: ['cwd', '/etc/passwd'] },
  ],
  [
    'a cwd that the user may not enter',
    {
      argv: ['true'],
      options: { cwd: '/tmp/closed', user: '1000' },
      prepare: 'mkdir -m 700 /tmp/closed',
      code: 'cwd_not_found',
      detail: ['cwd', '/tmp/closed'],
    },
  ],
  [
    'an unknown user',
    { argv: ['true'], options: { user: 'nouser' }, code: 'user_not_found', detail: ['user', 'nouser'] },
  ],
  [
    'an unknown group',
    { argv: ['true'], options: { user: 'root:nogroup-x' }, code: 'user_not_found', detail: ['user', 'root:nogroup-x'] },
  ],
];

test.for(failing)(
  'X25 %s is a typed error that names it, at once and the same however it is started',
  async ([, fault]) => {
    await using sandbox = await server().sandbox();
    if (fault.prepare !== undefined) expect((await sandbox.runShell(fault.prepare)).exitCode).toBe(0);
    for (const start of [
      () => sandbox.exec(fault.argv, fault.options),
      () => sandbox.execDetached(fault.argv, fault.options),
      () => sandbox.pty({ argv: fault.argv, ...fault.options }),
    ]) {
      const { value: error, tookMs } = await timed(() => failureOf(start()));
      const [name, value] = fault.detail;
      expect(error.code).toBe(fault.code);
      expect(error.details[name]).toBe(value);
      expect(error.message).toContain(value);
      expect(error.status).toBe(422);
      expect(error.infrastructure).toBe(false);
      expect(tookMs).toBeLessThan(2000);
    }
  },
);

test('X25 a shell reports the same faults by its exit codes, and names the culprit', async () => {
  await using sandbox = await server().sandbox();
  const missing = await sandbox.runShell('nope');
  expect(missing.exitCode).toBe(127);
  expect(missing.stderr).toContain('nope');
  const notExecutable = await sandbox.runShell('/etc/passwd');
  expect(notExecutable.exitCode).toBe(126);
  expect(notExecutable.stderr).toContain('/etc/passwd');
});

test('X25 a script without a first line that names its interpreter is run by sh, as execvp does', async () => {
  await using sandbox = await server().sandbox();
  await sandbox.files.write('/tmp/s', 'echo "ran by sh, $1"', { mode: 0o755 });
  expect((await sandbox.exec(['/tmp/s', 'x'])).stdout).toBe('ran by sh, x\n');
});

test('X25 exit codes and signals of programs are passed on as they are', async () => {
  await using sandbox = await server().sandbox();
  for (const code of [0, 1, 2, 126, 127, 128, 255])
    expect((await sandbox.runShell(`exit ${code}`)).exitCode).toBe(code);
  for (const signal of [1, 6, 9, 11, 15]) {
    const result = await sandbox.runShell(`kill -${signal} $$`);
    expect([result.signal, result.exitCode]).toEqual([signal, 128 + signal]);
  }
});

const defaults: readonly (readonly [
  string,
  { readonly initUser?: string; readonly workdir?: string },
  string,
  string,
])[] = [
  ['a working directory that is not there', { workdir: '/nonexistent' }, 'cwd_not_found', '/nonexistent'],
  ['a working directory that is a file', { workdir: '/etc/passwd' }, 'cwd_not_found', '/etc/passwd'],
  ['a user that is not there', { initUser: 'nouser' }, 'user_not_found', 'nouser'],
];

test.for(defaults)(
  'X25 a create with %s is no riddle: whatever uses it names it, and what says otherwise works',
  async ([, args, code, culprit]) => {
    await using sandbox = await server().sandbox(args);
    for (const start of [
      () => sandbox.exec(['true']),
      () => sandbox.runShell('true'),
      () => sandbox.execDetached(['true']),
      () => sandbox.session(),
      () => sandbox.pty(),
      ...(code === 'user_not_found' ? [() => sandbox.files.read('/etc/passwd')] : []),
    ]) {
      const error = await failureOf(start());
      expect([error.code, error.status]).toEqual([code, 422]);
      expect(error.message).toContain(culprit);
    }
    expect([await sandbox.execs(), await sandbox.sessions()]).toEqual([[], []]);
    expect((await sandbox.exec(['pwd'], { cwd: '/tmp', user: 'root' })).stdout).toBe('/tmp\n');
  },
);

const who = 'echo "$(id -u):$(id -g)"; pwd; echo "$HOME"; echo "$USER"';

test.for([
  ['root', '0:0', '/root', 'root'],
  ['user', '1000:1000', '/home/user', 'user'],
  ['1000', '1000:1000', '/home/user', 'user'],
  ['1000:1000', '1000:1000', '/home/user', 'user'],
  ['user:root', '1000:0', '/home/user', 'user'],
  ['12345', '12345:12345', '/', '12345'],
  ['12345:54321', '12345:54321', '/', '12345'],
  ['0:0', '0:0', '/root', 'root'],
] as const)(
  'X26 as user %s a command has these ids, the cwd that was asked for, and a home that exists',
  async ([user, ids, home, name]) => {
    await using sandbox = await server().sandbox();
    const expected = `${ids}\n/tmp\n${home}\n${name}\n`;
    for (const login of [false, true]) {
      const result = await sandbox.runShell(who, { user, cwd: '/tmp', login });
      expect(result.stdout).toBe(expected);
      expect(result.exitCode).toBe(0);
    }
    expect((await sandbox.exec(['bash', '-c', who], { user, cwd: '/tmp' })).stdout).toBe(expected);
    await using session = await sandbox.session({ user, cwd: '/tmp' });
    expect((await session.run(who)).stdout).toBe(expected);
    expect((await sandbox.exec(['test', '-d', home])).exitCode).toBe(0);
  },
);

test('X26 the user and working directory of the create hold for commands that name none', async () => {
  await using sandbox = await server().sandbox({ initUser: 'user', workdir: '/var' });
  expect((await sandbox.runShell(who)).stdout).toBe('1000:1000\n/var\n/home/user\nuser\n');
  expect((await sandbox.runShell(who, { user: 'root', cwd: '/' })).stdout).toBe('0:0\n/\n/root\nroot\n');
});

test('X26 what a user starts has no more rights than the user', async () => {
  await using sandbox = await server().sandbox();
  const result = await sandbox.runShell('cat /etc/shadow; touch /etc/x; kill -0 1; grep CapEff /proc/self/status', {
    user: '12345',
  });
  expect(result.stdout).toMatch(/CapEff:\s+0+$/m);
  expect(await sandbox.files.exists('/etc/x')).toBe(false);
});

test.for([
  'bash -ic "echo hi"',
  'bash -lic "echo hi"',
  'bash -c "set -m; (echo hi) & wait"',
  'bash -ic "cat </dev/tty; echo hi"',
])('X27 %j, which wants job control, ends with and without a terminal', async (command) => {
  await using sandbox = await server().sandbox();
  const plain = await sandbox.runShell(command, { timeoutMs: 10_000 });
  expect(plain.isTimedOut).toBe(false);
  expect(plain.stdout).toContain('hi');
  await using session = await sandbox.session();
  const within = await session.run(command, { timeoutMs: 10_000 });
  expect(within.isTimedOut).toBe(false);
  expect(within.stdout).toContain('hi');
  if (command.includes('/dev/tty')) return;
  const pty = await sandbox.pty({ argv: ['bash', '-c', command], timeoutMs: 10_000 });
  const result = await pty.exited();
  expect(result.isTimedOut).toBe(false);
  expect(result.exitCode).toBe(0);
  expect(result.stdout).toContain('hi');
});
