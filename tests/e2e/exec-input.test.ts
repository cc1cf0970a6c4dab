/** What goes into a command: stdin, scripts, arguments, variables. */
import { createHash, randomBytes } from 'node:crypto';
import { expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { running } from './in-sandbox.ts';
import { useServer } from './started-server.ts';
import { timed } from './wait-for.ts';

const server = useServer();

const PROMPT_MS = 5000;
const sha256 = (bytes: Uint8Array): string => createHash('sha256').update(bytes).digest('hex');

test('X07 a heredoc works alone and in a session, and leaves the session usable', async () => {
  await using sandbox = await server().sandbox();
  const heredoc = "cat <<'EOF' > /tmp/f\nhello\nEOF\n";
  expect((await sandbox.runShell(heredoc, { timeoutMs: PROMPT_MS })).exitCode).toBe(0);
  expect(await sandbox.files.readText('/tmp/f')).toBe('hello\n');
  await sandbox.files.remove('/tmp/f');
  await using session = await sandbox.session();
  for (const script of [heredoc, 'cat <<A; cat <<B\na\nA\nb\nB', 'cat <<-"E"\n\t$x\n\tE\ncat <<<one']) {
    expect((await session.run(script, { timeoutMs: PROMPT_MS })).exitCode).toBe(0);
    expect((await session.run('echo ok', { timeoutMs: PROMPT_MS })).stdout).toBe('ok\n');
  }
  expect(await sandbox.files.readText('/tmp/f')).toBe('hello\n');
});

const unfinished = [
  'cat <<EOF\nabc',
  "echo 'x",
  'echo "x',
  'echo `date',
  'echo $(date',
  'if true; then',
  'f() {',
  '(',
  'echo x \\',
  'case x in',
  'echo ${x',
];

test.for(unfinished)(
  'X08 the unfinished script %j ends, alone and in a session, and the next command works',
  async (script) => {
    await using sandbox = await server().sandbox();
    const alone = await sandbox.runShell(script, { timeoutMs: PROMPT_MS });
    expect(alone.isTimedOut).toBe(false);
    expect((await sandbox.runShell('echo ok')).stdout).toBe('ok\n');
    await using session = await sandbox.session();
    const within = await session.run(script, { timeoutMs: PROMPT_MS });
    expect(within.isTimedOut).toBe(false);
    expect((await session.run('echo ok', { timeoutMs: PROMPT_MS })).stdout).toBe('ok\n');
  },
);

test('X10 commands that fall back to reading stdin meet its end at once, unless stdin was asked for', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const expected = [
    ['cat; echo done', 'done\n'],
    ['wc -c', '0\n'],
    ['grep -c x; echo done', '0\ndone\n'],
    ['read -r x; echo "$?"', '1\n'],
    ['cat - | wc -c', '0\n'],
    ['sort; bash -s; echo done', 'done\n'],
    ['python3 -c "import sys; print(len(sys.stdin.read()))"', '0\n'],
  ] as const;
  for (const [script, stdout] of expected) {
    expect(await sandbox.runShell(script, { timeoutMs: PROMPT_MS })).toMatchObject({ stdout, isTimedOut: false });
    expect(await session.run(script, { timeoutMs: PROMPT_MS })).toMatchObject({ stdout, isTimedOut: false });
  }
  expect((await sandbox.exec(['cat'], { timeoutMs: PROMPT_MS })).exitCode).toBe(0);
});

test('X11 stdin is byte-exact and ends when it is ended', async () => {
  await using sandbox = await server().sandbox();
  const count = sandbox.exec(['wc', '-c'], { stdin: 'open' });
  await count.stdin.write(Uint8Array.of(0, 1, 2));
  await count.stdin.write(Uint8Array.of(0xff));
  await count.stdin.end();
  expect((await count).stdout.trim()).toBe('4');
  const every = Uint8Array.from({ length: 65_536 }, (_, index) => index & 0xff);
  const echo = await sandbox.exec(['cat'], { input: every });
  expect(Buffer.compare(echo.stdoutBytes, every)).toBe(0);
  expect((await sandbox.exec(['wc', '-c'], { input: '' })).stdout.trim()).toBe('0');
});

