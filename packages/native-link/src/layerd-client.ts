/** The methods of layerd that bring layers to a node (docs/wire.md); what comes back is checked. */
import { Type, type Static } from 'typebox';

import { type Answer, answer, closed } from './answer.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions } from './wire/stream-api.ts';

const count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });

const OpenedSchema = closed({ dataBytes: count, chunks: count, packs: count });
const opened = answer(OpenedSchema);
const none = answer(closed({}));
const planned = answer(closed({ chunks: count }));
const TraceSchema = closed({
  chunks: Type.Array(count, { maxItems: 65_536 }),
  isCut: Type.Boolean(),
  dataBytes: count,
  touchedChunks: count,
  touchedBytes: count,
  presentBytes: count,
});
const traced = answer(TraceSchema);
/** Some of what it counts; the rest is for people. */
const StatsSchema = Type.Object({
  askedBytes: count,
  fetchedBytes: count,
  storedBytes: count,
  fetches: count,
  errors: count,
  allocatedBytes: count,
  prefetchWaiting: count,
});
const counted = answer(StatsSchema);

/** How much of a layer there is. */
export type LayerOpened = Static<typeof OpenedSchema>;
/** What was read of a layer on this node, in the order of the first touch, and how much of it is here. */
export type LayerTrace = Static<typeof TraceSchema>;
/** Since layerd began on this data directory: bytes that readers asked for, chunks that came (plain and as stored), what the cache holds. */
export type LayerdStats = Static<typeof StatsSchema>;

/** Layers are named `sha256:` and 64 hex digits. */
export class LayerdClient {
  readonly #wire: WireClient;

  constructor(wire: WireClient) {
    this.#wire = wire;
  }

  /** From now on its data are filled where they are read. Must come before the layer is mounted; idempotent. */
  async layerOpen(layer: string, options?: StreamOptions): Promise<LayerOpened> {
    return this.#call('layer.open', layer, opened, options);
  }

  /** Its data are filled no more; one that is not open is no error. @throws PlatformError `layer_in_use` while it is mounted */
  async layerClose(layer: string, options?: StreamOptions): Promise<void> {
    await this.#call('layer.close', layer, none, options);
  }

  /** Brings these ranges of its data (offset and length, bytes) ahead of any reader; how many chunks will come. */
  async layerPrefetch(
    layer: string,
    ranges: readonly (readonly [number, number])[],
    options?: StreamOptions,
  ): Promise<number> {
    const params = { layer, ranges };
    return planned(await this.#wire.call('layer.prefetch', params, options), 'layer.prefetch').chunks;
  }

  /** Brings these chunks in this order, or with `recorded` what the opening before has read; how many will come. */
  async layerPrefetchTrace(
    layer: string,
    trace: readonly number[] | 'recorded',
    options?: StreamOptions,
  ): Promise<number> {
    const params = trace === 'recorded' ? { layer, recorded: true } : { layer, trace };
    return planned(await this.#wire.call('layer.prefetch', params, options), 'layer.prefetch').chunks;
  }

  /** What was read of a layer since it was opened last. */
  async layerTrace(layer: string, options?: StreamOptions): Promise<LayerTrace> {
    return this.#call('layer.trace', layer, traced, options);
  }

  async stats(options?: StreamOptions): Promise<LayerdStats> {
    return counted(await this.#wire.call('stats', {}, options), 'stats');
  }

  async #call<T>(method: string, layer: string, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, { layer }, options), method);
  }
}
