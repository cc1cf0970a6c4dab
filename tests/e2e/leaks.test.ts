/** A thousand sandboxes later the host is as it was. */
import { run } from '@dsec/kit';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { processFacts, type ProcessFacts } from './process-facts.ts';
import { useServer } from './started-server.ts';
import { clock, waitFor } from './wait-for.ts';

const server = useServer();

const BULKS = 4;
const PER_BULK = 150;
const SINGLES = 400;
/** Quota groups go when the node has nothing else to do. */
const GROUPS_GONE_MS = 60_000;
/** What a daemon may hold more than before: caches and pools that fill once. */
const SPARE_FILES = 8;
const SPARE_BYTES = 96 * 1024 * 1024;

test('I11: after a thousand creates and stops no process, mount, namespace, cgroup, subvolume, socket, file or descriptor is left', {
  timeout: 300_000,
}, async () => {
  // With all blanks that the launcher keeps.
  const volumeBefore = await volumeFacts();
  // Caches fill with the first sandboxes.
  await many(20);
  await server().expectNoLeftovers();
  const before = await factsOfDaemons();
  for (let round = 0; round < BULKS; round += 1) await many(PER_BULK);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < SINGLES) {
      next += 1;
      const sandbox = await server().sandbox();
      // Something of everything that a stop has to take away.
      const exec = sandbox.runShell(
        'mkdir -p /root/a/b; echo x > /root/a/b/c; mkfifo /tmp/p; sleep 1000 & setsid sleep 1000 & sleep 1000',
      );
      await exec.started();
      const session = await sandbox.session();
      await session.run('sleep 1000 &');
      await sandbox.pty({ argv: ['sh'] });
      await sandbox.stop();
      await exec.then(undefined, () => undefined);
    }
  };
  await Promise.all(Array.from({ length: 12 }, () => worker()));
  await server().expectNoLeftovers();
  await waitFor(
    'subvolumes and quota groups as before',
    async () => {
      const now = await volumeFacts();
      if (now.subvolumes > volumeBefore.subvolumes || now.groups > volumeBefore.groups)
        throw new Error(`${JSON.stringify(volumeBefore)} before, ${JSON.stringify(now)} now`);
      return true;
    },
    GROUPS_GONE_MS,
  );
  await waitFor('daemons as before', async () => {
    const after = await factsOfDaemons();
    return after.every((facts, index) => {
      const was = before[index];
      return (
        was !== undefined &&
        facts.openFiles <= was.openFiles + SPARE_FILES &&
        facts.rssBytes <= was.rssBytes + SPARE_BYTES
      );
    });
  });
});

/** Subvolumes and quota groups of the data volume. */
async function volumeFacts(): Promise<{ readonly subvolumes: number; readonly groups: number }> {
  const volume = join(server().data, 'volume');
  const options = { clock, env: { PATH: '/usr/sbin:/usr/bin:/sbin:/bin' } };
  const lines = async (argv: readonly [string, ...string[]]): Promise<number> =>
    (await run(argv, options)).stdout.toString().trim().split('\n').length;
  return {
    subvolumes: await lines(['btrfs', 'subvolume', 'list', volume]),
    // Below a head of two lines.
    groups: (await lines(['btrfs', 'qgroup', 'show', '--sync', volume])) - 2,
  };
}

async function many(count: number): Promise<void> {
  const { client, environment } = server();
  const metadata = { test: 'leaks' };
  let made = 0;
  for await (const outcome of client.runContainers(
    { containerImage: environment, metadata, memoryLimitMb: 64 },
    { count },
  )) {
    if ('error' in outcome) throw outcome.error;
    made += 1;
  }
  expect(made).toBe(count);
  const outcomes = await client.stopSandboxes({ metadata }, { timeoutMs: 60_000 });
  expect(outcomes.filter((outcome) => 'error' in outcome)).toEqual([]);
  expect(outcomes).toHaveLength(count);
}

async function factsOfDaemons(): Promise<readonly ProcessFacts[]> {
  return Promise.all((await server().daemons()).map((pid) => processFacts(pid)));
}
