/** Gives a blob store what sandboxes on this machine read of an environment, and lays its layers out by that. */
import { openLayer, putTrace, readTrace, relayout, type ObjectStore, type TracedLayer } from '@dsec/blob';
import type { Environment } from '@dsec/contract';
import { LayerdClient, WireClient } from '@dsec/native-link';
import type { Context } from './context.ts';
import { digestOf } from './layers.ts';
import type { DataDirectory } from './server/data-directory.ts';
import { size } from './table.ts';
import type { Progress } from './terminal/progress.ts';

export interface RelaidEnvironment {
  readonly layers: readonly {
    readonly layer: string;
    readonly tracedChunks: number;
    /** Ranged reads that bring them, before and from now on. */
    readonly readsBefore: number;
    readonly reads: number;
  }[];
  /** Stored bytes that were moved. */
  readonly bytes: number;
}

/**
 * What was read here comes first, then what the store knows of other machines. A layer of which nothing is known stays as it is.
 * @throws PlatformError `unavailable` without a layerd here, `layer_not_found`, `layer_corrupt`, `blob_unavailable`, `blob_full`, `cancelled`
 */
export async function relayoutEnvironment(
  context: Context,
  from: { readonly environment: Environment; readonly data: DataDirectory; readonly store: ObjectStore },
  progress: Progress,
): Promise<RelaidEnvironment> {
  const { environment, data, store } = from;
  const signal = context.interrupted;
  await using wire = WireClient.connect(await context.network.connectUnix(data.layerdSocket, { signal }), {
    role: 'cli',
    clock: context.clock,
  });
  const layerd = new LayerdClient(wire);
  const traced: TracedLayer[] = [];
  // The base is read first.
  for (const layer of environment.image.layers.toReversed()) {
    const digest = digestOf(layer);
    const { map } = await openLayer(store, digest, { signal });
    const [here, elsewhere] = [
      (await layerd.layerTrace(layer, { signal })).chunks,
      await readTrace(store, digest, map, { signal }),
    ];
    const trace = [...new Set([...here, ...elsewhere])].filter((chunk) => chunk < map.chunks);
    if (trace.length === 0) continue;
    await putTrace(store, digest, { map, trace }, { signal });
    traced.push({ layer: digest, trace });
  }
  progress.step(`laying out ${environment.name}`);
  const relaid = await relayout({
    store,
    layers: traced,
    signal,
    onProgress: (done, total) => progress.detail(`${size(done)} of ${size(total)}`),
  });
  const layers = relaid.layers.map(({ layer, readsBefore, reads }, index) => ({
    layer: `sha256:${layer}`,
    tracedChunks: traced[index]?.trace.length ?? 0,
    readsBefore,
    reads,
  }));
  return { layers, bytes: relaid.bytes };
}
