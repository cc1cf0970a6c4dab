import { readFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { Server } from './started-server.ts';

/** The first process of a sandbox, as the host numbers it. */
export async function aetherPid(server: Pick<Server, 'data'>, sandboxId: string): Promise<number> {
  const record = JSON.parse(await readFile(join(server.data, 'run/launcher', `${sandboxId}.json`), 'utf8')) as {
    readonly pid?: unknown;
  };
  if (typeof record.pid !== 'number') throw new Error(`the record of ${sandboxId} has no pid`);
  return record.pid;
}

/** A field of /proc/PID/status. */
export async function statusField(pid: number, field: string): Promise<string | undefined> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  return new RegExp(`^${field}:\\s*(.*)$`, 'm').exec(status)?.[1];
}
