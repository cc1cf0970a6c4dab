import { readFile } from 'node:fs/promises';

const ESCAPED = /\\([0-7]{3})/g;

/** Where something is mounted, as this process sees it, in the order of the mounts; real paths (proc(5), mountinfo). */
export async function mountPoints(): Promise<string[]> {
  return mountPointsIn(await readFile('/proc/self/mountinfo', 'utf8'));
}

/** The fifth field of each line, in which white space and backslashes stand in octal. */
export const mountPointsIn = (mountinfo: string): string[] =>
  mountinfo
    .split('\n')
    .flatMap((line) => line.split(' ')[4] ?? [])
    .map((point) => point.replace(ESCAPED, (_, code: string) => String.fromCharCode(Number.parseInt(code, 8))));
