import type { FileHandle } from 'node:fs/promises';

/** Random access to the bytes of an image. */
export interface ByteSource {
  readonly sizeBytes: number;
  /** Nothing is gained by keeping what was read. @default false */
  readonly isInMemory?: boolean;
  /** Exactly `length` bytes; callers stay inside `sizeBytes`. */
  read(offset: number, length: number): Promise<Buffer>;
}

/** @param file stays the caller's to close */
export const fileSource = async (file: FileHandle): Promise<ByteSource> => {
  const { size } = await file.stat();
  return {
    sizeBytes: size,
    read: async (offset, length) => {
      const bytes = Buffer.allocUnsafe(length);
      let done = 0;
      while (done < length) {
        const { bytesRead } = await file.read(bytes, done, length - done, offset + done);
        if (bytesRead === 0) throw new Error(`the file ended at ${offset + done} while it was read`);
        done += bytesRead;
      }
      return bytes;
    },
  };
};

export const bufferSource = (image: Buffer): ByteSource => ({
  sizeBytes: image.length,
  isInMemory: true,
  read: (offset, length) => Promise.resolve(image.subarray(offset, offset + length)),
});

const PAGE_BYTES = 64 * 1024;
const MAX_PAGES = 64;

/** Keeps the last pages read: metadata are small and lie together, and one inode at a time is a read of 64 bytes. */
export class PagedSource implements ByteSource {
  readonly sizeBytes: number;
  readonly #source: ByteSource;
  readonly #pages = new Map<number, Promise<Buffer>>();

  constructor(source: ByteSource) {
    this.#source = source;
    this.sizeBytes = source.sizeBytes;
  }

  async read(offset: number, length: number): Promise<Buffer> {
    const first = Math.floor(offset / PAGE_BYTES);
    const last = Math.floor((offset + Math.max(length, 1) - 1) / PAGE_BYTES);
    const parts: Buffer[] = [];
    for (let index = first; index <= last; index++) {
      const page = await this.#page(index);
      const start = Math.max(0, offset - index * PAGE_BYTES);
      parts.push(page.subarray(start, Math.min(page.length, offset + length - index * PAGE_BYTES)));
    }
    const [only] = parts;
    return only !== undefined && parts.length === 1 ? only : Buffer.concat(parts);
  }

  #page(index: number): Promise<Buffer> {
    const known = this.#pages.get(index);
    const offset = index * PAGE_BYTES;
    const page = known ?? this.#source.read(offset, Math.min(PAGE_BYTES, this.sizeBytes - offset));
    this.#pages.delete(index); // the order of a Map is that of insertion: the oldest is the first
    this.#pages.set(index, page);
    if (this.#pages.size > MAX_PAGES) {
      for (const oldest of this.#pages.keys()) {
        this.#pages.delete(oldest);
        break;
      }
    }
    return page;
  }
}
