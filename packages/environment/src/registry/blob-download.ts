import { createHash, type Hash } from 'node:crypto';
import { type FileHandle, open } from 'node:fs/promises';
import type { Digest } from '../oci/digest.ts';
import type { RegistryClient } from './registry-client.ts';
import { corrupt, isOfOneRegistry } from './registry-failure.ts';

export interface BlobDownload {
  readonly digest: Digest;
  readonly sizeBytes: number;
  /** Where it goes. Whole and as its digest says when the download has succeeded; else of no use. */
  readonly path: string;
  /** Registries that may have it, best first. */
  readonly clients: readonly RegistryClient[];
  readonly signal: AbortSignal;
  readonly onProgress: (doneBytes: number) => void;
}

/** So much of a blob counts as progress: from then on a registry's failures are counted anew. */
const PROGRESS_BYTES = 1024 * 1024;

/**
 * Fetches a blob into a file. After a broken connection it goes on where it was, at the next registry too; what turns out wrong is fetched
 * anew from the next one. No more than `sizeBytes` are ever written.
 *
 * @throws PlatformError `image_corrupt` with the digest as `details.layer`, `registry_…`, `cancelled`; errors of the file system as they are
 */
export const downloadBlob = async (download: BlobDownload): Promise<void> => {
  await using file = await open(download.path, 'wx', 0o600);
  let partial = new PartialBlob(download, file);
  for (const [index, client] of download.clients.entries()) {
    try {
      await fetchRest(partial, client, download);
      partial.verify();
      return;
    } catch (error) {
      if (index === download.clients.length - 1 || !isOfOneRegistry(error)) throw error;
      if (partial.isWrong) {
        await file.truncate(0);
        partial = new PartialBlob(download, file);
      }
    }
  }
};

const fetchRest = async (partial: PartialBlob, client: RegistryClient, download: BlobDownload): Promise<void> => {
  const { digest, signal, onProgress } = download;
  const budget = client.budget(signal);
  let countedBytes = partial.sizeBytes;
  while (!partial.isWhole) {
    try {
      await using answer = await client.blob(digest, partial.sizeBytes, signal);
      // A registry that knows no ranges begins anew: what is here already is passed over.
      let passOverBytes = partial.sizeBytes - answer.offset;
      for await (const chunk of answer.chunks()) {
        const fresh = chunk.subarray(Math.min(passOverBytes, chunk.length));
        passOverBytes -= chunk.length - fresh.length;
        if (fresh.length === 0) continue;
        await partial.append(fresh);
        onProgress(partial.sizeBytes);
      }
      if (!partial.isWhole) partial.fail('truncated');
    } catch (error) {
      if (partial.sizeBytes - countedBytes >= PROGRESS_BYTES) budget.progressed();
      countedBytes = partial.sizeBytes;
      await budget.afterFailure(error);
    }
  }
};

/** The first part of a blob, in a file. */
class PartialBlob {
  readonly #expected: Pick<BlobDownload, 'digest' | 'sizeBytes'>;
  readonly #file: FileHandle;
  readonly #hash: Hash = createHash('sha256');
  #sizeBytes = 0;
  #isWrong = false;

  constructor(expected: Pick<BlobDownload, 'digest' | 'sizeBytes'>, file: FileHandle) {
    this.#expected = expected;
    this.#file = file;
  }

  get sizeBytes(): number {
    return this.#sizeBytes;
  }

  get isWhole(): boolean {
    return this.#sizeBytes === this.#expected.sizeBytes;
  }

  /** Nothing of it can be relied on. */
  get isWrong(): boolean {
    return this.#isWrong;
  }

  async append(chunk: Uint8Array): Promise<void> {
    if (this.#sizeBytes + chunk.length > this.#expected.sizeBytes) this.fail('too_long');
    this.#hash.update(chunk);
    for (let done = 0; done < chunk.length; ) {
      const { bytesWritten } = await this.#file.write(chunk, done, chunk.length - done, this.#sizeBytes + done);
      done += bytesWritten;
    }
    this.#sizeBytes += chunk.length;
  }

  verify(): void {
    if (`sha256:${this.#hash.digest('hex')}` !== this.#expected.digest) this.fail('digest_mismatch');
  }

  fail(reason: string): never {
    this.#isWrong = true;
    throw corrupt(this.#expected.digest, this.#sizeBytes, reason);
  }
}
