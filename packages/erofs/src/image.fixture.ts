import { mkdtemp, open, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run, SystemClock } from '@dsec/kit';
import type { DirectoryNode, FileData, ImageOutput, WrittenData } from './index.ts';
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

/** mount(2), which differs. */
const SYS_MOUNT = process.arch === 'arm64' ? 40 : 165;
const MS_RDONLY = 1;

/** Has the kernel mount the image and its data from their files: mount(8) would put loop devices between. */
export const mountedFiles = async (
  image: string,
  data: string | readonly string[] | undefined,
  at: string,
): Promise<AsyncDisposable> => {
  const program = `my $type = "erofs"; syscall(${SYS_MOUNT}, $ARGV[0], $ARGV[1], $type, ${MS_RDONLY}, $ARGV[2]) == 0 or die $!`;
  const devices = typeof data === 'string' ? [data] : (data ?? []);
  await tool('perl', '-e', program, image, at, devices.map((path) => `device=${path}`).join(','));
  return {
    [Symbol.asyncDispose]: async () => {
      await tool('umount', at);
    },
  };
};

/** An image in memory. */
export class MemoryOutput implements ImageOutput {
  bytes: Buffer = Buffer.alloc(0);

  write(bytes: Uint8Array, position: number): Promise<void> {
    this.#resize(Math.max(this.bytes.length, position + bytes.length));
    this.bytes.set(bytes, position);
    return Promise.resolve();
  }

  truncate(sizeBytes: number): Promise<void> {
    this.#resize(sizeBytes);
    return Promise.resolve();
  }

  #resize(sizeBytes: number): void {
    if (sizeBytes === this.bytes.length) return;
    const grown = Buffer.alloc(sizeBytes);
    grown.set(this.bytes.subarray(0, sizeBytes));
    this.bytes = grown;
  }
}

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
