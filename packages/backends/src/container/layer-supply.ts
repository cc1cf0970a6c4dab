/**
 * Sees to it that layers are on the node before a create stands on them: one that is missing is fetched from the blob store, but for its data,
 * and one whose data are filled on demand is opened at layerd. Concurrent creates of a layer share the work; what fails is tried again by
 * the next create. layerd has room for so many open layers: when it is full, those are closed that nobody has used for longest.
 *
 * What is fetched lies in a directory of the edge until the publisher, which is root's, has checked and copied it.
 */
import { access, mkdir, readdir, rm } from 'node:fs/promises';
import { join } from 'node:path';
import { fetchLayer, parseDigest, readTrace, type ChunkMap, type ObjectStore } from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import { readLayerRecord } from '@dsec/environment';
import { Deadline, orAborted, Semaphore, type Clock, type Logger, type Random } from '@dsec/kit';
import type { DaemonLink, LayerdClient, PublisherClient } from '@dsec/native-link';
import type { LayerState } from '../backend.ts';

/** Layers that are fetched at once. */
const MAX_FETCHES = 4;
const MAX_WAITING = 8192;
/** How long one layer may take until it can be mounted. */
const LAYER_TIMEOUT_MS = 120_000;
/** Layers that are known to be whole, or closed; more are looked at again. */
const MAX_KNOWN = 65_536;
/** A create that was told that its layers are ready has mounted them by then, or has failed. */
const IDLE_MS = 600_000;
/** Layers that are closed at once when there is no room for another. */
const CLOSE_BATCH = 64;
const HEX = /^[0-9a-f]{64}$/;
/** Blanks that stand on a layer end before it is let go. */
const RELEASE_TIMEOUT_MS = 60_000;
/** The kernel lets go of the files of a mount a moment after it is gone; until then layerd takes it for mounted. */
const SETTLE_MS = 5000;
const SETTLE_PAUSE_MS = 20;
/** How long looking at layers may take. */
const STATES_TIMEOUT_MS = 30_000;
const NOT_HERE: LayerState = { dataBytes: undefined, presentBytes: 0, touchedBytes: undefined };

export interface LayerSupplyOptions {
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  readonly layerd: DaemonLink<LayerdClient>;
  readonly publisher: DaemonLink<PublisherClient>;
  /** Has the launcher let go of a layer. @throws PlatformError `layer_in_use` */
  readonly forget: (layer: string, signal: AbortSignal) => Promise<void>;
  /** The layers of the node. */
  readonly layersDirectory: string;
  /** The edge's own; everything in it is thrown away at the start. */
  readonly fetchDirectory: string;
  /** Undefined: what is not on the node cannot be had. */
  readonly store: ObjectStore | undefined;
}

export class LayerSupply {
  readonly #options: LayerSupplyOptions;
  readonly #semaphore = new Semaphore({ permits: MAX_FETCHES, maxWaiting: MAX_WAITING });
  /** Layers that are on the node with all of their data. */
  readonly #whole = new Set<string>();
  /** Layers that are open at layerd, and when they were last asked for; in this order. */
  readonly #opened = new Map<string, number>();
  /** Layers that are not open at layerd, since this process had them closed. */
  readonly #closed = new Set<string>();
  readonly #closing = new Map<string, Promise<boolean>>();
  #makingRoom: Promise<boolean> | undefined;
  readonly #making = new Map<string, Promise<void>>();

  constructor(options: LayerSupplyOptions) {
    this.#options = options;
  }

  /** Removes what an edge that was killed has left. */
  async prepare(): Promise<void> {
    const { fetchDirectory } = this.#options;
    await rm(fetchDirectory, { recursive: true, force: true });
    await mkdir(fetchDirectory, { recursive: true, mode: 0o700 });
  }

