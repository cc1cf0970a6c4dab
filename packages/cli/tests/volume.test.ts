import { mountPoints, run, SystemClock } from '@dsec/kit';
import { lacking } from '@dsec/testkit';
import { mkdir, mkdtemp, realpath, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { expect, test } from 'vitest';
import { DataDirectory } from '../src/server/data-directory.ts';
import type { Installation } from '../src/server/installation.ts';
import { prepareVolume, programEnv } from '../src/server/volume.ts';

const clock = new SystemClock();
const missing = lacking('root');
if (missing !== undefined) process.stderr.write(`skipped: a volume of one's own: ${missing}\n`);

test.skipIf(missing !== undefined)(
  'a directory is bound as the volume once, wherever the data directory is',
  async () => {
    const directory = await realpath(await mkdtemp(join(tmpdir(), 'dsec-volume-')));
    const data = new DataDirectory(join(directory, 'with a space'));
    const bound = async (): Promise<number> => (await mountPoints()).filter((point) => point === data.volume).length;
    try {
      const path = join(directory, 'own');
      await mkdir(path);
      // Nothing of the installation is needed for it.
      const parts: Partial<Installation> = {};
      for (let round = 0; round < 2; round += 1) {
        await prepareVolume(parts as Installation, data, { path, sizeBytes: undefined }, clock);
        expect(await bound()).toBe(1);
      }
    } finally {
      while ((await bound()) > 0) await run(['umount', data.volume], { clock, env: programEnv });
      await rm(directory, { recursive: true });
    }
  },
);
