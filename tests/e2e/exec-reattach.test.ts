/** Commands and connections: these break, those go on. */
import { expect, test } from 'vitest';
import type { Exec } from '@dsec/libdsec';
import { CuttingProxy } from './cutting-proxy.ts';
import { failureOf } from './failure-of.ts';
import { fileAppears, killExec } from './in-sandbox.ts';
import { processFacts } from './process-facts.ts';
import { rawExec } from './raw-http.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer();

/** Prints a number a line, without end. */
const COUNTER = 'i=0; while :; do echo $i; i=$((i+1)); sleep 0.005; done';
const NO_RETRIES = { budgetMs: 0, firstDelayMs: 1000 };

test('X20 a stream that is cut is a transport error and never a success, and its command is attached to again', async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
  const exec = (await client.getSandbox(sandbox.sandboxId)).runShell(COUNTER);
  await waitFor('some output', () => exec.offsets.stdout > 50);
  proxy.cut();
  const error = await failureOf(exec);
  expect(error.code).toBe('connection_lost');
  expect([error.retryable, error.infrastructure]).toEqual([true, true]);
  const { execId } = await exec.started();
  expect((await sandbox.execStatus(execId)).state).toBe('running');
  const again = sandbox.attach(execId, { offsets: exec.offsets });
  await waitFor('more output', () => again.offsets.stdout > exec.offsets.stdout + 50);
  await again.kill();
  expect((await again).signal).toBe(9);
});

test('X20 however often a stream is cut, its reader gets all of the output once', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint });
  const exec = (await client.getSandbox(sandbox.sandboxId)).runShell(
    'for i in $(seq 1 60000); do echo $i; done; exit 7',
  );
  for (let cuts = 0; cuts < 15; cuts += 1) proxy.cutAfter(20_000 + cuts * 997);
  let received = 0;
  for await (const event of exec) {
    if (event.kind === 'gap') continue;
    received += event.data.length;
    proxy.cutAfter(1 + (received % 30_011));
  }
  const result = await exec;
  expect(result.exitCode).toBe(7);
  expect(result.stdoutDropped).toBe(0);
  expect(result.stdout).toBe(Array.from({ length: 60_000 }, (_, index) => `${index + 1}\n`).join(''));
});

test('X22 a command that is silent for longer than a proxy bears is not cut', { timeout: 90_000 }, async () => {
  await using sandbox = await server().sandbox();
  // The platform sends a sign of life every 15 seconds; public proxies cut after 60 and more.
  await using proxy = await CuttingProxy.start(server().endpoint, { silenceMs: 20_000 });
  const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
  const through = await client.getSandbox(sandbox.sandboxId);
  const detached = await through.execDetached(['sh', '-c', 'sleep 34; echo done']);
  const execs = [
    through.runShell('sleep 34; echo done'),
    through.exec(['sh', '-c', 'sleep 34; echo done']),
    (await through.session()).run('sleep 34; echo done'),
    through.attach(detached.execId),
  ];
  const pty = (await through.pty({ argv: ['sh', '-c', 'sleep 34; echo done'] })).exited();
  await using watch = await through.files.watch('/tmp');
  const event = watch[Symbol.asyncIterator]().next();
  for (const result of await Promise.all(execs)) expect([result.exitCode, result.stdout]).toEqual([0, 'done\n']);
  expect((await pty).stdout).toBe('done\r\n');
  await sandbox.files.write('/tmp/late', '');
  expect((await event).value).toMatchObject({ path: '/tmp/late' });
  // Only connections without a request on them may have been cut.
  expect(proxy.silenced).toBe(0);
});

test('X23 after its client is gone a command is attached to, from the start, from the middle and from the end', async () => {
  await using sandbox = await server().sandbox();
  const script = `echo first; until [ -e /tmp/go ]; do sleep 0.05; done
    head -c 8000 /dev/zero | tr '\\0' x; echo; for i in 1 2 3 4 5; do echo line $i; sleep 0.1; done; echo last`;
  const execId = await abandoned(sandbox.sandboxId, script);
  const fromStart = sandbox.attach(execId);
  const fromEnd = sandbox.attach(execId, { offsets: { stdout: 'first\n'.length } });
  await Promise.all([fromStart.started(), fromEnd.started()]);
  await sandbox.files.write('/tmp/go', '');
  const later = `${'x'.repeat(8000)}\nline 1\nline 2\nline 3\nline 4\nline 5\nlast\n`;
  expect((await fromEnd).stdout).toBe(later);
  expect((await fromStart).stdout).toBe(`first\n${later}`);
  const ended = await sandbox.attach(execId, { offsets: { stdout: 3 } });
  expect([ended.exitCode, ended.stdout]).toEqual([0, `st\n${later}`]);
});

