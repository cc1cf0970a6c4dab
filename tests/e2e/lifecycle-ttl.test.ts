/** When a sandbox ends by itself, and when it does not. */
import { limits } from '@dsec/contract';
import { expect, test } from 'vitest';
import type { Sandbox } from '@dsec/libdsec';
import { failureOf } from './failure-of.ts';
import { rawJson } from './raw-http.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const MARGIN_MS = 3000;

test('L01 a TTL beyond the maximum is refused and the maximum named, and one within it is kept to the second', async () => {
  const beyond = limits.ttlSeconds.maximum + 1;
  await using sandbox = await server().sandbox({ ttl: 3600, ttlRunningStop: 1000 });
  for (const attempt of [
    () => server().sandbox({ ttl: beyond }),
    () => server().sandbox({ ttlRunningStop: beyond }),
    () => sandbox.setTtl(beyond),
    () => sandbox.setIdleTimeout(beyond),
  ]) {
    const error = await failureOf(attempt());
    expect([error.code, error.status]).toEqual(['invalid_argument', 400]);
    expect(JSON.stringify(error.toWire())).toContain(String(limits.ttlSeconds.maximum));
  }
  const info = await sandbox.info();
  expect(info.ttlEndsAtMs - info.createdAtMs).toBe(3_600_000);
  expect(info.ttlRunningStopSeconds).toBe(1000);
  const patched = await sandbox.setTtl(limits.ttlSeconds.maximum);
  expect(Math.abs(patched.ttlEndsAtMs - clock.now() - limits.ttlSeconds.maximum * 1000)).toBeLessThan(MARGIN_MS);
  const extended = await sandbox.setTtl(60, { extendOnly: true });
  expect(extended.ttlEndsAtMs).toBe(patched.ttlEndsAtMs);
  const shortened = await sandbox.setTtl(60);
  expect(Math.abs(shortened.ttlEndsAtMs - clock.now() - 60_000)).toBeLessThan(MARGIN_MS);
  expect((await sandbox.setIdleTimeout(77)).ttlRunningStopSeconds).toBe(77);
});

test.for([0, -1, -0.5, 0.5, 1e12, 2 ** 53, null, '60', [60], true, {}])(
  'L03 the time %j means the same on every path: it is refused with the field named',
  async (value) => {
    await using sandbox = await server().sandbox();
    const { environment } = server();
    const before = await sandbox.info();
    for (const field of ['ttlSeconds', 'ttlRunningStopSeconds']) {
      const answers = [
        await rawJson(server(), '/sandboxes', { environment, [field]: value }),
        await rawJson(server(), '/sandboxes/bulk', { count: 1, template: { environment, [field]: value } }),
        await rawJson(server(), `/sandboxes/${sandbox.sandboxId}`, { [field]: value }, { method: 'PATCH' }),
      ];
      for (const answer of answers) {
        const body = await answer.text();
        expect([answer.status, body]).toEqual([400, expect.stringContaining(field)]);
        expect(body).toContain('invalid_argument');
      }
    }
    const exec = await rawJson(server(), `/sandboxes/${sandbox.sandboxId}/execs`, { argv: ['true'], timeoutMs: value });
    expect(exec.status).toBe(400);
    const sign = { operation: 'read', path: '/etc/passwd', expiresInSeconds: value };
    for (const [route, body] of [
      ['files/sign', sign],
      ['ports/80/token', { expiresInSeconds: value }],
    ] as const) {
      expect((await rawJson(server(), `/sandboxes/${sandbox.sandboxId}/${route}`, body)).status).toBe(400);
    }
    expect(await sandbox.execs()).toEqual([]);
    expect(await sandbox.info()).toMatchObject({ state: 'running', ttlEndsAtMs: before.ttlEndsAtMs });
  },
);

test.for([0, -1, 1.5, Number.NaN, Number.POSITIVE_INFINITY, 2 ** 53])(
  'L03 the SDK refuses the time %d wherever one is given, and makes nothing of it',
  async (value) => {
    await using sandbox = await server().sandbox();
    for (const attempt of [
      () => server().sandbox({ ttl: value }),
      () => server().sandbox({ ttlRunningStop: value }),
      () => sandbox.setTtl(value),
      () => sandbox.setIdleTimeout(value),
      () => sandbox.exec(['true'], { timeoutMs: value }),
      () => sandbox.files.signedUrl('/etc/passwd', { expiresInSeconds: value }),
      () => sandbox.ports.token(80, { expiresInSeconds: value }),
    ]) {
      expect((await failureOf(attempt())).code).toBe('invalid_argument');
    }
    expect(await sandbox.execs()).toEqual([]);
  },
);

test('L03 a time that is not given is the default that is documented', async () => {
  await using sandbox = await server().sandbox();
  const info = await sandbox.info();
  expect(info.ttlEndsAtMs - info.createdAtMs).toBe(limits.ttlSeconds.default * 1000);
  expect(info.ttlRunningStopSeconds).toBe(limits.ttlRunningStopSeconds.default);
});

