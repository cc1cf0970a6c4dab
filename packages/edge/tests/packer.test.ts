/** The packer as the process that it is. */
import { chmod, chown, mkdir, mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Process, SystemClock, SystemNetwork } from '@dsec/kit';
import { WireClient } from '@dsec/native-link';
import { lacking } from '@dsec/testkit';
import { describe, expect, it } from 'vitest';
import { waitFor } from './edge-fixture.ts';

const PACKER_UID = 64_803;
const START_MS = 20_000;
const missing = lacking('root');
if (missing !== undefined) process.stderr.write(`skipped: the packer as a process: ${missing}\n`);

const clock = new SystemClock();
const network = new SystemNetwork();

describe.skipIf(missing !== undefined)('a packer', () => {
  it('removes at its start what one before it has left of a pack', async () => {
    const directory = await mkdtemp(join(tmpdir(), 'dsec-packer-'));
    const layers = join(directory, 'layers');
    const drafts = join(directory, 'packed/layers');
    const socket = join(directory, 'run/packer.sock');
    const config = join(directory, 'packer.json');
    const started: Process[] = [];
    const start = async (): Promise<Process> => {
      const main = join(import.meta.dirname, '../src/packer/main.ts');
      const argv = [process.execPath, '--disable-warning=ExperimentalWarning', main, '--config', config] as const;
      const packer = await Process.start(argv, { clock, env: { PATH: '/usr/bin:/bin' } });
      started.push(packer);
      const listens = async (): Promise<boolean> => {
        const connection = await network.connectUnix(socket).catch(() => undefined);
        connection?.destroy();
        return connection !== undefined;
      };
      await waitFor(listens, 'that the packer listens', START_MS);
      return packer;
    };
    try {
      await chmod(directory, 0o755);
      await mkdir(layers);
      for (const own of ['run', 'packed']) {
        await mkdir(join(directory, own));
        await chown(join(directory, own), PACKER_UID, PACKER_UID);
      }
      const user = { uid: PACKER_UID, gid: PACKER_UID };
      const publisherSocket = join(directory, 'run/publisher.sock');
      const parts = { socket, layersDirectory: layers, draftsDirectory: drafts, publisherSocket, ...user };
      await writeFile(config, JSON.stringify(parts));
      const killed = await start();
      const wire = WireClient.connect(await network.connectUnix(socket), { role: 'edge', clock });
      const pack = wire.open('pack', {
        request: { name: 'made' },
        config: { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} },
        architecture: 'amd64',
      });
      pack.result.catch(() => undefined);
      await waitFor(async () => (await readdir(drafts)).length > 0, 'a pack under way');
      killed.signal('SIGKILL');
      await killed.exited;
      await wire.close();
      expect(await readdir(drafts)).toHaveLength(1);
      await start();
      expect([await readdir(drafts), await readdir(layers)]).toEqual([[], []]);
    } finally {
      for (const packer of started) await packer.stop();
      await rm(directory, { recursive: true, force: true });
    }
  });
});
