/** Sandboxes and daemons that die, alone and together. */
import { expect, test } from 'vitest';
import { aetherPid } from './host-side.ts';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { clock, timed, waitFor } from './wait-for.ts';

// The node is compared with the journal as often as can be, so that whatever it would wrongly clean away is cleaned away here.
const server = useServer({ variables: { DSEC_EDGE_RECONCILE_MS: '100' } });

test('L12 after a restart of each daemon its sandboxes are used, changed and stopped as before', {
  timeout: 60_000,
}, async () => {
  for (const role of ['apiserver', 'edge', 'launcher'] as const) {
    const [used, stopped] = await Promise.all([server().sandbox({ metadata: { role } }), server().sandbox()]);
    await used.files.write('/root/f', role);
    await using session = await used.session();
    await session.run('X=kept');
    await server().kill(role);
    expect((await used.info()).state).toBe('running');
    expect(await used.files.readText('/root/f')).toBe(role);
    expect((await used.exec(['echo', 'hi'])).stdout).toBe('hi\n');
    expect((await session.run('echo $X')).stdout).toBe('kept\n');
    expect((await used.setTtl(500)).state).toBe('running');
    expect(
      (await server().client.sandboxes({ metadata: { role } }).toArray()).map(({ sandboxId }) => sandboxId),
    ).toEqual([used.sandboxId]);
    expect((await stopped.stop()).state).toBe('stopped');
    const fresh = await server().sandbox();
    expect((await fresh.exec(['echo', 'new'])).stdout).toBe('new\n');
    for (const sandbox of [used, fresh]) expect((await sandbox.stop()).state).toBe('stopped');
  }
});

test('L13 a sandbox that dies on the host is failed within ten seconds, says why, and fails what waits for it', async () => {
  const sandbox = await server().sandbox();
  const exec = sandbox.exec(['sleep', '999']);
  await exec.started();
  const pid = await aetherPid(server(), sandbox.sandboxId);
  const { tookMs } = await timed(async () => {
    process.kill(pid, 'SIGKILL');
    const failure = await failureOf(exec);
    expect(['sandbox_failed', 'sandbox_ended']).toContain(failure.code);
    expect(failure.details['cause']).toBe('runtime');
    await waitFor('its state', async () => (await sandbox.info()).state === 'failed');
  });
  expect(tookMs).toBeLessThan(10_000);
  const { cause, endedAtMs } = await sandbox.info();
  expect(cause).toMatchObject({ kind: 'runtime', infrastructure: true });
  expect(cause?.detail.length).toBeGreaterThan(0);
  expect(endedAtMs).not.toBeNull();
  for (const attempt of [
    () => sandbox.exec(['true']),
    () => sandbox.files.read('/etc/passwd'),
    () => sandbox.usage(),
    () => sandbox.session(),
  ]) {
    const failure = await failureOf(attempt());
    expect(['sandbox_failed', 'sandbox_ended']).toContain(failure.code);
    expect(failure.status).toBe(410);
  }
  expect(await server().client.sandboxes().toArray()).toEqual([]);
});

test('L13 a sandbox that dies while edge or launcher is dead is failed when they are back', {
  timeout: 60_000,
}, async () => {
  for (const role of ['edge', 'launcher'] as const) {
    const sandbox = await server().sandbox();
    const pid = await aetherPid(server(), sandbox.sandboxId);
    const back = server().kill(role);
    process.kill(pid, 'SIGKILL');
    await back;
    const info = await waitFor('its state', async () => {
      const now = await sandbox.info();
      return now.state === 'failed' && now;
    });
    expect(info.cause?.infrastructure).toBe(true);
  }
});

test.for(['edge', 'launcher'] as const)(
  'L14 a kill of the %s at any step of a stop leaves nothing half removed, and the same can be made again',
  { timeout: 90_000 },
  async (role) => {
    const hostname = 'same-name';
    for (const delayMs of [0, 1, 2, 4, 6, 9, 13, 20]) {
      const sandbox = await server().sandbox({ hostname, metadata: { step: hostname } });
      await sandbox.runShell('mkdir -p /root/a/b; head -c 1000000 /dev/zero > /root/a/b/f; sleep 100 &');
      const stopping = sandbox.stop();
      // Each time at another step, which nothing tells of.
      await clock.sleep(delayMs);
      await server().kill(role);
      expect((await stopping).state).toBe('stopped');
      expect((await sandbox.info()).cause?.kind).toBe('stopped');
      await server().expectNothingOf(sandbox.sandboxId);
      const again = await server().sandbox({ hostname, metadata: { step: hostname } });
      expect((await again.exec(['hostname'])).stdout).toBe(`${hostname}\n`);
      await again.stop();
    }
    expect(
      await server()
        .client.sandboxes({ metadata: { step: hostname } })
        .toArray(),
    ).toEqual([]);
  },
);
