import { readdir, readFile } from 'node:fs/promises';

/** What the kernel says of one process of the host. */
export interface ProcessFacts {
  readonly rssBytes: number;
  readonly openFiles: number;
}

/** @throws Error (ENOENT) when there is no such process */
export async function processFacts(pid: number): Promise<ProcessFacts> {
  const status = await readFile(`/proc/${pid}/status`, 'utf8');
  const rssKib = /^VmRSS:\s+(\d+) kB$/m.exec(status)?.[1] ?? '0';
  const files = await readdir(`/proc/${pid}/fd`);
  return { rssBytes: Number(rssKib) * 1024, openFiles: files.length };
}
