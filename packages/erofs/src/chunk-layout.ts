import { createHash } from 'node:crypto';
import { DATA_CHUNK_BYTES, DataDevice } from './data-device.ts';
import { type DataLayout, exactly, type LayoutEnd, tooLarge } from './data-layout.ts';
import {
  alignUp,
  BLOCK_SIZE,
  CHUNK_FORMAT_INDEXES,
  CHUNK_INDEX_SIZE,
  FEATURE_INCOMPAT_CHUNKED_FILE,
  FEATURE_INCOMPAT_DEVICE_TABLE,
  LAYOUT_CHUNK_BASED,
  MAX_BLOCKS,
} from './format.ts';
import type { ImageOutput } from './image-output.ts';
import { type InodeBody, NO_DATA } from './inode.ts';
import { EMPTY_FILE, type FileData } from './tree.ts';

/** The only further device of an image; the image itself is device 0. */
const DATA_DEVICE = 1;
/** Equal files are found among this many different ones; the names of so many are about half a gigabyte. */
const MAX_KNOWN_FILES = 2 ** 22;

/** A chunk that small files are put into. */
interface OpenChunk {
  readonly index: number;
  readonly bytes: Buffer;
  usedBytes: number;
}

/**
 * Regular files on a second device, in chunks. A file of a chunk or more has chunks of its own, the rest of its last one zeros, so that equal
 * files are equal chunks in every layer. Smaller files begin on a block and lie in one chunk, so that a file is one fetch. Equal files are
 * stored once.
 *
 * Each file is one contiguous piece, and the chunk of EROFS (which is another thing: a power of two of blocks, chosen for each inode) is made
 * so large that it covers it: the index behind an inode is one entry.
 */
export class ChunkLayout implements DataLayout {
  readonly #device: DataDevice;
  readonly #maxSizeBytes: number;
  readonly #known = new Map<string, FileData>();
  readonly #piece = Buffer.alloc(DATA_CHUNK_BYTES);
  #open: OpenChunk | undefined;

  constructor(output: ImageOutput, maxSizeBytes: number) {
    this.#device = new DataDevice(output);
    this.#maxSizeBytes = Math.min(maxSizeBytes, MAX_BLOCKS * BLOCK_SIZE);
  }

  async store(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData> {
    const checked = exactly(sizeBytes, bytes);
    return sizeBytes < DATA_CHUNK_BYTES ? this.#storeSmall(sizeBytes, checked) : this.#storeLarge(sizeBytes, checked);
  }

  describe(data: FileData): InodeBody {
    if (data.sizeBytes === 0) return NO_DATA;
    const blocks = Math.ceil(data.sizeBytes / BLOCK_SIZE);
    const index = Buffer.alloc(CHUNK_INDEX_SIZE);
    index.writeUInt16LE(DATA_DEVICE, 2);
    index.writeUInt32LE(data.startBlock, 4);
    const chunkBits = 32 - Math.clz32(blocks - 1); // log2, rounded up
    return { layout: LAYOUT_CHUNK_BASED, union: CHUNK_FORMAT_INDEXES | chunkBits, sizeBytes: data.sizeBytes, index };
  }

  async end(): Promise<LayoutEnd> {
    if (this.#open !== undefined) await this.#close(this.#open);
    const data = await this.#device.end();
    if (data.sizeBytes === 0) return { featureIncompat: 0, data };
    return {
      featureIncompat: FEATURE_INCOMPAT_CHUNKED_FILE | FEATURE_INCOMPAT_DEVICE_TABLE,
      devices: [{ tag: data.digest.toString('hex'), blocks: data.sizeBytes / BLOCK_SIZE }],
      data,
    };
  }

  async #storeSmall(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData> {
    let filled = 0;
    for await (const part of bytes) {
      this.#piece.set(part, filled);
      filled += part.length;
    }
    if (sizeBytes === 0) return EMPTY_FILE;
    const content = this.#piece.subarray(0, filled);
    const key = nameOf(sizeBytes, content);
    const known = this.#known.get(key);
    if (known !== undefined) return known;
    const at = await this.#placeSmall(content);
    return this.#remember(key, { sizeBytes, startBlock: at / BLOCK_SIZE });
  }

  /** @returns the position in the data */
  async #placeSmall(content: Buffer): Promise<number> {
    const open = this.#open;
    const chunk =
      open !== undefined && open.usedBytes + content.length <= DATA_CHUNK_BYTES ? open : this.#newChunk(content.length);
    const at = chunk.usedBytes;
    if (chunk.index * DATA_CHUNK_BYTES + at + content.length > this.#maxSizeBytes) throw tooLarge(this.#maxSizeBytes);
    chunk.bytes.set(content, at);
    chunk.usedBytes += alignUp(content.length, BLOCK_SIZE);
    if (chunk !== open) {
      // Of two that are begun, the one with more room stays open.
      const [full, roomy] = open === undefined || open.usedBytes > chunk.usedBytes ? [open, chunk] : [chunk, open];
      if (full !== undefined) await this.#close(full);
      this.#open = roomy;
    }
    return chunk.index * DATA_CHUNK_BYTES + at;
  }

  #newChunk(contentBytes: number): OpenChunk {
    this.#checkRoom(contentBytes);
    return { index: this.#device.allocate(), bytes: Buffer.alloc(DATA_CHUNK_BYTES), usedBytes: 0 };
  }

  #close(chunk: OpenChunk): Promise<void> {
    return this.#device.put(chunk.index, chunk.bytes.subarray(0, chunk.usedBytes));
  }

  /** Written as it comes; taken back when it turns out that the same file is there. */
  async #storeLarge(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData> {
    this.#checkRoom(sizeBytes);
    const mark = this.#device.mark();
    let filled = 0;
    for await (const part of bytes) {
      for (let from = 0; from < part.length; ) {
        const count = Math.min(part.length - from, DATA_CHUNK_BYTES - filled);
        this.#piece.set(part.subarray(from, from + count), filled);
        filled += count;
        from += count;
        if (filled < DATA_CHUNK_BYTES) continue;
        await this.#device.put(this.#device.allocate(), this.#piece);
        filled = 0;
      }
    }
    if (filled > 0) await this.#device.put(this.#device.allocate(), this.#piece.subarray(0, filled));
    const key = nameOf(sizeBytes, this.#device.digestsFrom(mark.chunks));
    const known = this.#known.get(key);
    if (known !== undefined) {
      await this.#device.rewind(mark);
      return known;
    }
    return this.#remember(key, { sizeBytes, startBlock: mark.chunks * (DATA_CHUNK_BYTES / BLOCK_SIZE) });
  }

  #remember(key: string, data: FileData): FileData {
    if (this.#known.size < MAX_KNOWN_FILES) this.#known.set(key, data);
    return data;
  }

  #checkRoom(sizeBytes: number): void {
    if (this.#device.chunks * DATA_CHUNK_BYTES + sizeBytes > this.#maxSizeBytes) throw tooLarge(this.#maxSizeBytes);
  }
}

/** @param content of a small file its bytes, of a large one the digests of its chunks */
const nameOf = (sizeBytes: number, content: Buffer): string =>
  `${createHash('sha256').update(content).digest().toString('latin1')}${sizeBytes}`;
