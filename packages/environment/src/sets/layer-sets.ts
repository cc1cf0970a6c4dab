import { mkdir, readdir, rm, stat } from 'node:fs/promises';
import { join } from 'node:path';
import { orAborted, type Clock, type Logger } from '@dsec/kit';
import type { SetMerger } from './merge-thread.ts';
import { isErrno, readSetRecord, setDigest, setDirectory, SET_RECORD_FILE, type SetRecord } from './set-record.ts';

/** Sets that are kept, in use or not; beyond, those go that no sandbox stands on, the longest unused first. */
const MAX_SETS = 512;
const MAX_SETS_BYTES = 4 * 1024 * 1024 * 1024;

const HEX = /^[0-9a-f]{64}$/;

/** Who alone writes among the sets of the node. */
export interface SetPublisher {
  /** Makes one of the draft of this set, durably, in the place of one that is there. */
  publish(digest: string): Promise<void>;
  /** Removes what has the name of this set. */
  remove(digest: string): Promise<void>;
}

export interface LayerSetsOptions {
  /** `sets/` of the data directory; this process asks for all that changes there. */
  readonly directory: string;
  /** Where the merger makes sets, one directory for each; everything in it is thrown away at the start. */
  readonly draftsDirectory: string;
  readonly merger: SetMerger;
  readonly publisher: SetPublisher;
  /** Has the launcher let go of a set. Resolves to false when a sandbox stands on it. */
  readonly letGo: (digest: string) => Promise<boolean>;
  readonly clock: Clock;
  readonly logger: Logger;
  /** @default 512 */
  readonly maxSets?: number;
  /** @default 4 GiB */
  readonly maxBytes?: number;
}

/** A set that stays where it is until it is disposed of. */
export interface HeldSet extends Disposable {
  readonly digest: string;
  /** @returns when it is made anew, because it turned out to be unusable. @throws PlatformError as {@link LayerSets.acquire} */
  renew(signal?: AbortSignal): Promise<void>;
}

/** A set, and what its image takes. */
export interface SetOnDisk {
  readonly set: string;
  readonly sizeBytes: number;
}

interface Kept {
  readonly layers: readonly string[];
  /** Settles when the set is there and whole; undefined until somebody wants it, and after a failure. */
  made: Promise<void> | undefined;
  isMade: boolean;
  /** Counts how often it was made anew. */
  turn: number;
  sizeBytes: number;
  holders: number;
  /** It is being removed; whoever wants it waits and makes it again. */
  leaving?: Promise<unknown>;
}

/**
 * The sets of a node: the layers of one create, merged into one image, made by the first create that needs it and kept for the next. Creates
 * of the same set at the same time share one merge.
 */
export class LayerSets {
  readonly #options: LayerSetsOptions;
  readonly #maxSets: number;
  readonly #maxBytes: number;
  /** By digest; the longest unused first. */
  readonly #kept = new Map<string, Kept>();
  #trimming: Promise<void> | undefined;

  constructor(options: LayerSetsOptions) {
    this.#options = options;
    this.#maxSets = options.maxSets ?? MAX_SETS;
    this.#maxBytes = options.maxBytes ?? MAX_SETS_BYTES;
  }

  /** Takes over what an earlier process has left, and removes what is no set. */
  async open(): Promise<void> {
    const { directory, draftsDirectory, publisher } = this.#options;
    await rm(draftsDirectory, { recursive: true, force: true });
    await mkdir(draftsDirectory, { recursive: true, mode: 0o700 });
    const found: { readonly record: SetRecord; readonly atMs: number }[] = [];
    for (const name of await namesIn(directory)) {
      if (!HEX.test(name)) continue;
      const path = join(directory, name);
      const record = await readSetRecord(path);
      if (record?.digest !== `sha256:${name}`) {
        await publisher.remove(`sha256:${name}`);
        continue;
      }
      const { mtimeMs } = await stat(join(path, SET_RECORD_FILE));
      found.push({ record, atMs: mtimeMs });
    }
    found.sort((a, b) => a.atMs - b.atMs);
    for (const { record } of found) {
      const { digest, layers, metadata } = record;
      this.#kept.set(digest, newKept(layers, metadata.sizeBytes));
    }
  }

