/** What a command leaves behind when it ends, when its client goes, and when it is ended. */
import { expect, test } from 'vitest';
import { PlatformError } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { fileAppears, gone, killExec, running } from './in-sandbox.ts';
import { useServer } from './started-server.ts';
import { timed, waitFor } from './wait-for.ts';

const server = useServer();

const RETURNS_WITHIN_MS = 2000;
const KILLED_WITHIN_MS = 5000;

test.for([
  ['both its streams', 'sleep 20 & echo STARTED'],
  ['only its stderr', '(sleep 20 >/dev/null) & echo STARTED'],
  ['only its stdout', '(sleep 20 2>/dev/null) & echo STARTED'],
  ['its stdout under another number', 'sleep 20 3>&1 >/dev/null 2>&1 & echo STARTED'],
  ['both, in a session of its own', 'setsid sleep 20 & echo STARTED'],
  ['both, as an orphan', '(sleep 20 &); echo STARTED'],
  ['a pipe to another child', 'sleep 20 | cat & echo STARTED'],
])('X01 a command returns at once although a silent background child holds %s', async ([, script = '']) => {
  await using sandbox = await server().sandbox();
  for (const run of [() => sandbox.runShell(script), () => sandbox.exec(['bash', '-c', script])]) {
    const { value: result, tookMs } = await timed(run);
    expect(result.exitCode).toBe(0);
    expect(result.stdout).toBe('STARTED\n');
    expect(tookMs).toBeLessThan(RETURNS_WITHIN_MS);
    expect(await running(sandbox, 'sleep 20')).not.toEqual([]);
  }
});

test('X01 a call in a session returns at once although a background child holds its output', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const { value: result, tookMs } = await timed(() => session.run('sleep 20 & echo STARTED'));
  expect(result.stdout).toBe('STARTED\n');
  expect(tookMs).toBeLessThan(RETURNS_WITHIN_MS);
  expect(await running(sandbox, 'sleep 20')).not.toEqual([]);
  expect((await session.run('jobs -r | wc -l')).stdout.trim()).toBe('1');
});

test('X01 a background child that writes after the command has ended meets no SIGPIPE and no full pipe', async () => {
  await using sandbox = await server().sandbox();
  const late = `while [ ! -e /tmp/go ]; do sleep 0.05; done
    echo LATE && echo LATE >&2 && head -c 3000000 /dev/zero && echo wrote > /tmp/late`;
  const result = await sandbox.runShell(`(${late}) & echo STARTED`);
  expect(result.stdout).toBe('STARTED\n');
  await sandbox.files.write('/tmp/go', '');
  expect(await fileAppears(sandbox, '/tmp/late')).toBe('wrote\n');
});

test.for([
  ['with nohup and setsid', (daemon: string) => `setsid nohup ${daemon} >/tmp/l 2>&1 </dev/null &`],
  ['with only an ampersand', (daemon: string) => `${daemon} &`],
  ['as an orphan', (daemon: string) => `(${daemon} >/tmp/l 2>&1 &)`],
] as const)('X02 a server started %s outlives its command, its client and other commands', async ([, start]) => {
  const daemon = `python3 -c '
import socket
s = socket.socket(); s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1); s.bind(("127.0.0.1", 8000)); s.listen()
while True:
    c, _ = s.accept(); c.recv(4096); c.sendall(b"HTTP/1.0 200 OK\\r\\n\\r\\nserved"); c.close()'`;
  const other = server().connect();
  const sandbox = await server().sandbox();
  await using _ = sandbox;
  const first = await other.getSandbox(sandbox.sandboxId);
  expect((await first.runShell(start(daemon))).exitCode).toBe(0);
  await other.close();
  // Commands that come, end and are killed in between belong to none of it.
  const fleeting = sandbox.exec(['sleep', '100']);
  await fleeting.kill();
  await fleeting;
  const answer = await waitFor('an answer of the server', async () => {
    const ask = 'exec 3<>/dev/tcp/127.0.0.1/8000 && printf "GET / HTTP/1.0\\r\\n\\r\\n" >&3 && cat <&3';
    const { exitCode, stdout } = await sandbox.runShell(ask);
    return exitCode === 0 && stdout;
  });
  expect(answer).toContain('200 OK');
  expect(answer).toContain('served');
});

