import { open, rename, type FileHandle } from 'node:fs/promises';
import { PassThrough, type Readable } from 'node:stream';

/** A log file is set aside at this size; one older file is kept. */
const MAX_LOG_BYTES = 32 * 1024 * 1024;

export interface LogOptions {
  readonly maxBytes?: number;
  /** Sees what is written. */
  readonly onChunk?: (chunk: Buffer) => void;
}

/** Copies a stream into a file that cannot fill the disk. Resolves when the stream has ended. */
export async function copyToLog(stream: Readable, path: string, options: LogOptions = {}): Promise<void> {
  const { maxBytes = MAX_LOG_BYTES, onChunk } = options;
  // Attached before anything is awaited: when a process exits, Node throws away what nobody reads.
  const source = stream.pipe(new PassThrough());
  let file = await open(path, 'a', 0o640);
  let size = (await file.stat()).size;
  try {
    for await (const chunk of source as AsyncIterable<Buffer>) {
      onChunk?.(chunk);
      if (size + chunk.length > maxBytes && size > 0) {
        file = await rotate(file, path);
        size = 0;
      }
      await file.appendFile(chunk);
      size += chunk.length;
    }
  } finally {
    await file.close();
  }
}

async function rotate(file: FileHandle, path: string): Promise<FileHandle> {
  await file.close();
  await rename(path, `${path}.1`);
  return await open(path, 'a', 0o640);
}
