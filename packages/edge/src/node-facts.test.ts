import { mkdtemp, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { describe, expect, it } from 'vitest';
import { kernelFiles, readBootId, readMemory, readPidMax } from './node-facts.ts';

describe('the facts of the node', () => {
  it('are what this kernel says', async () => {
    const memory = await readMemory(kernelFiles);
    expect(memory.totalMib).toBeGreaterThan(memory.availableMib);
    expect(memory.availableMib).toBeGreaterThan(0);
    expect(memory.stallPercent).toBeLessThanOrEqual(100);
    expect(await readPidMax(kernelFiles)).toBeGreaterThan(1000);
    expect(await readBootId(kernelFiles)).toMatch(/^[0-9a-f-]{36}$/);
  });

  it('do without pressure stall information, and refuse a form that they do not know', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-facts-'));
    try {
      const files = { ...kernelFiles, memoryPressure: join(directory, 'none'), meminfo: join(directory, 'meminfo') };
      await writeFile(files.meminfo, 'MemTotal:       2097152 kB\nMemFree: 1 kB\nMemAvailable:   1048576 kB\n');
      expect(await readMemory(files)).toEqual({ totalMib: 2048, availableMib: 1024, stallPercent: 0 });
      await writeFile(files.meminfo, 'nothing');
      await expect(readMemory(files)).rejects.toMatchObject({ code: 'host_unsuitable' });
      await expect(readPidMax({ ...files, pidMax: join(directory, 'none') })).rejects.toMatchObject({
        code: 'host_unsuitable',
      });
    } finally {
      await rm(directory, { recursive: true });
    }
  });
});
