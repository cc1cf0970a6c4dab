/** Streams of every kind that break: none of them looks like one that ended well, and none leaves anything behind. */
import { access, mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterAll, beforeAll, expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { CuttingProxy } from './cutting-proxy.ts';
import { failureOf } from './failure-of.ts';
import { aetherPid } from './host-side.ts';
import { killExec, running } from './in-sandbox.ts';
import { processFacts } from './process-facts.ts';
import { rawExec, rawRequest } from './raw-http.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const NO_RETRIES = { budgetMs: 0, firstDelayMs: 1000 };
/** More than is carried before it breaks. */
const SPARSE = 'mkdir -p /root/tree /root/watched; truncate -s 4G /root/tree/big';
const PARTS = 20;

let local = '';
beforeAll(async () => {
  local = await mkdtemp(join(tmpdir(), 'dsec-e2e-broken-'));
});
afterAll(() => rm(local, { recursive: true }));

/** Something that goes on until it is broken, and has begun. */
interface UnderWay {
  readonly outcome: Promise<unknown>;
}

async function reading(stream: ReadableStream<Uint8Array>): Promise<UnderWay> {
  const reader = stream.getReader();
  await reader.read();
  const rest = async (): Promise<void> => {
    while (!(await reader.read()).done);
  };
  return { outcome: rest() };
}

const kinds: readonly (readonly [string, (sandbox: Sandbox) => Promise<UnderWay>])[] = [
  [
    'a command',
    async (sandbox) => {
      const exec = sandbox.runShell('yes');
      await waitFor('output', () => exec.offsets.stdout > 100_000);
      return { outcome: Promise.resolve(exec) };
    },
  ],
  [
    'a silent command',
    async (sandbox) => {
      const exec = sandbox.exec(['sleep', '1000']);
      await exec.started();
      return { outcome: Promise.resolve(exec) };
    },
  ],
  [
    'a command that is written to',
    async (sandbox) => {
      const exec = sandbox.exec(['cat'], { stdin: 'open' });
      await exec.stdin.write('x');
      await waitFor('the echo', () => exec.offsets.stdout === 1);
      return { outcome: Promise.resolve(exec) };
    },
  ],
  [
    'a command that was attached to',
    async (sandbox) => {
      const { execId } = await sandbox.execDetached(['yes']);
      const exec = sandbox.attach(execId);
      await exec.started();
      return { outcome: Promise.resolve(exec) };
    },
  ],
  [
    'a call in a session',
    async (sandbox) => {
      const exec = (await sandbox.session()).run('yes');
      await waitFor('output', () => exec.offsets.stdout > 100_000);
      return { outcome: Promise.resolve(exec) };
    },
  ],
  [
    'a terminal',
    async (sandbox) => {
      const pty = await sandbox.pty({ argv: ['yes'] });
      return { outcome: pty.exited() };
    },
  ],
  ['a download', async (sandbox) => reading(await sandbox.files.readStream('/root/tree/big'))],
  [
    'an upload whose source is slow',
    async (sandbox) => {
      const sent = Promise.withResolvers<undefined>();
      async function* endless(): AsyncGenerator<Uint8Array> {
        for (let part = 0; part < PARTS; part += 1) yield await Promise.resolve(new Uint8Array(65_536));
        sent.resolve(undefined);
        await new Promise(() => undefined);
      }
      const outcome = sandbox.files.write('/root/up', endless());
      await sent.promise;
      return { outcome };
    },
  ],
  [
    'a directory on its way out',
    async (sandbox) => {
      const target = await mkdtemp(join(local, 'tree-'));
      const outcome = sandbox.files.downloadDirectory('/root/tree', target);
      await waitFor('its first file', async () => {
        await access(join(target, 'big'));
        return true;
      });
      return { outcome };
    },
  ],
];

/** Begins all of them, breaks them, and returns the code with which each ended. */
async function codesOf(sandbox: Sandbox, breakAll: () => void | Promise<void>): Promise<readonly [string, string][]> {
  const begun: { readonly kind: string; readonly failure: ReturnType<typeof failureOf> }[] = [];
  for (const [kind, begin] of kinds) {
    const failure = failureOf((await begin(sandbox)).outcome);
    failure.catch(() => undefined);
    begun.push({ kind, failure });
  }
  await breakAll();
  return Promise.all(begun.map(async ({ kind, failure }) => [kind, (await failure).code] as [string, string]));
}

test('X20 a broken connection is a transport error for every kind of stream', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(SPARSE);
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
  const codes = await codesOf(await client.getSandbox(sandbox.sandboxId), () => proxy.cut());
  expect(codes).toEqual(kinds.map(([kind]) => [kind, 'connection_lost']));
  await expectOnlyCommands(sandbox);
});

test('X20 a killed edge is a transport error for every kind of stream', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(SPARSE);
  const client = server().connect({ retry: NO_RETRIES });
  const codes = await codesOf(await client.getSandbox(sandbox.sandboxId), () => server().kill('edge'));
  expect(codes.filter(([, code]) => !['connection_lost', 'unavailable'].includes(code))).toEqual([]);
  await expectOnlyCommands(sandbox);
});

test('X20, L13 a sandbox that dies is told to every kind of stream within ten seconds', {
  timeout: 60_000,
}, async () => {
  const sandbox = await server().sandbox();
  await sandbox.runShell(SPARSE);
  const pid = await aetherPid(server(), sandbox.sandboxId);
  let diedAtMs = 0;
  const codes = await codesOf(sandbox, () => {
    diedAtMs = clock.monotonicMs();
    process.kill(pid, 'SIGKILL');
  });
  expect(clock.monotonicMs() - diedAtMs).toBeLessThan(10_000);
  expect(codes.filter(([, code]) => !['sandbox_failed', 'sandbox_ended', 'connection_lost'].includes(code))).toEqual(
    [],
  );
  await server().expectNothingOf(sandbox.sandboxId);
});

