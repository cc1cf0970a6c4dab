import { PlatformError } from '@dsec/contract';
import { BLOCK_SIZE, LAYOUT_FLAT_PLAIN, MAX_BLOCKS } from './format.ts';
import type { WrittenData } from './data-device.ts';
import type { ImageStream } from './image-stream.ts';
import { type InodeBody, NO_DATA } from './inode.ts';
import type { ImageDevice } from './superblock.ts';
import { EMPTY_FILE, type FileData } from './tree.ts';

/**
 * Where the bytes of regular files go, and how an inode points at them. The tree and the encoding of inodes know nothing of it: another
 * layout is another implementation of this interface.
 */
export interface DataLayout {
  /** Stores one file; files come one after another. */
  store(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData>;
  /** What the inode says about a file that `store` stored. */
  describe(data: FileData): InodeBody;
  /** Called once, when all files are stored. */
  end(): Promise<LayoutEnd>;
}

export interface LayoutEnd {
  /** Bits of feature_incompat that a reader must know for this layout. */
  readonly featureIncompat: number;
  /** The devices that the image names for the files, in the order in which they are given when it is mounted. @default none */
  readonly devices?: readonly ImageDevice[];
  /** What was written beside the image. */
  readonly data?: WrittenData;
}

/** @param limit bytes */
export const tooLarge = (limit: number): PlatformError =>
  new PlatformError('image_unsupported', 'The files are larger together than an image may be', {
    details: { reason: 'size', limit },
  });

/** Passes a file's bytes on, and refuses any other number of them than was announced. */
export async function* exactly(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  let seen = 0;
  for await (const part of bytes) {
    seen += part.length;
    if (seen > sizeBytes) break;
    yield part;
  }
  if (seen !== sizeBytes) {
    throw new PlatformError('internal', `A file of ${sizeBytes} bytes was given other than that many`);
  }
}

/** Every file in consecutive whole blocks of the image itself, in the order in which they came. */
export class FlatLayout implements DataLayout {
  readonly #stream: ImageStream;
  readonly #maxSizeBytes: number;

  constructor(stream: ImageStream, maxSizeBytes: number) {
    this.#stream = stream;
    this.#maxSizeBytes = Math.min(maxSizeBytes, MAX_BLOCKS * BLOCK_SIZE);
  }

  async store(sizeBytes: number, bytes: AsyncIterable<Uint8Array>): Promise<FileData> {
    if (this.#stream.position + sizeBytes > this.#maxSizeBytes) throw tooLarge(this.#maxSizeBytes);
    const startBlock = this.#stream.position / BLOCK_SIZE;
    for await (const part of exactly(sizeBytes, bytes)) await this.#stream.append(part);
    await this.#stream.padToBlock();
    return sizeBytes === 0 ? EMPTY_FILE : { sizeBytes, startBlock };
  }

  describe(data: FileData): InodeBody {
    if (data.sizeBytes === 0) return NO_DATA;
    return { layout: LAYOUT_FLAT_PLAIN, union: data.startBlock, sizeBytes: data.sizeBytes };
  }

  end(): Promise<LayoutEnd> {
    return Promise.resolve({ featureIncompat: 0 });
  }
}
