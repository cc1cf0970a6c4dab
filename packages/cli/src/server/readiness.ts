import { PlatformError } from '@dsec/contract';
import type { Clock, Network } from '@dsec/kit';

/** How often a daemon that starts is asked whether it is ready. */
const POLL_MS = 25;
/** A daemon that adopts thousands of sandboxes may take its time; one that hangs must not hold the start for ever. */
const READY_MS = 60_000;

/** Asks until the answer is a value; undefined means "not yet". */
export async function waitUntil<T>(
  clock: Clock,
  what: string,
  signal: AbortSignal,
  ask: () => Promise<T | undefined>,
): Promise<T> {
  const endsMs = clock.monotonicMs() + READY_MS;
  for (;;) {
    const answer = await ask();
    if (answer !== undefined) return answer;
    if (clock.monotonicMs() > endsMs)
      throw new PlatformError('timeout', `${what} within ${READY_MS} ms`, { details: { timeoutMs: READY_MS } });
    await clock.sleep(POLL_MS, { signal });
  }
}

/** Waits until a process listens at a unix socket. */
export async function listening(clock: Clock, network: Network, path: string, signal: AbortSignal): Promise<void> {
  await waitUntil(clock, `nobody listened at ${path}`, signal, async () =>
    (await isListening(network, path, signal)) ? true : undefined,
  );
}

/** Waits until nobody does any more. */
export async function notListening(clock: Clock, network: Network, path: string, signal: AbortSignal): Promise<void> {
  await waitUntil(clock, `somebody listens at ${path}`, signal, async () =>
    (await isListening(network, path, signal)) ? undefined : true,
  );
}

async function isListening(network: Network, path: string, signal: AbortSignal): Promise<boolean> {
  try {
    const connection = await network.connectUnix(path, { signal });
    connection.destroy();
    return true;
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'unavailable') return false;
    throw error;
  }
}
