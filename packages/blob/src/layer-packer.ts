/**
 * New chunks of a layer into packs. Which chunks share a pack depends only on their order and plain sizes, and the frames only on the
 * chunks; so an upload that goes on after a kill makes the very packs that it had begun, and finds those that are there.
 */
import { throwIfAborted } from '@dsec/kit';
import { encodeChunk } from './chunk-codec.ts';
import type { ChunkLocation } from './chunk-map.ts';
import { type Digest, digestName, sha256, sha256Name } from './digest.ts';
import { CHUNK_BYTES, MAX_PACK_BYTES } from './layer-format.ts';
import { indexKey, packKey } from './layer-keys.ts';
import type { LayerSource } from './layer-source.ts';
import type { ObjectStore } from './object-store.ts';
import { encodePackIndex } from './pack-index.ts';
import { inParallel } from './parallel.ts';

export interface LayerPackerOptions {
  readonly store: ObjectStore;
  /** Chunks of each pack that are compressed at once. Default 4, as many as Node has threads for it. */
  readonly compressions?: number;
  /** Packs that are made or sent at once; each takes its size in memory. Default 2. */
  readonly uploads?: number;
  /** Most plain bytes of a pack, and so most bytes. Default and most: 64 MiB. */
  readonly packBytes?: number;
  /** Of zstd. Default 3. */
  readonly level?: number;
}

/** A pack that is in the store, with its index. */
export interface WrittenPack {
  readonly pack: Digest;
  readonly chunks: readonly Omit<ChunkLocation, 'pack'>[];
  /** Bytes of pack and index that had to be sent. */
  readonly sentBytes: number;
}

interface EncodedChunk {
  readonly digest: Digest;
  readonly stored: Buffer;
  readonly plainBytes: number;
}

export class LayerPacker {
  readonly #store: ObjectStore;
  readonly #compressions: number;
  readonly #uploads: number;
  readonly #chunksPerPack: number;
  readonly #level: number | undefined;

  constructor(options: LayerPackerOptions) {
    this.#store = options.store;
    this.#uploads = options.uploads ?? 2;
    this.#chunksPerPack = Math.max(
      1,
      Math.floor(Math.min(options.packBytes ?? MAX_PACK_BYTES, MAX_PACK_BYTES) / CHUNK_BYTES),
    );
    this.#compressions = options.compressions ?? 4;
    this.#level = options.level;
  }

  /** Packs these chunks of the source, each named once, and writes packs and then their indexes. */
  async write(
    source: LayerSource,
    chunks: readonly number[],
    options: { readonly signal?: AbortSignal | undefined; readonly onPack: (pack: WrittenPack) => void },
  ): Promise<void> {
    const groups: (readonly number[])[] = [];
    for (let at = 0; at < chunks.length; at += this.#chunksPerPack)
      groups.push(chunks.slice(at, at + this.#chunksPerPack));
    await inParallel(groups, this.#uploads, async (group) => {
      options.onPack(await this.#writePack(source, group, options.signal));
    });
  }

  async #writePack(
    source: LayerSource,
    group: readonly number[],
    signal: AbortSignal | undefined,
  ): Promise<WrittenPack> {
    const encoded: EncodedChunk[] = [];
    await inParallel(group.entries(), this.#compressions, async ([at, index]) => {
      throwIfAborted(signal);
      encoded[at] = await this.#encode(source, index);
    });
    const bytes = Buffer.concat(encoded.map(({ stored }) => stored));
    const pack = sha256Name(bytes);
    let offset = 0;
    const chunks = encoded.map(({ digest, stored, plainBytes }) => {
      const chunk = { digest, offset, storedBytes: stored.length, plainBytes };
      offset += stored.length;
      return chunk;
    });
    const index = encodePackIndex(chunks);
    const packed = await this.#store.put(packKey(pack), bytes, { ifAbsent: true, signal });
    // Always, also over one that is there: it makes a pack young that a collection may be about to remove.
    await this.#store.put(indexKey(pack), index, { signal });
    return { pack, chunks, sentBytes: (packed === 'written' ? bytes.length : 0) + index.length };
  }

  async #encode(source: LayerSource, index: number): Promise<EncodedChunk> {
    const plain = await source.read(index);
    const stored = await encodeChunk(plain, this.#level);
    return { digest: digestName(source.digestAt(index) ?? sha256(plain)), stored, plainBytes: plain.length };
  }
}