  /** How many there are, and their bytes. */
  get size(): { readonly sets: number; readonly bytes: number } {
    let bytes = 0;
    for (const { sizeBytes } of this.#kept.values()) bytes += sizeBytes;
    return { sets: this.#kept.size, bytes };
  }

  /** True when nobody would wait for the set of these layers. */
  has(layers: readonly string[]): boolean {
    const kept = this.#kept.get(setDigest(layers));
    return kept?.isMade === true && kept.leaving === undefined;
  }

  /**
   * The set of these layers, made now if it is not there. It stays until it is disposed of; by then the launcher knows who stands on it.
   *
   * @param layers topmost first
   * @throws PlatformError `environment_broken` with the `layer`, `disk_full`, `cancelled`
   */
  async acquire(layers: readonly string[], signal?: AbortSignal): Promise<HeldSet> {
    const digest = setDigest(layers);
    let kept = this.#kept.get(digest);
    while (kept?.leaving !== undefined) {
      await orAborted(kept.leaving, signal);
      kept = this.#kept.get(digest);
    }
    kept ??= newKept(layers, 0);
    // The order of a Map is that of insertion.
    this.#kept.delete(digest);
    this.#kept.set(digest, kept);
    kept.holders += 1;
    const held = this.#held(digest, kept, layers);
    try {
      kept.made ??= this.#make(digest, kept, { layers, isForced: false });
      await orAborted(kept.made, signal);
      return held;
    } catch (error) {
      held[Symbol.dispose]();
      throw error;
    }
  }

  /** Those that stand on this layer. */
  on(layer: string): readonly SetOnDisk[] {
    const standing = [...this.#kept].filter(([, { layers }]) => layers.includes(layer));
    return standing.map(([set, { sizeBytes }]) => ({ set, sizeBytes }));
  }

  /** Removes those that stand on this layer; each can be made again from layers that are there. False: somebody has one. */
  async leave(layer: string): Promise<boolean> {
    for (const [digest, kept] of [...this.#kept]) {
      if (kept.layers.includes(layer) && !(await this.#leave(digest, kept))) return false;
    }
    return true;
  }

  /** Resolves when nothing is being removed. */
  async settled(): Promise<void> {
    await this.#trimming;
  }

  #held(digest: string, kept: Kept, layers: readonly string[]): HeldSet {
    const { turn } = kept;
    let isHeld = true;
    return {
      digest,
      renew: (signal) => {
        if (kept.turn === turn || kept.made === undefined) {
          kept.turn += 1;
          kept.isMade = false;
          kept.made = this.#make(digest, kept, { layers, isForced: true });
        }
        return orAborted(kept.made ?? Promise.resolve(), signal);
      },
      [Symbol.dispose]: () => {
        if (isHeld) kept.holders -= 1;
        isHeld = false;
      },
    };
  }

  async #make(
    digest: string,
    kept: Kept,
    { layers, isForced }: { readonly layers: readonly string[]; readonly isForced: boolean },
  ): Promise<void> {
    const { merger, clock, logger } = this.#options;
    const startedMs = clock.monotonicMs();
    try {
      const { record, isNew } = await merger.ensure(layers, { isForced });
      if (isNew) await this.#publish(digest);
      kept.sizeBytes = record.metadata.sizeBytes;
      kept.isMade = true;
    } catch (error) {
      // The next create tries again: the layer may be there by then. What was on the disk before still is.
      kept.made = undefined;
      if (kept.sizeBytes === 0 && this.#kept.get(digest) === kept) this.#kept.delete(digest);
      throw error;
    }
    const durationMs = Math.round(clock.monotonicMs() - startedMs);
    logger.info('set.make', { outcome: 'ok', set: digest, layers: layers.length, durationMs, isForced });
    this.#trimming ??= this.#trim().finally(() => {
      this.#trimming = undefined;
    });
  }

  async #publish(digest: string): Promise<void> {
    const { publisher, draftsDirectory } = this.#options;
    try {
      await publisher.publish(digest);
    } finally {
      await rm(setDirectory(draftsDirectory, digest), { recursive: true, force: true });
    }
  }

  /** Removes what is too much. Never rejects. */
  async #trim(): Promise<void> {
    const { logger } = this.#options;
    for (const [digest, kept] of [...this.#kept]) {
      const { sets, bytes } = this.size;
      if (sets <= this.#maxSets && bytes <= this.#maxBytes) return;
      try {
        await this.#leave(digest, kept);
      } catch (error) {
        logger.warn('set.remove', { outcome: 'failed', set: digest, error });
      }
    }
  }

  /** Whether it is gone; false when somebody has it, or wants it anew. */
  async #leave(digest: string, kept: Kept): Promise<boolean> {
    await kept.leaving?.catch(() => undefined);
    const now = this.#kept.get(digest);
    if (now === undefined) return true;
    const isMaking = kept.made !== undefined && !kept.isMade;
    if (now !== kept || kept.holders > 0 || isMaking || kept.leaving !== undefined) return false;
    const removing = this.#remove(digest, kept);
    kept.leaving = removing;
    try {
      return await removing;
    } finally {
      delete kept.leaving;
    }
  }

  async #remove(digest: string, kept: Kept): Promise<boolean> {
    const { publisher, letGo, logger } = this.#options;
    if (!(await letGo(digest))) return false;
    await publisher.remove(digest);
    this.#kept.delete(digest);
    logger.info('set.remove', { outcome: 'ok', set: digest, sizeBytes: kept.sizeBytes });
    return true;
  }
}

const newKept = (layers: readonly string[], sizeBytes: number): Kept => ({
  layers,
  made: undefined,
  isMade: false,
  turn: 0,
  sizeBytes,
  holders: 0,
});

/** There may be none yet. */
const namesIn = async (directory: string): Promise<readonly string[]> => {
  try {
    return await readdir(directory);
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return [];
    throw error;
  }
};