test('X11 a command answers to what it is sent before its stdin ends', async () => {
  await using sandbox = await server().sandbox();
  const exec = sandbox.runShell('while read -r line; do echo "<$line>"; done; echo end', { stdin: 'open' });
  const lines = exec.lines();
  for (const word of ['one', 'two', 'three']) {
    await exec.stdin.write(`${word}\n`);
    expect((await lines.next()).value).toEqual({ stream: 'stdout', line: `<${word}>` });
  }
  await exec.stdin.end();
  expect((await lines.next()).value).toEqual({ stream: 'stdout', line: 'end' });
  expect((await exec).exitCode).toBe(0);
  expect((await failureOf(exec.stdin.write('more'))).code).toBe('stdin_closed');
});

test('X11 megabytes of stdin arrive whole, and a command that reads only some of them still ends', async () => {
  await using sandbox = await server().sandbox();
  const bytes = randomBytes(20_000_000);
  async function* chunks(): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < bytes.length; at += 65_537) yield await Promise.resolve(bytes.subarray(at, at + 65_537));
  }
  const whole = await sandbox.exec(['sha256sum'], { input: chunks() });
  expect(whole.stdout.slice(0, 64)).toBe(sha256(bytes));
  const some = await sandbox.exec(['head', '-c', '3'], { input: chunks(), timeoutMs: 20_000 });
  expect(some.isTimedOut).toBe(false);
  expect(Buffer.compare(some.stdoutBytes, bytes.subarray(0, 3))).toBe(0);
});

test('X11 writing to the stdin of a command that has ended, or that has none, is a typed error', async () => {
  await using sandbox = await server().sandbox();
  const ended = sandbox.exec(['true'], { stdin: 'open' });
  await ended;
  expect((await failureOf(ended.stdin.write('x'))).code).toBe('stdin_closed');
  const without = sandbox.exec(['sleep', '50']);
  const { execId } = await without.started();
  expect((await failureOf(sandbox.attach(execId).stdin.write('x'))).code).toBe('stdin_closed');
  await without.kill();
});

test('X13 a script of 200 kB and one of 2 MB run', async () => {
  await using sandbox = await server().sandbox();
  for (const size of [200_000, 2_000_000]) {
    const filler = `: ${'x'.repeat(95)}\n`;
    const script = `${filler.repeat(Math.floor(size / filler.length))}echo end`;
    const { value: result } = await timed(() => sandbox.runShell(script, { timeoutMs: 20_000 }));
    expect(result.stdout).toBe('end\n');
    await using session = await sandbox.session();
    expect((await session.run(script, { timeoutMs: 20_000 })).stdout).toBe('end\n');
    expect((await session.run('echo ok')).stdout).toBe('ok\n');
  }
});

test('X13 arguments of a megabyte arrive, and more than the kernel takes is a named error at once', async () => {
  await using sandbox = await server().sandbox();
  const megabyte = Array.from({ length: 16 }, (_, index) => String.fromCharCode(97 + index).repeat(65_536));
  const result = await sandbox.exec(['bash', '-c', 'printf %s "$@" | sha256sum', 'bash', ...megabyte]);
  expect(result.stdout.slice(0, 64)).toBe(sha256(Buffer.from(megabyte.join(''))));
  const tooLong: readonly (readonly string[])[] = [
    ['true', 'x'.repeat(131_072)],
    ['true', ...Array.from({ length: 24 }, () => 'x'.repeat(131_000))],
  ];
  for (const argv of tooLong) {
    const { value: error, tookMs } = await timed(() => failureOf(sandbox.exec(argv)));
    expect(error.code).toBe('argv_too_long');
    expect(error.retryable).toBe(false);
    expect(tookMs).toBeLessThan(1000);
  }
  const { value: error, tookMs } = await timed(() => failureOf(sandbox.runShell('x'.repeat(5_000_000))));
  expect(['request_too_large', 'invalid_argument']).toContain(error.code);
  expect(tookMs).toBeLessThan(1000);
});

