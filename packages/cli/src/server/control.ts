import { PlatformError } from '@dsec/contract';
import type { Connection, Network } from '@dsec/kit';
import type { DataDirectory } from './data-directory.ts';

/**
 * The control socket of a running server. Holding it is the lock on the data directory: the kernel lets go of it when its
 * process ends, however it ends. Whoever may connect (root) can ask the server to stop; the connection closes when it has.
 */
const STOP = 'stop\n';
const MAX_REQUEST_BYTES = 64;

/** Takes the lock. @throws PlatformError `already_running` */
export async function holdControl(network: Network, data: DataDirectory, onStop: () => void): Promise<AsyncDisposable> {
  try {
    return await network.listenUnix(data.controlSocket, (connection) => {
      let text = '';
      connection.on('error', () => undefined);
      connection.on('data', (chunk: Buffer) => {
        text += chunk.toString();
        if (text === STOP) onStop();
        else if (text.length > MAX_REQUEST_BYTES) connection.destroy();
      });
    });
  } catch (error) {
    if (!PlatformError.is(error) || error.code !== 'already_running') throw error;
    throw new PlatformError('already_running', `a server already runs on ${data.path}`, {
      details: { path: data.path },
      cause: error,
    });
  }
}

/** Asks the server to stop and waits until it has. False when none runs. */
export async function stopServer(network: Network, data: DataDirectory, signal: AbortSignal): Promise<boolean> {
  let connection: Connection;
  try {
    connection = await network.connectUnix(data.controlSocket, { signal });
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'unavailable') return false;
    throw error;
  }
  await new Promise<void>((resolve, reject) => {
    const onAbort = (): void => {
      connection.destroy();
      reject(signal.reason as Error);
    };
    signal.addEventListener('abort', onAbort, { once: true });
    connection.once('close', () => {
      signal.removeEventListener('abort', onAbort);
      resolve();
    });
    connection.on('error', () => undefined);
    connection.resume();
    connection.write(STOP);
  });
  return true;
}