test('L04 a client that connects later changes neither when a sandbox ends nor how', async () => {
  const sandbox = await server().sandbox({ ttl: 4, ttlRunningStop: 100 });
  const { ttlEndsAtMs } = sandbox.initialInfo;
  const other = await server().connect().getSandbox(sandbox.sandboxId);
  const exec = other.exec(['sleep', '60']);
  await exec.started();
  other.attach((await exec.started()).execId);
  expect((await other.info()).ttlEndsAtMs).toBe(ttlEndsAtMs);
  const ended = await isOver(sandbox);
  expect([ended.state, ended.cause?.kind, ended.cause?.infrastructure]).toEqual(['stopped', 'ttl', false]);
  expect(Math.abs((ended.endedAtMs ?? 0) - ttlEndsAtMs)).toBeLessThan(MARGIN_MS);
  const failure = await failureOf(exec);
  expect(['sandbox_ended', 'sandbox_failed']).toContain(failure.code);
  expect((await failureOf(other.exec(['true']))).details['cause']).toBe('ttl');
});

/** What keeps a sandbox busy; each leaves it alone after about three seconds. */
const busy: readonly (readonly [string, (sandbox: Sandbox) => Promise<unknown>])[] = [
  ['a silent command', async (sandbox) => sandbox.exec(['sleep', '3'])],
  [
    'a command that nobody follows',
    async (sandbox) => {
      const { execId } = await sandbox.execDetached(['sleep', '3']);
      await clockPassed(3000);
      await sandbox.attach(execId);
    },
  ],
  ['a call in a session', async (sandbox) => (await sandbox.session()).run('sleep 3')],
  [
    'an attached terminal',
    async (sandbox) => {
      const pty = await sandbox.pty({ argv: ['sh'] });
      await clockPassed(3000);
      await pty.kill('SIGKILL');
      await pty.exited();
    },
  ],
  [
    'an open watch',
    async (sandbox) => {
      await using watch = await sandbox.files.watch('/tmp');
      await clockPassed(3000);
      void watch;
    },
  ],
  [
    'an upload that comes slowly',
    async (sandbox) => {
      async function* slow(): AsyncGenerator<Uint8Array> {
        yield Uint8Array.of(1);
        await clockPassed(3000);
        yield Uint8Array.of(2);
      }
      await sandbox.files.write('/tmp/f', slow());
    },
  ],
  [
    'a command that is only written to',
    async (sandbox) => {
      const exec = sandbox.exec(['cat'], { stdin: 'open' });
      await exec.stdin.write('x');
      await clockPassed(3000);
      await exec.stdin.end();
      await exec;
    },
  ],
  [
    'a download that is taken slowly',
    async (sandbox) => {
      await sandbox.runShell('head -c 50000000 /dev/zero > /tmp/f');
      const stream = await sandbox.files.readStream('/tmp/f');
      const reader = stream.getReader();
      await reader.read();
      await clockPassed(3000);
      await reader.cancel();
    },
  ],
];

test.for(busy)('L06 %s keeps a sandbox from its idle timeout, which counts from its end', async ([, keepBusy]) => {
  const sandbox = await server().sandbox({ ttlRunningStop: 1 });
  const working = keepBusy(sandbox);
  await waitFor('it to be busy', async () => (await sandbox.info()).idleEndsAtMs === null);
  await working;
  const freeAtMs = clock.now();
  const ended = await isOver(sandbox);
  expect([ended.state, ended.cause?.kind, ended.cause?.infrastructure]).toEqual(['stopped', 'idle', false]);
  expect((ended.endedAtMs ?? 0) - freeAtMs).toBeGreaterThan(500);
});

test('L06 polling, an open but idle session and a background child are no activity', async () => {
  const polled = await server().sandbox({ ttlRunningStop: 1 });
  const withSession = await server().sandbox({ ttlRunningStop: 1 });
  await withSession.session();
  const withChild = await server().sandbox({ ttlRunningStop: 1 });
  await withChild.runShell('sleep 100 &');
  // Looking at their state is itself the polling.
  for (const sandbox of [polled, withSession, withChild]) {
    expect((await isOver(sandbox)).cause?.kind).toBe('idle');
  }
});

test('L06 activity in time keeps a sandbox alive for as long as it goes on', async () => {
  const sandbox = await server().sandbox({ ttlRunningStop: 2 });
  const endMs = clock.monotonicMs() + 5000;
  while (clock.monotonicMs() < endMs) {
    expect((await sandbox.exec(['true'])).exitCode).toBe(0);
    await clockPassed(400);
  }
  expect((await isOver(sandbox)).cause?.kind).toBe('idle');
});

/** The passing of time is what these cases are about; there is nothing else to wait for. */
const clockPassed = (ms: number): Promise<void> => clock.sleep(ms);

async function isOver(sandbox: Sandbox): Promise<Awaited<ReturnType<Sandbox['info']>>> {
  return waitFor(
    'the end of the sandbox',
    async () => {
      const info = await sandbox.info();
      return (info.state === 'stopped' || info.state === 'failed') && info;
    },
    15_000,
  );
}
