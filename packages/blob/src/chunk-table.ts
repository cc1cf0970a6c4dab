/**
 * Where chunks are, by digest: an open-addressed table in typed arrays, since a store of a few terabytes has millions of chunks. A pack that
 * is gone is forgotten at once; its chunks keep their slots until the table needs the room.
 */
import { type Digest, DIGEST_BYTES } from './digest.ts';

const FIRST_SLOTS = 1024;

/** Where the bytes of a chunk are. */
export interface ChunkPlace {
  readonly pack: Digest;
  readonly offset: number;
  readonly storedBytes: number;
}

export class ChunkTable {
  readonly #maxChunks: number;
  /** By number; undefined: forgotten. */
  readonly #packs: (Digest | undefined)[] = [];
  readonly #packNumbers = new Map<Digest, number>();
  /** Numbers of forgotten packs that no slot names any more. */
  #freeNumbers: number[] = [];
  /** Slots name packs that are forgotten. */
  #hasForgotten = false;
  #slots = FIRST_SLOTS;
  #used = 0;
  #digests = Buffer.alloc(FIRST_SLOTS * DIGEST_BYTES);
  /** Number of the pack, offset, stored bytes; no stored bytes: a free slot. */
  #places = new Uint32Array(FIRST_SLOTS * 3);

  constructor(maxChunks: number) {
    this.#maxChunks = maxChunks;
  }

  get packs(): IterableIterator<Digest> {
    return this.#packNumbers.keys();
  }

  has(pack: Digest): boolean {
    return this.#packNumbers.has(pack);
  }

  /** False when the table is full: the chunks of this pack will be taken for new ones. */
  add(
    pack: Digest,
    chunks: readonly { readonly digest: Digest; readonly offset: number; readonly storedBytes: number }[],
  ): boolean {
    if (this.#used + chunks.length > this.#maxChunks && this.#hasForgotten) this.#rebuild(this.#slots);
    if (this.#used + chunks.length > this.#maxChunks) return false;
    const number = this.#freeNumbers.pop() ?? this.#packs.length;
    this.#packs[number] = pack;
    this.#packNumbers.set(pack, number);
    for (const { digest, offset, storedBytes } of chunks)
      this.#insert(Buffer.from(digest, 'hex'), [number, offset, storedBytes]);
    return true;
  }

  forget(pack: Digest): void {
    const number = this.#packNumbers.get(pack);
    if (number === undefined) return;
    this.#packNumbers.delete(pack);
    this.#packs[number] = undefined;
    this.#hasForgotten = true;
  }

  find(digest: Buffer): ChunkPlace | undefined {
    const slot = this.#slotOf(digest);
    const [number = 0, offset = 0, storedBytes = 0] = this.#places.subarray(slot * 3, slot * 3 + 3);
    const pack = storedBytes === 0 ? undefined : this.#packs[number];
    return pack === undefined ? undefined : { pack, offset, storedBytes };
  }

  #insert(digest: Buffer, place: readonly [pack: number, offset: number, storedBytes: number]): void {
    // At most two thirds full, so that a search ends soon.
    if ((this.#used + 1) * 3 > this.#slots * 2) this.#rebuild(this.#slots * 2);
    if (this.find(digest) !== undefined) return;
    const slot = this.#slotOf(digest);
    if (this.#places[slot * 3 + 2] === 0) this.#used++;
    digest.copy(this.#digests, slot * DIGEST_BYTES);
    this.#places.set(place, slot * 3);
  }

  /** The slot of this digest, or the free one where it would be. */
  #slotOf(digest: Buffer): number {
    // A digest is its own hash.
    let slot = digest.readUInt32LE(0) % this.#slots;
    while (this.#places[slot * 3 + 2] !== 0) {
      const at = slot * DIGEST_BYTES;
      if (this.#digests.compare(digest, 0, DIGEST_BYTES, at, at + DIGEST_BYTES) === 0) break;
      slot = (slot + 1) % this.#slots;
    }
    return slot;
  }

  /** Into so many slots, without what is forgotten. */
  #rebuild(size: number): void {
    const digests = this.#digests;
    const places = this.#places;
    const slots = this.#slots;
    this.#slots = size;
    this.#used = 0;
    this.#digests = Buffer.alloc(this.#slots * DIGEST_BYTES);
    this.#places = new Uint32Array(this.#slots * 3);
    for (let old = 0; old < slots; old++) {
      const place = places.subarray(old * 3, old * 3 + 3);
      if (place[2] === 0 || this.#packs[place[0] ?? 0] === undefined) continue;
      this.#used++;
      const digest = digests.subarray(old * DIGEST_BYTES, (old + 1) * DIGEST_BYTES);
      const slot = this.#slotOf(digest);
      digest.copy(this.#digests, slot * DIGEST_BYTES);
      this.#places.set(place, slot * 3);
    }
    this.#hasForgotten = false;
    this.#freeNumbers = [...this.#packs.keys()].filter((number) => this.#packs[number] === undefined);
  }
}
