/** Proof that nothing that was to be left out is in a layer: of what is written, not of what was meant. */
import { createHash } from 'node:crypto';
import type { FileHandle } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';
import { type ByteSource, ByteString, fileSource, ImageReader, type Inode } from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import { isOpaque } from '../overlay-marks.ts';
import type { Selection } from './selection.ts';

const BLOCK_BYTES = 4096;
const READ_BYTES = 1024 * 1024;
const ZEROS = Buffer.alloc(BLOCK_BYTES);

export interface PackedFiles {
  /** `rootfs.erofs` */
  readonly metadata: FileHandle;
  /** The layer's data; empty when no file has any. */
  readonly data: FileHandle;
}

export interface Verification {
  readonly selection: Selection;
  /** Digests of the files that were left out, as {@link contentDigest} makes them. */
  readonly omitted: ReadonlySet<string>;
  readonly signal?: AbortSignal | undefined;
}

/** What was found in passing. */
export interface Verified {
  readonly files: number;
  readonly bytes: number;
  /** Files of the layer whose bytes are those of a file that was left out, at most {@link MAX_COPIES}. */
  readonly copies: readonly string[];
}

const MAX_COPIES = 20;

/** Shorter contents are alike by chance. */
export const MIN_COPY_BYTES = 32;

/** What tells the bytes of one file from those of another. */
export const contentDigest = async (bytes: AsyncIterable<Uint8Array>): Promise<string> => {
  const hash = createHash('sha256');
  for await (const chunk of bytes) hash.update(chunk);
  return hash.digest('base64');
};

/**
 * Reads the written layer again, every name and every byte: no path in it is one that was to be left out, and every byte of its data that is not
 * zero is of a file that is in it. So what was left out is not there, under its name or without one.
 *
 * @throws PlatformError `internal` when that is not so: the layer must not be published
 */
export const verifyPack = async (files: PackedFiles, options: Verification): Promise<Verified> => {
  const { selection, omitted, signal } = options;
  const data = new Watched(await fileSource(files.data));
  const image = await ImageReader.open(await fileSource(files.metadata), { data });
  const seen = new Set<number>();
  const copies: string[] = [];
  let bytes = 0;
  for await (const { path, inode } of image.walk()) {
    throwIfAborted(signal);
    const verdict = selection.judge(path);
    if (verdict.kind === 'omit' && !(verdict.by === 'platform' && isPlatforms(inode))) {
      throw broken(`it has ${ByteString.toText(path)}, which was left out`);
    }
    if (inode.kind !== 'file' || seen.has(inode.nid)) continue;
    seen.add(inode.nid);
    bytes += inode.sizeBytes;
    const digest = await contentDigest(image.read(inode));
    if (inode.sizeBytes >= MIN_COPY_BYTES && omitted.has(digest) && copies.length < MAX_COPIES) {
      copies.push(`/${ByteString.toText(path)}`);
    }
  }
  await data.requireNothingElse(signal);
  return { files: seen.size, bytes, copies };
};

/** What every layer has in the place of what is each sandbox's own: an empty file, or the directory that it hides. */
const isPlatforms = ({ kind, sizeBytes, metadata }: Inode): boolean =>
  (kind === 'file' && sizeBytes === 0) || (kind === 'directory' && isOpaque(metadata));

/** Data of which every read is noted. */
class Watched implements ByteSource {
  readonly sizeBytes: number;
  readonly #source: ByteSource;
  /** How much of each block, from its begin, some file is made of. */
  readonly #used: Uint16Array;

  constructor(source: ByteSource) {
    this.#source = source;
    this.sizeBytes = source.sizeBytes;
    this.#used = new Uint16Array(Math.ceil(source.sizeBytes / BLOCK_BYTES));
  }

  read(offset: number, length: number): Promise<Buffer> {
    for (let at = offset; at < offset + length; ) {
      const block = Math.floor(at / BLOCK_BYTES);
      const end = Math.min(offset + length, (block + 1) * BLOCK_BYTES);
      this.#used[block] = Math.max(this.#used[block] ?? 0, end - block * BLOCK_BYTES);
      at = end;
    }
    return this.#source.read(offset, length);
  }

  async requireNothingElse(signal: AbortSignal | undefined): Promise<void> {
    for (let from = 0; from < this.sizeBytes; from += READ_BYTES) {
      throwIfAborted(signal);
      const bytes = await this.#source.read(from, Math.min(READ_BYTES, this.sizeBytes - from));
      for (let at = 0; at < bytes.length; at += BLOCK_BYTES) {
        const used = this.#used[(from + at) / BLOCK_BYTES] ?? 0;
        const rest = bytes.subarray(at + used, Math.min(at + BLOCK_BYTES, bytes.length));
        if (!ZEROS.subarray(0, rest.length).equals(rest)) throw broken('it has bytes that are of none of its files');
      }
    }
  }
}

const broken = (why: string): PlatformError =>
  new PlatformError('internal', `the packed layer is not what it was to be: ${why}`);
