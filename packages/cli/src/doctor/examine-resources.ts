import { totalmem } from 'node:os';
import { dirname } from 'node:path';
import { dataDirectoryOf } from '../connection.ts';
import type { Context } from '../context.ts';
import { exists, freeBytes } from '../server/data-directory.ts';
import { size } from '../table.ts';
import type { Finding } from './finding.ts';

const WANTED_NODE = 24;
const WANTED_DISK_BYTES = 4 * 1024 ** 3;
const WANTED_MEMORY_BYTES = 1024 ** 3;

/** The process, and the room that there is. */
export async function examineResources(context: Context): Promise<readonly Finding[]> {
  const data = dataDirectoryOf(context, {});
  let place = data.path;
  while (!(await exists(place))) place = dirname(place);
  const free = await freeBytes(place);
  return [
    {
      name: 'root',
      isPresent: process.getuid?.() === 0,
      isNeeded: true,
      detail: `uid ${process.getuid?.() ?? '?'}`,
      why: 'the launcher makes namespaces, mounts and cgroups; edge and apiserver give root up at once',
      fix: 'run `up`, `down`, `env build`, `quickstart` and `key` with sudo; all else needs only an API key',
    },
    {
      name: `Node ${WANTED_NODE} or newer`,
      isPresent: Number(process.versions.node.split('.')[0]) >= WANTED_NODE,
      isNeeded: true,
      detail: process.version,
      why: 'dsec is TypeScript that runs from its sources',
      fix: '`make setup` installs one inside the checkout',
    },
    {
      name: 'Linux on x86-64 or arm64',
      isPresent: process.platform === 'linux' && (process.arch === 'x64' || process.arch === 'arm64'),
      isNeeded: true,
      detail: `${process.platform} ${process.arch}`,
      why: 'sandboxes are made of what the Linux kernel offers',
      fix: 'use a Linux machine, real or virtual',
    },
    {
      name: 'room on the disk',
      isPresent: free >= WANTED_DISK_BYTES,
      isNeeded: true,
      detail: `${size(free)} free at ${place}`,
      why: 'environments and what sandboxes write lie in the data directory',
      fix: `free ${size(WANTED_DISK_BYTES)}, or name another place with --data`,
    },
    {
      name: 'memory',
      isPresent: totalmem() >= WANTED_MEMORY_BYTES,
      isNeeded: false,
      detail: size(totalmem()),
      why: 'each sandbox needs about a megabyte, and what runs in it',
      fix: 'use a larger machine',
    },
  ];
}
