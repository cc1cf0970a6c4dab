/** A node whose disk is full. */
import { expect, test } from 'vitest';
import { PlatformError, type Sandbox } from '@dsec/libdsec';
import { BytePattern } from './byte-pattern.ts';
import { failureOf } from './failure-of.ts';
import { useServer } from './started-server.ts';
import { waitFor } from './wait-for.ts';

const server = useServer({ volumeSize: '1G', variables: { DSEC_EDGE_MIN_DISK_FREE_MIB: '64' } });

test('I10: a full volume is told as such to who writes and who creates, and is free again when sandboxes end', {
  timeout: 120_000,
}, async () => {
  const filler = await server().sandbox({ diskLimitMb: 4000 });
  const other = await server().sandbox({ diskLimitMb: 4000 });
  await other.files.write('/root/kept', 'kept');
  // By a command: it meets the end of the space, not of its quota.
  const filled = await filler.runShell('head -c 3G /dev/zero > /root/fill; echo "rc $?"');
  expect(filled.stdout).not.toContain('rc 0');
  expect(filled.stderr).toMatch(/No space left|Disk quota/);
  // By the API, to the last block.
  const failures: string[] = [];
  for (let round = 0; round < 3; round += 1) {
    const error = await failureOf(other.files.write(`/root/more${round}`, new BytePattern(300_000_000).chunks()));
    failures.push(error.code);
    expect(error.status).toBe(507);
  }
  expect(failures).toEqual(['disk_full', 'disk_full', 'disk_full']);
  const refused = await failureOf(server().sandbox());
  expect(['no_capacity', 'disk_full']).toContain(refused.code);
  expect(refused.status).toBe(507);
  // What lives goes on.
  for (const sandbox of [filler, other]) expect((await sandbox.exec(['echo', 'hi'])).stdout).toBe('hi\n');
  expect(await other.files.readText('/root/kept')).toBe('kept');
  expect(
    (await other.files.list('/root')).entries
      .map(({ name }) => name)
      .filter((name) => name.startsWith('.dsec') || name.startsWith('more')),
  ).toEqual([]);
  expect((await filler.stop()).state).toBe('stopped');
  const again = await waitFor(
    'room for another',
    async (): Promise<Sandbox | undefined> => {
      try {
        return await server().sandbox();
      } catch (error) {
        if (PlatformError.is(error) && error.status === 507) return undefined;
        throw error;
      }
    },
    // btrfs gives whole empty chunks back only some time after they are empty.
    100_000,
  );
  expect((await again.runShell('head -c 50M /dev/zero > /root/f && echo ok')).stdout).toBe('ok\n');
  for (const sandbox of [other, again]) await sandbox.stop();
});
