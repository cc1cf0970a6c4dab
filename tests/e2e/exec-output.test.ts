/** What comes out of a command: bytes as they are, and as much as it likes. */
import { createHash } from 'node:crypto';
import { expect, test } from 'vitest';
import { CuttingProxy } from './cutting-proxy.ts';
import { GrowthWatch, MAX_GROWTH_BYTES } from './growth-watch.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const FLOOD_BYTES = 500 * 1024 * 1024;

test('X17 output that is not UTF-8 is there byte for byte, and as text with replacements', async () => {
  await using sandbox = await server().sandbox();
  const result = await sandbox.runShell(String.raw`printf '\xff\xfe\x00ok'; printf '\xc3' >&2`);
  expect(result.exitCode).toBe(0);
  expect([...result.stdoutBytes]).toEqual([0xff, 0xfe, 0x00, 0x6f, 0x6b]);
  expect(result.stdout).toBe('\ufffd\ufffd\u0000ok');
  expect([...result.stderrBytes]).toEqual([0xc3]);
  expect(result.stderr).toBe('\ufffd');
});

test('X17 a megabyte of noise on both streams arrives byte for byte', async () => {
  await using sandbox = await server().sandbox();
  const result = await sandbox.runShell(
    'head -c 1048576 /dev/urandom | tee /tmp/out; head -c 1048576 /dev/urandom | tee /tmp/err >&2; cd /tmp; sha256sum out err > sums',
  );
  expect(result.exitCode).toBe(0);
  const sums = (await sandbox.files.readText('/tmp/sums')).split('\n');
  for (const [index, bytes] of [result.stdoutBytes, result.stderrBytes].entries()) {
    expect(sums[index]?.slice(0, 64)).toBe(createHash('sha256').update(bytes).digest('hex'));
  }
});

test('X17 characters that are cut between two pieces are put together', async () => {
  await using sandbox = await server().sandbox();
  const text = '☕🤣é'.repeat(60_000);
  const result = await sandbox.exec(['cat'], { input: text });
  expect(result.stdout).toBe(text);
  const lines = sandbox.runShell(String.raw`printf '\xf0\x9f'; sleep 0.2; printf '\xa4\xa3\n'`).lines();
  expect((await lines.next()).value).toEqual({ stream: 'stdout', line: '🤣' });
});

test('X18 half a gigabyte of output passes with flat memory while other commands go on', {
  timeout: 120_000,
}, async () => {
  await using sandbox = await server().sandbox();
  await using growth = await GrowthWatch.start(server(), sandbox);
  const exec = sandbox.runShell('yes | head -c 500M', { maxOutputBytes: 100_000 });
  let total = 0;
  let others = 0;
  let other: Promise<void> | undefined;
  for await (const event of exec) {
    if (event.kind === 'gap') total += event.toByte - event.fromByte;
    else total += event.data.length;
    other ??= sandbox
      .exec(['echo', 'hi'])
      .then((result) => {
        expect(result.stdout).toBe('hi\n');
        others += 1;
      })
      .finally(() => {
        other = undefined;
      });
  }
  await other;
  const result = await exec;
  expect(total).toBe(FLOOD_BYTES);
  expect(others).toBeGreaterThan(0);
  expect(result.exitCode).toBe(0);
  expect(result.stdout).toMatch(/^(y\n)+$/);
  expect(result.stdoutBytes.length).toBe(100_000);
  expect(result.stdoutDropped).toBe(FLOOD_BYTES - 100_000);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
});

test('X18 a client that stops reading holds back nobody else, costs no memory, and in the end not even its command', async () => {
  await using sandbox = await server().sandbox();
  await using growth = await GrowthWatch.start(server(), sandbox);
  await using proxy = await CuttingProxy.start(server().endpoint);
  const client = server().connect({ endpoint: proxy.endpoint });
  const stuck = (await client.getSandbox(sandbox.sandboxId)).runShell('yes | head -c 1G');
  const { execId } = await stuck.started();
  proxy.hold();
  const endMs = clock.monotonicMs() + 3000;
  let slowestMs = 0;
  while (clock.monotonicMs() < endMs) {
    const startedMs = clock.monotonicMs();
    expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
    slowestMs = Math.max(slowestMs, clock.monotonicMs() - startedMs);
  }
  expect(slowestMs).toBeLessThan(2000);
  // One that takes nothing loses the right to hold the command back.
  const status = await waitFor(
    'the end of the command',
    async () => {
      const now = await sandbox.execStatus(execId);
      return now.state === 'exited' && now;
    },
    25_000,
  );
  expect(status.exitCode).toBe(0);
  expect(status.stdoutBytes).toBe(1024 ** 3);
  expect(status.stdoutDropped).toBeGreaterThan(0);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
  proxy.cut();
});

test('X18 output without a reader is kept within its limit, first and last part, and the rest is counted', async () => {
  await using sandbox = await server().sandbox();
  const started = await sandbox.execDetached(['seq', '1', '2000000'], { outputLimitBytes: 65_536 });
  await waitFor('its end', async () => (await sandbox.execStatus(started.execId)).state === 'exited');
  const late = sandbox.attach(started.execId);
  const gaps: (readonly [number, number])[] = [];
  for await (const event of late) if (event.kind === 'gap') gaps.push([event.fromByte, event.toByte]);
  const result = await late;
  const whole = Array.from({ length: 2_000_000 }, (_, index) => `${index + 1}\n`).join('');
  expect(gaps.length).toBe(1);
  const [from, to] = gaps[0] ?? [0, 0];
  expect(result.stdout).toBe(whole.slice(0, from) + whole.slice(to));
  expect(result.stdoutDropped).toBe(to - from);
  expect(result.stdoutBytes.length).toBeGreaterThan(60_000);
  expect(result.stdoutBytes.length).toBeLessThanOrEqual(65_536);
  expect(result.status.stdoutBytes).toBe(whole.length);
});