test('X20, F12 a watch whose connection is cut or whose edge is killed goes on, and says that it may have missed something', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(SPARSE);
  await using proxy = await CuttingProxy.start(server().endpoint);
  const through = await server().connect({ endpoint: proxy.endpoint }).getSandbox(sandbox.sandboxId);
  await using watch = await through.files.watch('/root/watched');
  const events = watch[Symbol.asyncIterator]();
  const breakings = [async () => Promise.resolve(proxy.cut()), async () => server().kill('edge')];
  for (const [index, breaking] of breakings.entries()) {
    const next = events.next();
    await breaking();
    expect((await next).value).toEqual({ kind: 'overflow' });
    await sandbox.files.write(`/root/watched/${index}`, '');
    const paths = [`/root/watched/${index}`];
    for (;;) {
      const { value, done } = await events.next();
      expect(done).not.toBe(true);
      if (value !== undefined && 'path' in value && paths.includes(value.path)) break;
    }
  }
});

test('X20 an answer that is cut at any byte is never taken for a whole one', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const content = '0123456789'.repeat(20_000);
  await sandbox.files.write('/root/d/f', content);
  await using proxy = await CuttingProxy.start(server().endpoint, { isPlain: true });
  const through = await server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES }).getSandbox(sandbox.sandboxId);
  const cuts = [1, 17, 90, 200, 400, 1000, 60_000, 199_000];
  for (const at of cuts) {
    const calls: readonly (() => Promise<unknown>)[] = [
      () => through.files.read('/root/d/f'),
      () => through.files.downloadDirectory('/root/d', join(local, 'cut')),
      () => through.exec(['cat', '/root/d/f']).then((result) => result),
    ];
    for (const call of calls) {
      proxy.cutAfter(at);
      expect((await failureOf(call())).code).toBe('connection_lost');
    }
    // As a client without the SDK sees it.
    proxy.cutAfter(at);
    const raw = rawExec({ endpoint: proxy.endpoint, apiKey: server().apiKey }, sandbox.sandboxId, {
      argv: ['cat', '/root/d/f'],
    }).then((answer) => answer.json());
    expect(
      await raw.then(
        () => 'whole',
        () => 'broken',
      ),
    ).toBe('broken');
  }
  await using patient = server().connect({ endpoint: proxy.endpoint });
  const again = await patient.getSandbox(sandbox.sandboxId);
  for (const at of cuts) {
    proxy.cutAfter(at);
    expect(await again.files.readText('/root/d/f')).toBe(content);
  }
});

test('X20 the connection of many commands is cut at any byte, and no command is taken for whole', {
  timeout: 60_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const print = ['sh', '-c', 'printf %0200000d 7'];
  for (const at of [1, 11, 12, 13, 60, 200, 60_000, 199_000]) {
    const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
    const through = await client.getSandbox(sandbox.sandboxId);
    for (let warm = 0; warm < 3; warm += 1) await through.exec(['true']);
    proxy.cutAfter(at);
    expect((await failureOf(through.exec(print).then((result) => result))).code).toBe('connection_lost');
    await client.close();
    const patient = server().connect({ endpoint: proxy.endpoint });
    const again = await patient.getSandbox(sandbox.sandboxId);
    for (let warm = 0; warm < 3; warm += 1) await again.exec(['true']);
    proxy.cutAfter(at);
    const { stdout, stdoutDropped } = await again.exec(print);
    expect([stdout.length, stdoutDropped]).toEqual([200_000, 0]);
    await patient.close();
  }
});

test('X36 clients that go away in the middle of streams of every kind cost no descriptors', {
  timeout: 120_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await sandbox.runShell(SPARSE);
  await using proxy = await CuttingProxy.start(server().endpoint);
  const pids = [...(await server().daemons()), await aetherPid(server(), sandbox.sandboxId)];
  const round = async (): Promise<void> => {
    const client = server().connect({ endpoint: proxy.endpoint, retry: NO_RETRIES });
    await codesOf(await client.getSandbox(sandbox.sandboxId), () => proxy.cut());
    await client.close();
    for (const { execId, state } of await sandbox.execs()) if (state === 'running') await killExec(sandbox, execId);
    for (const { sessionId } of await sandbox.sessions()) {
      const path = `/sandboxes/${sandbox.sandboxId}/sessions/${sessionId}`;
      expect((await rawRequest(server(), path, { method: 'DELETE' })).status).toBeLessThan(300);
    }
  };
  await round();
  const before = await Promise.all(pids.map((pid) => processFacts(pid)));
  for (let index = 0; index < 10; index += 1) await round();
  await waitFor('descriptors to be as before', async () => {
    const after = await Promise.all(pids.map((pid) => processFacts(pid)));
    return after.every(({ openFiles }, index) => openFiles <= (before[index]?.openFiles ?? 0) + 4);
  });
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
});

/** What ran goes on; of what was uploaded nothing is there, not even a part. */
async function expectOnlyCommands(sandbox: Sandbox): Promise<void> {
  expect((await running(sandbox, 'yes')).length).toBeGreaterThanOrEqual(4);
  await waitFor('the part of the upload to be gone', async () =>
    (await sandbox.files.list('/root')).entries.every(({ name }) => name !== 'up' && !name.startsWith('.dsec')),
  );
  for (const { execId, state } of await sandbox.execs()) if (state === 'running') await killExec(sandbox, execId);
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
}
