/** Bursts, and connections that are kept. */
import http from 'node:http';
import { expect, test } from 'vitest';
import { useServer } from './started-server.ts';
import { clock, timed } from './wait-for.ts';

const server = useServer();

/** What a client may leave a connection idle for and still use it; the longest that clients in use keep theirs is 60 s. */
const MIN_KEEP_ALIVE_SECONDS = 75;

test('C01 a hundred creates at once are all ready, 95 of them within two seconds', { timeout: 60_000 }, async () => {
  const results = await Promise.all(
    Array.from({ length: 100 }, () =>
      timed(async () => {
        const sandbox = await server().sandbox();
        expect((await sandbox.exec(['true'])).exitCode).toBe(0);
        return sandbox;
      }),
    ),
  );
  const times = results.map(({ tookMs }) => tookMs).toSorted((a, b) => a - b);
  expect(times[94]).toBeLessThan(2000);
  await Promise.all(results.map(({ value }) => value.stop()));
});

test('C04 the server keeps an idle connection for longer than clients do, and says so', async () => {
  const agent = new http.Agent({ keepAlive: true });
  const headers = await new Promise<http.IncomingHttpHeaders>((resolve, reject) => {
    const request = http.get(`${server().endpoint}/v1/health`, { agent }, (response) => {
      response.resume().once('end', () => resolve(response.headers));
    });
    request.once('error', reject);
  });
  agent.destroy();
  expect(headers.connection?.toLowerCase()).not.toBe('close');
  const seconds = Number(/timeout=(\d+)/.exec(String(headers['keep-alive'] ?? ''))?.[1]);
  expect(seconds).toBeGreaterThanOrEqual(MIN_KEEP_ALIVE_SECONDS);
});

test('C04 connections that were idle for seconds serve the next call', { timeout: 60_000 }, async () => {
  await using sandbox = await server().sandbox();
  const clients = await Promise.all(
    Array.from({ length: 100 }, () =>
      server()
        .connect({ retry: { budgetMs: 0 } })
        .getSandbox(sandbox.sandboxId),
    ),
  );
  // Five seconds is when servers of Node close idle connections unless told otherwise.
  await Promise.all(
    clients.map(async (own, index) => {
      for (const idleMs of [4900, 5000, 5100].map((ms) => ms + (index % 20) * 10)) {
        await clock.sleep(idleMs);
        expect((await own.info()).state).toBe('running');
      }
    }),
  );
});