const stubborn = [
  ['a child of the shell', 'sleep 301 & sleep 302'],
  ['what ignores SIGTERM', `trap '' TERM HUP INT; sleep 301 & sleep 302`],
  ['a child in its own session', 'setsid sleep 301 & sleep 302'],
  ['an orphan', '(sleep 301 &); sleep 302'],
  ['a grandchild under shells', `bash -c 'bash -c "sleep 301; true"; true' & sleep 302`],
  ['what is stopped', 'sleep 301 & kill -STOP $!; sleep 302'],
  ['who forks on', 'while :; do sleep 301 & sleep 0.02; done'],
] as const;

test.for(stubborn)('X04 the timeout of a command ends %s too', async ([, script]) => {
  await using sandbox = await server().sandbox({ pidsLimit: 512 });
  const { value: result, tookMs } = await timed(() => sandbox.runShell(script, { timeoutMs: 1000 }));
  expect(result.isTimedOut).toBe(true);
  expect(result.signal).toBe(9);
  expect(result.exitCode).toBe(137);
  expect(tookMs).toBeLessThan(KILLED_WITHIN_MS);
  await gone(sandbox, 'sleep 30');
});

test('X04 the timeout of a terminal and of a command that nobody follows ends all that they started', async () => {
  await using sandbox = await server().sandbox();
  const script = `trap '' TERM HUP INT; setsid sleep 301 & sleep 302`;
  const pty = await sandbox.pty({ argv: ['bash', '-c', script], timeoutMs: 1000 });
  const { execId } = await sandbox.execDetached(['bash', '-c', script], { timeoutMs: 1000 });
  const { value: results, tookMs } = await timed(() => Promise.all([pty.exited(), sandbox.attach(execId)]));
  for (const result of results) expect([result.isTimedOut, result.signal]).toEqual([true, 9]);
  expect(tookMs).toBeLessThan(KILLED_WITHIN_MS);
  await gone(sandbox, 'sleep 30');
});

test('X04 the timeout of a call in a session ends what it started and leaves the session usable or gone, never hung', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const outcome = await session.run('sleep 301 & sleep 302', { timeoutMs: 1000 }).then(
    (result) => result.isTimedOut,
    (error: unknown) => PlatformError.is(error) && error.code === 'session_lost',
  );
  expect(outcome).toBe(true);
  await gone(sandbox, 'sleep 302');
  const next = await session.run('echo ok', { timeoutMs: 5000 }).then(
    (result) => result.stdout,
    (error: unknown) => (PlatformError.is(error) ? error.code : String(error)),
  );
  expect(['ok\n', 'session_not_found']).toContain(next);
});

test('X05 a command that the client sees time out runs no longer', async () => {
  await using sandbox = await server().sandbox();
  const { value: result, tookMs } = await timed(() => sandbox.exec(['sleep', '60'], { timeoutMs: 1000 }));
  expect(result.isTimedOut).toBe(true);
  expect(tookMs).toBeLessThan(KILLED_WITHIN_MS);
  expect(await running(sandbox, 'sleep 60')).toEqual([]);
  expect((await sandbox.execStatus(result.execId)).state).toBe('exited');
});

test('X05 a timeout is kept by the sandbox although its client is gone', async () => {
  await using sandbox = await server().sandbox();
  const other = server().connect();
  const exec = (await other.getSandbox(sandbox.sandboxId)).exec(['sleep', '60'], { timeoutMs: 1500 });
  const { execId } = await exec.detach();
  await other.close();
  const status = await waitFor('its end', async () => {
    const now = await sandbox.execStatus(execId);
    return now.state === 'exited' && now;
  });
  expect(status.timedOut).toBe(true);
  expect(await running(sandbox, 'sleep 60')).toEqual([]);
});

test('X05 a command that its client aborts runs no longer', async () => {
  await using sandbox = await server().sandbox();
  const abort = new AbortController();
  const exec = sandbox.runShell('sleep 60 & sleep 61', { signal: abort.signal });
  await exec.started();
  abort.abort();
  expect((await failureOf(exec)).code).toBe('cancelled');
  await gone(sandbox, 'sleep 6');
});

