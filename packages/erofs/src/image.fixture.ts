import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run, SystemClock } from '@dsec/kit';
import { MemoryOutput } from '@dsec/testkit';
import type { DirectoryNode, FileData, WrittenData } from './index.ts';
import { ImageWriter } from './index.ts';

export const clock = new SystemClock();
export const PATH = '/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin';

export const tool = (program: string, ...args: string[]) =>
  run([program, ...args], { clock, env: { PATH }, timeoutMs: 30_000 });

/** A directory of the test's own, with whatever it mounts below it. */
export const temporaryDirectory = async (): Promise<AsyncDisposable & { readonly path: string }> => {
  const path = await mkdtemp(join(tmpdir(), 'dsec-erofs-'));
  return { path, [Symbol.asyncDispose]: () => rm(path, { recursive: true, force: true }) };
};

/** Has the kernel mount the image. */
export const mounted = async (image: string, at: string): Promise<AsyncDisposable> => {
  await tool('mount', '-t', 'erofs', '-o', 'loop,ro', image, at);
  return {
    [Symbol.asyncDispose]: async () => {
      await tool('umount', at);
    },
  };
};

export type Store = (content: Uint8Array) => Promise<FileData>;

export async function* inChunks(content: Uint8Array, chunkBytes = 1000): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < content.length; at += chunkBytes) yield content.subarray(at, at + chunkBytes);
}

/** Writes the tree that `make` builds into memory. */
export const imageOf = async (make: (store: Store) => Promise<DirectoryNode>, chunkBytes?: number): Promise<Buffer> => {
  const output = new MemoryOutput();
  const writer = new ImageWriter(output);
  const root = await make((content) => writer.store(content.length, inChunks(content, chunkBytes)));
  await writer.finish(root);
  return output.bytes;
};

export interface ChunkedImage {
  readonly image: Buffer;
  readonly data: Buffer;
  readonly written: WrittenData;
}

/** Like {@link imageOf}, with the bytes of the files in chunks beside the image. */
export const chunkedImageOf = async (
  make: (store: Store) => Promise<DirectoryNode>,
  chunkBytes?: number,
): Promise<ChunkedImage> => {
  const output = new MemoryOutput();
  const data = new MemoryOutput();
  const writer = new ImageWriter(output, { data });
  const root = await make((content) => writer.store(content.length, inChunks(content, chunkBytes)));
  const { data: written } = await writer.finish(root);
  if (written === undefined) throw new Error('the writer says nothing of the data');
  return { image: output.bytes, data: data.bytes, written };
};

export const saved = async (image: Buffer, path: string): Promise<void> => {
  await using file = await open(path, 'w');
  await file.writeFile(image);
};