test('X14 forty variables of 5 kB and one of 100 kB arrive whole', async () => {
  await using sandbox = await server().sandbox();
  const many = Object.fromEntries(
    Array.from({ length: 40 }, (_, index) => [`V${index}`, `${index}-`.repeat(5000).slice(0, 5000)]),
  );
  const env = { ...many, BIG: 'y'.repeat(100_000) };
  expect(await variables(sandbox, env)).toMatchObject(env);
  await using session = await sandbox.session({ env });
  const result = await session.run('env -0 | sha256sum; printf %s "$BIG" | wc -c; printf %s "$V39" | wc -c');
  expect(result.stdout.split('\n').slice(1, 3)).toEqual(['100000', '5000']);
  await using made = await server().sandbox({ env });
  expect(await variables(made, {})).toMatchObject(env);
});

const awkward = {
  QUOTES: 'a\nb\'"$(id)`x`',
  EQUALS: '=a=b=',
  UNICODE: 'ünï ☕ 🤣 \u0301',
  SPACES: '  lead and trail  ',
  NEWLINES: '\n\n',
  BACKSLASH: '\\n\\0\\',
  EMPTY: '',
  CONTROL: '\u0001\u001b[31m\u007f\t\r',
  SEMICOLON: '; touch /tmp/pwn; #',
  'WITH.DOT-dash': 'x',
};

test('X15 values of variables are passed byte for byte, from the create, the command and the session', async () => {
  await using sandbox = await server().sandbox({ env: { ...awkward, OVERRIDDEN: 'create' } });
  expect(await variables(sandbox, { OVERRIDDEN: 'exec' })).toMatchObject({ ...awkward, OVERRIDDEN: 'exec' });
  expect(await variables(sandbox, awkward)).toMatchObject({ ...awkward, OVERRIDDEN: 'create' });
  await using session = await sandbox.session({ env: { ...awkward, OVERRIDDEN: 'session' } });
  const { stdoutBytes } = await session.run('env -0');
  // A shell passes on only what has a name that it could assign.
  const { 'WITH.DOT-dash': _, ...assignable } = awkward;
  expect(parsed(stdoutBytes)).toMatchObject({ ...assignable, OVERRIDDEN: 'session' });
  expect(await sandbox.files.exists('/tmp/pwn')).toBe(false);
});

const badKeys = [
  'A;touch /tmp/pwn',
  '$(touch /tmp/pwn)',
  'A B',
  'A=B',
  '',
  '1A',
  'A\nB',
  '`x`',
  'Ä',
  'BASH_FUNC_ls%%',
  'A\u0000B',
];

test.for(badKeys)('X15 the key %j is refused wherever a variable can be set, and runs nothing', async (key) => {
  await using sandbox = await server().sandbox();
  const env = { [key]: 'x' };
  for (const start of [
    () => sandbox.exec(['true'], { env }),
    () => sandbox.runShell('true', { env }),
    () => sandbox.execDetached(['true'], { env }),
    () => sandbox.session({ env }),
    () => sandbox.pty({ env }),
    () => server().sandbox({ env }),
  ]) {
    const error = await failureOf(start());
    expect(error.code).toBe('invalid_argument');
    expect(error.status).toBe(400);
  }
  expect(await sandbox.files.exists('/tmp/pwn')).toBe(false);
  expect(await running(sandbox, 'touch')).toEqual([]);
  expect(await sandbox.execs()).toEqual([]);
});

test('X15 a value with NUL, which no variable can hold, is refused', async () => {
  await using sandbox = await server().sandbox();
  expect((await failureOf(sandbox.exec(['true'], { env: { A: 'x\u0000y' } }))).code).toBe('invalid_argument');
  expect((await failureOf(sandbox.exec(['true', 'x\u0000y']))).code).toBe('invalid_argument');
});

/** What a program sees of these variables. */
async function variables(
  sandbox: Sandbox,
  env: Readonly<Record<string, string>>,
): Promise<Readonly<Record<string, string>>> {
  return parsed((await sandbox.exec(['env', '-0'], { env })).stdoutBytes);
}

function parsed(bytes: Uint8Array): Readonly<Record<string, string>> {
  const entries = Buffer.from(bytes)
    .toString()
    .split('\0')
    .filter((entry) => entry !== '');
  return Object.fromEntries(
    entries.map((entry) => [entry.slice(0, entry.indexOf('=')), entry.slice(entry.indexOf('=') + 1)]),
  );
}