  /**
   * Resolves when all of them can be mounted; undefined when they are known to be.
   * @throws PlatformError `layer_not_found`, `layer_corrupt`, `blob_unavailable`, `environment_broken` without a store, `disk_full`, `unavailable`
   */
  provide(layers: readonly string[], signal?: AbortSignal): Promise<void> | undefined {
    const missing = layers.filter((layer) => !this.#isReady(layer));
    if (missing.length === 0) return undefined;
    return orAborted(
      Promise.all(missing.map((layer) => this.#once(layer))).then(() => undefined),
      signal,
    );
  }

  /** Looks at these again before the next create: one of them could not be mounted. */
  doubt(layers: readonly string[]): void {
    for (const layer of layers) {
      this.#whole.delete(layer);
      this.#opened.delete(layer);
    }
  }

  /** How much of each is here; layerd is asked once for all that it fills. @throws PlatformError `unavailable` when it stays away */
  async states(layers: readonly string[], signal?: AbortSignal): Promise<readonly LayerState[]> {
    const { clock, layerd } = this.#options;
    const what = 'asking how much of layers is here';
    using deadline = new Deadline({ clock, what, timeoutMs: STATES_TIMEOUT_MS, signal });
    const states = new Map<string, LayerState>();
    const filled: string[] = [];
    for (const layer of new Set(layers)) {
      const record = await readLayerRecord(this.#options.layersDirectory, layer);
      if (record !== undefined && (await this.#isFilledOnDemand(layer))) filled.push(layer);
      else if (record !== undefined) {
        const { sizeBytes } = record.data;
        states.set(layer, { dataBytes: sizeBytes, presentBytes: sizeBytes, touchedBytes: undefined });
      }
    }
    if (filled.length > 0) {
      await layerd.call(async (client, options) => {
        for (const layer of filled) states.set(layer, await client.layerTrace(layer, options));
      }, deadline.signal);
    }
    return layers.map((layer) => {
      const { dataBytes, presentBytes, touchedBytes } = states.get(layer) ?? NOT_HERE;
      return { dataBytes, presentBytes, touchedBytes };
    });
  }

  /**
   * Lets go of a layer whose files are to be removed, or are gone. Creates that come meanwhile wait, and look for it anew. False: somebody needs it.
   * @throws PlatformError `unavailable`, `timeout`
   */
  async release(layer: string, signal?: AbortSignal): Promise<boolean> {
    if (this.#making.has(layer) || this.#closing.has(layer)) return false;
    const isOpened = this.#opened.delete(layer);
    this.#whole.delete(layer);
    const releasing = this.#release(layer, isOpened, signal);
    // Why it failed is nothing to those who wait.
    this.#closing.set(
      layer,
      releasing.catch(() => false),
    );
    return await releasing.finally(() => this.#closing.delete(layer));
  }

  async #release(layer: string, isOpened: boolean, signal: AbortSignal | undefined): Promise<boolean> {
    const { clock, layerd } = this.#options;
    using deadline = new Deadline({
      clock,
      what: `letting go of layer ${layer}`,
      timeoutMs: RELEASE_TIMEOUT_MS,
      signal,
    });
    // One that was opened has files there, wherever they are now.
    const isFilled = isOpened || (await this.#isFilledOnDemand(layer));
    const { signal: waiting } = deadline;
    if (!(await isDone(this.#options.forget(layer, waiting)))) return false;
    const endsMs = clock.monotonicMs() + SETTLE_MS;
    while (isFilled && !(await isDone(layerd.call((client, options) => client.layerClose(layer, options), waiting)))) {
      if (clock.monotonicMs() >= endsMs) return false;
      await clock.sleep(SETTLE_PAUSE_MS, { signal: waiting });
    }
    return true;
  }

  #isReady(layer: string): boolean {
    if (this.#whole.has(layer)) return true;
    if (!this.#opened.delete(layer)) return false;
    this.#opened.set(layer, this.#options.clock.monotonicMs());
    return true;
  }

  #once(layer: string): Promise<void> {
    const known = this.#making.get(layer);
    if (known !== undefined) return known;
    const making = this.#make(layer).finally(() => this.#making.delete(layer));
    this.#making.set(layer, making);
    return making;
  }

  async #make(layer: string): Promise<void> {
    const { clock } = this.#options;
    using deadline = new Deadline({ clock, what: `bringing layer ${layer} to the node`, timeoutMs: LAYER_TIMEOUT_MS });
    const { signal } = deadline;
    await this.#closing.get(layer);
    const fetched = (await this.#has(layer, 'layer.json')) ? undefined : await this.#fetch(layer, signal);
    if (await this.#isFilledOnDemand(layer)) {
      await this.#open(layer, signal);
      this.#opened.set(layer, clock.monotonicMs());
      // The create does not wait for it.
      void this.#prefetch(layer, fetched);
    } else {
      know(this.#whole, layer);
    }
  }

  async #open(layer: string, signal: AbortSignal): Promise<void> {
    const { layerd } = this.#options;
    for (;;) {
      this.#closed.delete(layer);
      try {
        await layerd.call((client, options) => client.layerOpen(layer, options), signal);
        return;
      } catch (error) {
        if (!PlatformError.is(error) || error.code !== 'too_many_requests') throw error;
        this.#makingRoom ??= this.#makeRoom(signal).finally(() => {
          this.#makingRoom = undefined;
        });
        if (!(await this.#makingRoom)) throw error;
      }
    }
  }

  /** Asks for what earlier sandboxes have read of it, here or elsewhere, before this one does. It only helps: what goes wrong is logged. */
  async #prefetch(layer: string, fetched: ChunkMap | undefined): Promise<void> {
    const { clock, layerd, logger } = this.#options;
    using deadline = new Deadline({ clock, what: `prefetching layer ${layer}`, timeoutMs: LAYER_TIMEOUT_MS });
    const { signal } = deadline;
    try {
      const trace = fetched === undefined ? 'recorded' : await this.#traceOf(layer, fetched, signal);
      if (trace.length === 0) return;
      await layerd.call((client, options) => client.layerPrefetchTrace(layer, trace, options), signal);
    } catch (error) {
      logger.warn('layer.prefetch', { outcome: PlatformError.is(error) ? error.code : 'internal', layer, error });
    }
  }

  /**
   * Closes layers that no sandbox stands on: first those of which an edge before this one knew, then those that were asked for least lately.
   * False when there is none. One that was not open counts too, but only once.
   */
  async #makeRoom(signal: AbortSignal): Promise<boolean> {
    const { clock, logger, layersDirectory } = this.#options;
    const idleSinceMs = clock.monotonicMs() - IDLE_MS;
    const present = (await readdir(layersDirectory)).filter((name) => HEX.test(name)).map((name) => `sha256:${name}`);
    const unknown = present.filter(
      (layer) => !this.#opened.has(layer) && !this.#whole.has(layer) && !this.#closed.has(layer),
    );
    const idle = [...this.#opened].filter(([, usedMs]) => usedMs <= idleSinceMs).map(([layer]) => layer);
    let closed = 0;
    for (const layer of [...unknown, ...idle]) {
      if (closed >= CLOSE_BATCH) break;
      if (!(await this.#isFilledOnDemand(layer))) continue;
      const isWanted = this.#making.has(layer) || (this.#opened.get(layer) ?? -Infinity) > idleSinceMs;
      if (isWanted) continue;
      const closing = this.#close(layer, signal);
      this.#closing.set(layer, closing);
      if (await closing.finally(() => this.#closing.delete(layer))) closed++;
    }
    logger.info('layer.close', { outcome: 'ok', closed });
    return closed > 0;
  }

  /** The launcher first: once it has let go, only a create mounts the layer again, and that waits for this. Whether it is closed. */
  async #close(layer: string, signal: AbortSignal): Promise<boolean> {
    const { layerd, forget } = this.#options;
    this.#opened.delete(layer);
    if (!(await isDone(forget(layer, signal)))) return false;
    const isClosed = await isDone(layerd.call((client, options) => client.layerClose(layer, options), signal));
    if (isClosed) know(this.#closed, layer);
    return isClosed;
  }

  async #fetch(layer: string, signal: AbortSignal): Promise<ChunkMap> {
    const { clock, random, logger, publisher, fetchDirectory, store } = this.#options;
    if (store === undefined) {
      throw new PlatformError('environment_broken', `layer ${layer} is not on the node, which has no blob store`, {
        details: { layer },
      });
    }
    using _permit = await this.#semaphore.acquire(signal);
    const startedMs = clock.monotonicMs();
    const digest = parseDigest(hexOf(layer));
    const directory = join(fetchDirectory, digest);
    try {
      const { map } = await fetchLayer(store, digest, { directory, random, signal });
      await publisher.call((client, options) => client.layerPublish(layer, 'fetched', options), signal);
      const durationMs = Math.round(clock.monotonicMs() - startedMs);
      logger.info('layer.fetch', { outcome: 'ok', layer, durationMs, dataBytes: map.dataBytes });
      return map;
    } catch (cause) {
      const error = naming(layer, cause);
      logger.warn('layer.fetch', { outcome: PlatformError.is(error) ? error.code : 'internal', layer, error });
      throw error;
    } finally {
      await rm(directory, { recursive: true, force: true });
    }
  }

  /** What other nodes have read of it. */
  async #traceOf(layer: string, map: ChunkMap, signal: AbortSignal): Promise<readonly number[]> {
    const { store } = this.#options;
    return store === undefined ? [] : await readTrace(store, parseDigest(hexOf(layer)), map, { signal });
  }

  async #has(layer: string, name: string): Promise<boolean> {
    try {
      await access(join(this.#options.layersDirectory, hexOf(layer), name));
      return true;
    } catch (error) {
      if (isErrno(error, 'ENOENT')) return false;
      // What was published for the edge, everybody may enter: this one was built here.
      if (isErrno(error, 'EACCES')) return name === 'layer.json';
      throw error;
    }
  }

  /** One that was built here has no chunk map, and all of its data. */
  async #isFilledOnDemand(layer: string): Promise<boolean> {
    return (await this.#has(layer, 'chunks')) && (await this.#has(layer, 'data'));
  }
}

/** False: it is in use. */
async function isDone(call: Promise<void>): Promise<boolean> {
  try {
    await call;
    return true;
  } catch (error) {
    if (PlatformError.is(error) && error.code === 'layer_in_use') return false;
    throw error;
  }
}

function know(layers: Set<string>, layer: string): void {
  if (layers.size >= MAX_KNOWN) layers.clear();
  layers.add(layer);
}

/** Says which layer it is about; a store alone does not know. */
function naming(layer: string, error: unknown): unknown {
  if (!PlatformError.is(error) || error.details['layer'] === layer) return error;
  const message = error.message.includes(hexOf(layer))
    ? error.message
    : `layer ${layer} cannot be fetched: ${error.message}`;
  return new PlatformError(error.code, message, { details: { ...error.details, layer }, cause: error });
}

const isErrno = (error: unknown, code: string): boolean =>
  error instanceof Error && 'code' in error && error.code === code;

const hexOf = (layer: string): string => layer.replace(/^sha256:/, '');
