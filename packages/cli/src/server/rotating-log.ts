import { open, rename, type FileHandle } from 'node:fs/promises';
import { PassThrough, type Readable } from 'node:stream';

/** A log file is set aside at this size; one older file is kept. */
const MAX_LOG_BYTES = 32 * 1024 * 1024;

export interface LogOptions {
  readonly maxBytes?: number;
  /** Sees what is written. */
  readonly onChunk?: (chunk: Buffer) => void;
  /** Hears why nothing can be kept from now on, until something is. */
  readonly onLost?: (error: unknown) => void;
}

/**
 * Copies a stream into a file that cannot fill the disk. Resolves when the stream has ended. What cannot be written, as on a full disk, is lost:
 * whoever the stream comes from must not wait for the disk.
 */
export async function copyToLog(stream: Readable, path: string, options: LogOptions = {}): Promise<void> {
  const { maxBytes = MAX_LOG_BYTES, onChunk, onLost } = options;
  // Attached before anything is awaited: when a process exits, Node throws away what nobody reads.
  const source = stream.pipe(new PassThrough());
  await using file = new RotatingFile(path, maxBytes);
  let isLosing = false;
  for await (const chunk of source as AsyncIterable<Buffer>) {
    onChunk?.(chunk);
    try {
      await file.append(chunk);
      isLosing = false;
    } catch (error) {
      if (!isLosing) onLost?.(error);
      isLosing = true;
    }
  }
}

/** Opened when it is first written to, and again after it could not be. */
class RotatingFile implements AsyncDisposable {
  readonly #path: string;
  readonly #maxBytes: number;
  #file: FileHandle | undefined;
  #size = 0;

  constructor(path: string, maxBytes: number) {
    this.#path = path;
    this.#maxBytes = maxBytes;
  }

  async append(chunk: Buffer): Promise<void> {
    this.#file ??= await this.#open();
    if (this.#size + chunk.length > this.#maxBytes && this.#size > 0) {
      await this[Symbol.asyncDispose]();
      await rename(this.#path, `${this.#path}.1`);
      this.#file = await this.#open();
    }
    await this.#file.appendFile(chunk);
    this.#size += chunk.length;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    const file = this.#file;
    this.#file = undefined;
    await file?.close();
  }

  async #open(): Promise<FileHandle> {
    const file = await open(this.#path, 'a', 0o640);
    this.#size = (await file.stat()).size;
    return file;
  }
}
