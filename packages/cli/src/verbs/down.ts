import { PlatformError } from '@dsec/contract';
import type { Command } from 'commander';
import { note } from '../audit-note.ts';
import { connectLocal, dataDirectoryOf, type ConnectionOptions } from '../connection.ts';
import type { Context } from '../context.ts';
import { endLayerd } from '../server/close-layers.ts';
import { stopServer } from '../server/control.ts';
import { clearNetwork } from '../server/sandbox-network.ts';
import type { DataDirectory } from '../server/data-directory.ts';
import { installation, requireRoot } from '../server/installation.ts';
import { releaseVolume } from '../server/volume.ts';
import { startProgress, type Progress } from '../terminal/progress.ts';

/** Stopping thousands of sandboxes takes its time; what is left then the volume's release ends by force. */
const STOP_SANDBOXES_MS = 120_000;

export function downVerb(program: Command, context: Context): void {
  program
    .command('down')
    .description('stop the server on this machine and all its sandboxes, and release the data volume (as root)')
    .option('--data <dir>', 'data directory of the server (default: DSEC_DATA, else /var/lib/dsec)')
    .action(async (options: ConnectionOptions) => {
      requireRoot('down');
      const data = dataDirectoryOf(context, options);
      const progress = startProgress(context);
      try {
        await takeDown(context, data, progress);
      } catch (error) {
        progress.failed('not everything could be stopped');
        throw error;
      }
      progress.done('everything is stopped');
    });
}

async function takeDown(context: Context, data: DataDirectory, progress: Progress): Promise<void> {
  progress.step('stopping the sandboxes');
  try {
    await using client = await connectLocal(data);
    await note(context, client, { verb: 'down', outcome: 'ok' });
    await client.stopSandboxes({ metadata: {} }, { timeoutMs: STOP_SANDBOXES_MS });
  } catch (error) {
    // Without a server that answers, what is left of its sandboxes is removed below.
    if (!PlatformError.is(error) || !(error.retryable || error.code === 'timeout')) throw error;
  }
  progress.step('stopping the server');
  await stopServer(context.network, data, AbortSignal.timeout(STOP_SANDBOXES_MS));
  progress.step('taking the network away');
  await clearNetwork({ ...context, data });
  progress.step('releasing the data volume');
  await releaseVolume(installation, data, context.clock);
  // A server that was killed has left layerd to its sandboxes, which are gone by now.
  await endLayerd(data, context.clock, context.network);
}