test('X23 a command that ran on without readers gives later ones all that it wrote', async () => {
  await using sandbox = await server().sandbox();
  const execId = await abandoned(
    sandbox.sandboxId,
    'seq 1 20000; touch /tmp/written; until [ -e /tmp/go ]; do sleep 0.05; done; echo tail',
  );
  await fileAppears(sandbox, '/tmp/written');
  const readers = Array.from({ length: 5 }, () => sandbox.attach(execId));
  await Promise.all(readers.map((reader) => reader.started()));
  await sandbox.files.write('/tmp/go', '');
  const whole = `${Array.from({ length: 20_000 }, (_, index) => `${index + 1}\n`).join('')}tail\n`;
  for (const reader of readers) expect((await reader).stdout).toBe(whole);
});

test('X23 attaching to a command that is not there is a typed error', async () => {
  await using sandbox = await server().sandbox();
  for (const attempt of [() => sandbox.attach('nosuch'), () => sandbox.execStatus('nosuch')]) {
    expect((await failureOf(attempt())).code).toBe('exec_not_found');
  }
});

test('X34 a command whose request was cut after it was sent runs once, also when it is sent again', async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint });
  const through = await client.getSandbox(sandbox.sandboxId);
  const count = 20;
  for (let index = 0; index < count; index += 1) {
    // From before the first byte of the answer to behind the exit record.
    proxy.cutAfter(1 + index * 25);
    const result = await through.runShell(`echo ${index} >> /tmp/c; echo out ${index}`);
    expect([result.exitCode, result.stdout]).toEqual([0, `out ${index}\n`]);
  }
  expect(await sandbox.files.readText('/tmp/c')).toBe(
    Array.from({ length: count }, (_, index) => `${index}\n`).join(''),
  );
});

test('X34 the same idempotency key runs a command once, and another command under it is refused', async () => {
  await using sandbox = await server().sandbox();
  const ask = (shell: string, key: string): Promise<Response> =>
    rawExec(server(), sandbox.sandboxId, { shell }, { 'idempotency-key': key });
  const answers = await Promise.all(Array.from({ length: 8 }, () => ask('echo x >> /tmp/c; echo out', 'one')));
  const bodies = await Promise.all(answers.map(async (answer) => JSON.stringify(await answer.json())));
  expect(answers.map(({ status }) => status)).toEqual(answers.map(() => 200));
  expect(new Set(bodies).size).toBe(1);
  expect(bodies[0]).toContain('out\\n');
  expect(await sandbox.files.readText('/tmp/c')).toBe('x\n');
  const conflict = await ask('echo y >> /tmp/c', 'one');
  expect(conflict.status).toBe(409);
  expect(await conflict.json()).toMatchObject({ error: { code: 'idempotency_conflict' } });
  expect((await ask('echo z >> /tmp/c', 'two')).status).toBe(200);
  expect(await sandbox.files.readText('/tmp/c')).toBe('x\nz\n');
});

test('X34 an exec with the same key in another sandbox is another exec', async () => {
  await using one = await server().sandbox();
  await using other = await server().sandbox();
  for (const sandbox of [one, other]) {
    await sandbox.runShell('echo x >> /tmp/c', { idempotencyKey: 'shared' });
    expect(await sandbox.files.readText('/tmp/c')).toBe('x\n');
  }
});

test('X36 clients that go away in the middle of streams cost no descriptors, and the next command works', {
  timeout: 90_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const pids = await server().daemons();
  const round = async (): Promise<void> => {
    const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
    const through = await client.getSandbox(sandbox.sandboxId);
    const chatty: readonly Exec[] = [
      through.runShell('yes'),
      through.runShell('yes >&2'),
      through.exec(['cat'], { stdin: 'open' }),
      through.runShell('head -c 300000 /dev/zero'),
    ];
    await Promise.all(chatty.map((exec) => exec.started()));
    const at = proxy.fromServer + 200_000;
    await waitFor('output', () => proxy.fromServer > at);
    proxy.cut();
    const ids = await Promise.all(chatty.map(async (exec) => (await exec.started()).execId));
    await Promise.all(chatty.map((exec) => exec.then(undefined, () => undefined)));
    await client.close();
    await Promise.all(ids.map((execId) => killExec(sandbox, execId)));
  };
  await round();
  const before = await Promise.all(pids.map((pid) => processFacts(pid)));
  for (let index = 0; index < 25; index += 1) await round();
  await waitFor('descriptors to be as before', async () => {
    const after = await Promise.all(pids.map((pid) => processFacts(pid)));
    return after.every(({ openFiles }, index) => openFiles <= (before[index]?.openFiles ?? 0) + 4);
  });
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect((await sandbox.execs()).filter(({ state }) => state === 'running')).toEqual([]);
});

/** The id of a command that was started over a connection that is gone. */
async function abandoned(sandboxId: string, script: string): Promise<string> {
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
  const exec = (await client.getSandbox(sandboxId)).runShell(script);
  const { execId } = await exec.started();
  proxy.cut();
  await failureOf(exec);
  await client.close();
  return execId;
}
