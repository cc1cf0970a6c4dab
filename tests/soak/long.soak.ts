/** Cases in their full length. */
import { BytePattern, sha256Of } from '../e2e/byte-pattern.ts';
import { CuttingProxy } from '../e2e/cutting-proxy.ts';
import { GrowthWatch, MAX_GROWTH_BYTES } from '../e2e/growth-watch.ts';
import { killExec } from '../e2e/in-sandbox.ts';
import { processFacts } from '../e2e/process-facts.ts';
import { useServer } from '../e2e/started-server.ts';
import { clock, waitFor } from '../e2e/wait-for.ts';
import { expect, test } from 'vitest';

const server = useServer({ volumeSize: '24G' });

const GIB = 1024 ** 3;

test('F01 5 GB go in and out unaltered, through daemons that do not grow', async () => {
  await using sandbox = await server().sandbox({ diskLimitMb: 12_000, memoryLimitMb: 512 });
  await using growth = await GrowthWatch.start(server(), sandbox);
  const pattern = new BytePattern(5_000_000_000);
  const expected = await pattern.sha256();
  expect((await sandbox.files.write('/root/big', pattern.chunks())).sizeBytes).toBe(pattern.sizeBytes);
  expect((await sandbox.exec(['sha256sum', '/root/big'])).stdout.slice(0, 64)).toBe(expected);
  expect(await sha256Of(await sandbox.files.readStream('/root/big'))).toBe(expected);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
});

test('X18 two gigabytes of output pass with flat memory', async () => {
  await using sandbox = await server().sandbox();
  await using growth = await GrowthWatch.start(server(), sandbox);
  const result = await sandbox.runShell('yes | head -c 2G', { maxOutputBytes: 100_000 });
  expect([result.exitCode, result.status.stdoutBytes]).toEqual([0, 2 * GIB]);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
});

test('X22 a command that is silent for 700 seconds is not cut by a proxy that bears 60', async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint, { silenceMs: 60_000 });
  const client = server().connect({ endpoint: proxy.endpoint, retry: { budgetMs: 0 } });
  const result = await (await client.getSandbox(sandbox.sandboxId)).runShell('sleep 700; echo done');
  expect([result.exitCode, result.stdout]).toEqual([0, 'done\n']);
});

test('X36 a thousand clients that drop their connections at random leave the daemons as they were', async () => {
  await using sandbox = await server().sandbox();
  await using proxy = await CuttingProxy.start(server().endpoint);
  const pids = await server().daemons();
  const drop = async (index: number): Promise<void> => {
    const client = server().connect({ endpoint: proxy.endpoint, retry: { budgetMs: 0 } });
    const exec = (await client.getSandbox(sandbox.sandboxId)).runShell('yes');
    const { execId } = await exec.started();
    const target = proxy.fromServer + 1 + ((index * 7919) % 400_000);
    await waitFor('output', () => proxy.fromServer > target);
    proxy.cut();
    await exec.then(undefined, () => undefined);
    await client.close();
    await killExec(sandbox, execId);
  };
  await drop(0);
  const before = await Promise.all(pids.map((pid) => processFacts(pid)));
  for (let index = 1; index <= 1000; index += 1) await drop(index);
  expect(await server().daemons()).toEqual(pids);
  await waitFor('descriptors as before', async () => {
    const after = await Promise.all(pids.map((pid) => processFacts(pid)));
    return after.every(({ openFiles }, index) => openFiles <= (before[index]?.openFiles ?? 0) + 4);
  });
  const after = await Promise.all(pids.map((pid) => processFacts(pid)));
  for (const [index, { rssBytes }] of after.entries()) {
    expect(rssBytes - (before[index]?.rssBytes ?? 0)).toBeLessThan(MAX_GROWTH_BYTES);
  }
  expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
});

test('C04 three hundred connections that are idle for 4 to 35 seconds between calls meet no error in ten minutes', async () => {
  await using sandbox = await server().sandbox({ ttlRunningStop: 3600 });
  const endMs = clock.monotonicMs() + 600_000;
  let calls = 0;
  await Promise.all(
    Array.from({ length: 300 }, async (_, index) => {
      const client = server().connect({ retry: { budgetMs: 0 } });
      const own = await client.getSandbox(sandbox.sandboxId);
      for (let round = 0; clock.monotonicMs() < endMs; round += 1) {
        await clock.sleep(4000 + ((index * 997 + round * 7919) % 31_000));
        await own.info();
        calls += 1;
      }
    }),
  );
  expect(calls).toBeGreaterThan(300 * 15);
});

test('N12 events each 30 seconds for ten minutes, and then a gigabyte, come through a port when they are sent', async () => {
  await using sandbox = await server().sandbox({ ttlRunningStop: 3600 });
  const service = sandbox.exec(['python3', '-c', SLOW_AND_LARGE]);
  await waitFor('the service', async () => (await sandbox.ports.fetch(8000)).ok);
  const headers = { authorization: `Bearer ${server().apiKey}` };
  const events = await fetch(`${sandbox.ports.url(8000)}events`, { headers });
  const late: number[] = [];
  for await (const chunk of events.body as AsyncIterable<Uint8Array>) {
    late.push(clock.now() - 1000 * Number(/data: ([0-9.]+)/.exec(Buffer.from(chunk).toString())?.[1]));
  }
  expect(late).toHaveLength(21);
  expect(Math.max(...late)).toBeLessThan(1000);
  await using growth = await GrowthWatch.start(server(), sandbox);
  let total = 0;
  const big = await fetch(`${sandbox.ports.url(8000)}big`, { headers });
  for await (const chunk of big.body as AsyncIterable<Uint8Array>) total += chunk.length;
  expect(total).toBe(GIB);
  expect(growth.mostBytes()).toBeLessThan(MAX_GROWTH_BYTES);
  await service.kill();
  await service;
});

/** Events that say when they were sent, and a large answer. */
const SLOW_AND_LARGE = `
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200); self.send_header('Content-Type', 'text/event-stream'); self.send_header('Connection', 'close'); self.end_headers()
        if self.path == '/events':
            for tick in range(21):
                if tick: time.sleep(30)
                self.wfile.write(('data: %f\\n\\n' % time.time()).encode()); self.wfile.flush()
        elif self.path == '/big':
            for _ in range(1024): self.wfile.write(bytes(1 << 20))
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer(('127.0.0.1', 8000), Handler).serve_forever()`;
