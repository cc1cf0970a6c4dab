import { PlatformError } from '@dsec/contract';
import type { Clock, Network } from '@dsec/kit';
import { LayerdClient, WireClient } from '@dsec/native-link';
import { layersOnDemand } from '../layers.ts';
import type { DataDirectory } from './data-directory.ts';

/** The kernel lets go of the files of a mount a moment after it is gone; layerd looks once a second whether it is needed. */
const END_MS = 5000;
const PAUSE_MS = 20;
const CALL_MS = 10_000;

/**
 * Has layerd let go of layers that nobody has mounted: it lives on for those that it fills. Says how many are mounted, and stay open.
 */
export async function closeLayers(data: DataDirectory, clock: Clock, network: Network): Promise<number> {
  const onDemand = await layersOnDemand(data);
  if (onDemand.length === 0) return 0;
  const signal = AbortSignal.timeout(CALL_MS);
  try {
    await using wire = WireClient.connect(await network.connectUnix(data.layerdSocket, { signal }), {
      role: 'cli',
      clock,
    });
    return await stillOpen(new LayerdClient(wire), onDemand, signal);
  } catch (error) {
    // Nobody fills anything, or what did has just ended because nothing is left.
    if (PlatformError.is(error) && ['unavailable', 'connection_lost'].includes(error.code)) return 0;
    throw error;
  }
}

async function stillOpen(layerd: LayerdClient, layers: readonly string[], signal: AbortSignal): Promise<number> {
  let left = 0;
  for (const layer of layers) {
    try {
      await layerd.layerClose(layer, { signal });
    } catch (error) {
      if (!PlatformError.is(error) || error.code !== 'layer_in_use') throw error;
      left++;
    }
  }
  return left;
}

/**
 * Ends a layerd that has no supervisor any more, once all sandboxes are gone.
 * @throws PlatformError `cleanup_incomplete` when layers stay mounted
 */
export async function endLayerd(data: DataDirectory, clock: Clock, network: Network): Promise<void> {
  const endsMs = clock.monotonicMs() + END_MS;
  for (;;) {
    const left = await closeLayers(data, clock, network);
    if (left === 0 && !(await isListening(data.layerdSocket, network))) return;
    if (clock.monotonicMs() >= endsMs) {
      throw new PlatformError('cleanup_incomplete', 'layerd goes on: layers are still mounted', {
        details: { left: [`layers: ${left}`] },
      });
    }
    await clock.sleep(PAUSE_MS);
  }
}

async function isListening(path: string, network: Network): Promise<boolean> {
  try {
    (await network.connectUnix(path)).destroy();
    return true;
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'unavailable') return false;
    throw error;
  }
}