test.for([
  ['children of a shell', "bash -c 'sleep 99 & sleep 99'"],
  ['a child in its own session', 'setsid sleep 99 & sleep 99'],
  ['who ignores everything else', `trap '' TERM HUP INT; sleep 99 & sleep 99 & wait; wait`],
] as const)('X35 a client kills a command with %s, and a second kill does nothing', async ([, script]) => {
  await using sandbox = await server().sandbox();
  const exec = sandbox.runShell(script);
  await waitFor('both children', async () => (await running(sandbox, 'sleep 99')).length >= 2);
  expect(await exec.kill()).toBe(true);
  const result = await exec;
  expect(result.signal).toBe(9);
  await gone(sandbox, 'sleep 99');
  expect(await exec.kill()).toBe(false);
  expect(await killExec(sandbox, result.execId)).toBe(false);
});

test('X35 a client kills a call in a session with its children, and the session is usable or gone, never hung', async () => {
  await using sandbox = await server().sandbox();
  await using session = await sandbox.session();
  const call = session.run('sleep 99 & sleep 99');
  await waitFor('both children', async () => (await running(sandbox, 'sleep 99')).length >= 2);
  expect(await call.kill()).toBe(true);
  await call.then(undefined, (error: unknown) => {
    if (!PlatformError.is(error) || error.code !== 'session_lost') throw error;
  });
  await gone(sandbox, 'sleep 99');
  expect(await call.kill()).toBe(false);
  const next = await session.run('echo ok', { timeoutMs: 5000 }).then(
    (result) => result.stdout,
    (error: unknown) => (PlatformError.is(error) ? error.code : String(error)),
  );
  expect(['ok\n', 'session_not_found']).toContain(next);
});

test('X35 a signal reaches the whole tree, or only the first process when that is asked for', async () => {
  await using sandbox = await server().sandbox();
  const script = `trap 'echo first' USR1; bash -c 'trap "echo second" USR1; touch /tmp/ready; while :; do sleep 0.05; done' &
    while :; do sleep 0.05; done`;
  const exec = sandbox.runShell(script);
  await fileAppears(sandbox, '/tmp/ready');
  await exec.kill('SIGUSR1', { only: 'first' });
  const heard = await seenLines(exec.lines(), (lines) => lines.includes('first'));
  expect(heard).not.toContain('second');
  const { execId } = await exec.started();
  await exec.kill('SIGUSR1');
  await waitFor('both to have heard', async () => {
    const { stdoutBytes } = await sandbox.execStatus(execId);
    return stdoutBytes === 'first\nfirst\nsecond\n'.length;
  });
  await exec.kill();
});

test('X38 a command that does not start leaves no record, no process and no session behind', async () => {
  await using sandbox = await server().sandbox();
  const before = await commandCount(sandbox.processes());
  const fails: readonly (readonly [string, () => PromiseLike<unknown>])[] = [
    ['command_not_found', () => sandbox.execDetached(['nope'])],
    ['command_not_found', () => sandbox.exec(['nope'])],
    ['command_not_executable', () => sandbox.execDetached(['/etc/passwd'])],
    ['cwd_not_found', () => sandbox.execDetached(['true'], { cwd: '/nonexistent' })],
    ['user_not_found', () => sandbox.execDetached(['true'], { user: 'nouser' })],
    ['command_not_found', () => sandbox.pty({ argv: ['nope'] })],
    ['cwd_not_found', () => sandbox.session({ cwd: '/nonexistent' })],
    ['user_not_found', () => sandbox.session({ user: 'nouser' })],
  ];
  for (const [code, start] of fails) expect((await failureOf(start())).code).toBe(code);
  expect(await sandbox.execs()).toEqual([]);
  expect(await sandbox.sessions()).toEqual([]);
  expect(await commandCount(sandbox.processes())).toBe(before);
});

async function commandCount(processes: Promise<readonly unknown[]>): Promise<number> {
  return (await processes).length;
}

/** Lines until there are enough of them. */
async function seenLines(
  lines: AsyncIterable<{ readonly line: string }>,
  isEnough: (lines: readonly string[]) => boolean,
): Promise<readonly string[]> {
  const seen: string[] = [];
  for await (const { line } of lines) {
    seen.push(line);
    if (isEnough(seen)) break;
  }
  return seen;
}
