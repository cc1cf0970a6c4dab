import { readdir, readFile, readlink } from 'node:fs/promises';
import { join } from 'node:path';
import type { Clock } from '@dsec/kit';
import { devicesOf } from './node-network.ts';
import type { TestServer } from './test-server.ts';
import { waitFor } from './wait-for.ts';

/** What a server has of its host, by kind. */
export type HostSnapshot = Readonly<Record<Kind, readonly string[]>>;
type Kind = 'processes' | 'mounts' | 'networkNamespaces' | 'cgroups' | 'uppers' | 'sockets' | 'records' | 'devices';

/** Looks at everything that a sandbox can leave behind. */
export async function takeHostSnapshot(server: TestServer): Promise<HostSnapshot> {
  const group = groupName(server.data);
  const launcher = await server.pid('launcher');
  const processes = await processesIn(group);
  return {
    processes,
    mounts: (await readFile('/proc/self/mountinfo', 'utf8')).split('\n').filter((line) => line.includes(server.data)),
    networkNamespaces: await networkNamespaces([...processes, String(launcher)]),
    cgroups: await cgroupsOf(group),
    uppers: await namesIn(join(server.data, 'volume/u')),
    sockets: await namesIn(join(server.data, 'run/s')),
    records: await namesIn(join(server.data, 'run/launcher')),
    devices: await devicesOf(server.data),
  };
}

/**
 * Waits until the host has no more of each kind than before. Counts are compared, not names: what the launcher keeps in its pools
 * comes and goes.
 */
export async function expectNoLeak(
  clock: Clock,
  server: TestServer,
  before: HostSnapshot,
  timeoutMs = 30_000,
): Promise<void> {
  let left = '';
  try {
    await waitFor(
      clock,
      'nothing is left behind',
      async () => {
        const now = await takeHostSnapshot(server);
        const kinds = Object.keys(before) as readonly Kind[];
        const grown = kinds.filter((kind) => now[kind].length > before[kind].length);
        left = grown
          .map(
            (kind) =>
              `${kind}: ${before[kind].length} before, ${now[kind].length} now (${now[kind].slice(0, 5).join('; ')})`,
          )
          .join('\n');
        return grown.length === 0;
      },
      timeoutMs,
    );
  } catch (error) {
    throw new Error(`leftovers of sandboxes:\n${left}`, { cause: error });
  }
}

/** The cgroup of all sandboxes of a data directory, named as the launcher names it: FNV-1a of the path, folded to 32 bits. */
export function groupName(dataDirectory: string): string {
  let hash = 0xcbf29ce484222325n;
  for (const byte of Buffer.from(dataDirectory)) hash = BigInt.asUintN(64, (hash ^ BigInt(byte)) * 0x100000001b3n);
  const folded = BigInt.asUintN(32, hash ^ (hash >> 32n));
  return `dsec-${folded.toString(16).padStart(8, '0')}`;
}

async function processesIn(group: string): Promise<readonly string[]> {
  const found: string[] = [];
  for (const pid of await namesIn('/proc')) {
    if (!/^\d+$/.test(pid)) continue;
    const cgroup = await readFile(`/proc/${pid}/cgroup`, 'utf8').catch(() => '');
    if (cgroup.includes(`/${group}`)) found.push(pid);
  }
  return found;
}

/** Those that the processes are in or hold open. */
async function networkNamespaces(pids: readonly string[]): Promise<readonly string[]> {
  const found = new Set<string>();
  for (const pid of pids) {
    found.add(await readlink(`/proc/${pid}/ns/net`).catch(() => ''));
    for (const fd of await namesIn(`/proc/${pid}/fd`)) {
      const target = await readlink(`/proc/${pid}/fd/${fd}`).catch(() => '');
      if (target.startsWith('net:')) found.add(target);
    }
  }
  found.delete('');
  return [...found];
}

/** Every cgroup below the group, in every hierarchy. */
async function cgroupsOf(group: string): Promise<readonly string[]> {
  const roots = ['/sys/fs/cgroup', ...(await directoriesIn('/sys/fs/cgroup'))].map((root) => join(root, group));
  const found: string[] = [];
  for (const root of roots) found.push(...(await directoriesIn(root)));
  return found;
}

async function directoriesIn(path: string): Promise<readonly string[]> {
  const entries = await readdir(path, { withFileTypes: true }).catch(() => []);
  return entries.filter((entry) => entry.isDirectory()).map(({ name }) => join(path, name));
}

const namesIn = (path: string): Promise<readonly string[]> => readdir(path).catch(() => []);
