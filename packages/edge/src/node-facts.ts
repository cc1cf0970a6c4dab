/** What the node has and how hard pressed it is, read from the kernel. */
import { readFile } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';

const KIB_PER_MIB = 1024;

export interface MemoryFacts {
  readonly totalMib: number;
  readonly availableMib: number;
  /** 0 where the kernel does not measure stalls. */
  readonly stallPercent: number;
}

/** Where the kernel says it; a test gives its own. */
export interface FactFiles {
  readonly meminfo: string;
  readonly memoryPressure: string;
  readonly pidMax: string;
  readonly bootId: string;
}

export const kernelFiles: FactFiles = {
  meminfo: '/proc/meminfo',
  memoryPressure: '/proc/pressure/memory',
  pidMax: '/proc/sys/kernel/pid_max',
  bootId: '/proc/sys/kernel/random/boot_id',
};

export async function readMemory(files: FactFiles): Promise<MemoryFacts> {
  const [meminfo, pressure] = await Promise.all([read(files.meminfo), readOptional(files.memoryPressure)]);
  return {
    totalMib: Math.floor(number(/^MemTotal:\s+(\d+) kB/m, meminfo, files.meminfo) / KIB_PER_MIB),
    availableMib: Math.floor(number(/^MemAvailable:\s+(\d+) kB/m, meminfo, files.meminfo) / KIB_PER_MIB),
    stallPercent: pressure === undefined ? 0 : number(/^full avg10=([\d.]+)/m, pressure, files.memoryPressure),
  };
}

export const readPidMax = async (files: FactFiles): Promise<number> =>
  number(/^(\d+)/, await read(files.pidMax), files.pidMax);

/** Another value after every boot of the node. */
export const readBootId = async (files: FactFiles): Promise<string> => (await read(files.bootId)).trim();

async function read(path: string): Promise<string> {
  try {
    return await readFile(path, 'utf8');
  } catch (cause) {
    throw new PlatformError('host_unsuitable', `${path} cannot be read`, { details: { missing: path }, cause });
  }
}

const readOptional = async (path: string): Promise<string | undefined> => {
  try {
    return await readFile(path, 'utf8');
  } catch {
    // Kernels without pressure stall information have no such file, and some that have it refuse to open it.
    return undefined;
  }
};

function number(pattern: RegExp, text: string, path: string): number {
  const found = pattern.exec(text)?.[1];
  if (found === undefined)
    throw new PlatformError('host_unsuitable', `${path} has an unknown form`, { details: { missing: path } });
  return Number(found);
}
