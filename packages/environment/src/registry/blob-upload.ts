import { PlatformError } from '@dsec/contract';
import { blobName, verified } from '../oci/digest.ts';
import type { ImageFiles } from '../oci/image-files.ts';
import type { TreeBlob } from './layout-tree.ts';
import { imageNotFound, unavailable } from './registry-failure.ts';
import type { HttpAnswer } from './http-exchange.ts';
import type { RegistryClient } from './registry-client.ts';
import type { RetryBudget } from './retry-budget.ts';

export interface BlobUploadOptions extends TreeBlob {
  readonly files: ImageFiles;
  readonly signal: AbortSignal | undefined;
  readonly onProgress: (doneBytes: number) => void;
}

/** Blobs up to this size go up in one request, larger ones in requests of this size. */
const CHUNK_BYTES = 8 * 1024 * 1024;
/** A registry may want larger chunks, up to this. */
const MAX_CHUNK_BYTES = 64 * 1024 * 1024;

interface UploadStatus {
  readonly sizeBytes: number;
  /** Where the next chunk goes. */
  readonly location: URL;
}

/** Puts one blob of a layout into a registry. */
export class BlobUpload {
  readonly #client: RegistryClient;
  readonly #options: BlobUploadOptions;
  readonly #budget: RetryBudget;

  constructor(client: RegistryClient, options: BlobUploadOptions) {
    this.#client = client;
    this.#options = options;
    this.#budget = client.budget(options.signal);
  }

  /** @returns false when it was there already */
  async run(): Promise<boolean> {
    const { digest } = this.#options;
    for (;;) {
      try {
        if (await this.#isPresent(digest)) return false;
        await this.#upload();
        return true;
      } catch (error) {
        await this.#budget.afterFailure(error);
      }
    }
  }

  async #isPresent(digest: string): Promise<boolean> {
    const url = this.#client.address(`blobs/${digest}`);
    await using answer = await this.#client.requestOnce({ method: 'HEAD', url, signal: this.#options.signal }, [404]);
    return answer.status === 200;
  }

  async #upload(): Promise<void> {
    const { digest, sizeBytes, files, signal, onProgress } = this.#options;
    const name = blobName(digest);
    if ((await files.size(name)) === undefined) {
      throw new PlatformError('image_corrupt', `The image lacks ${digest}`, {
        details: { layer: digest, offset: 0, reason: 'missing' },
      });
    }
    const begun = await this.#begin();
    let { location } = begun;
    let sent = 0;
    // The digest is known to be right before the last request makes a blob of what was sent.
    let held: Buffer = Buffer.alloc(0);
    for await (const chunk of chunksOf(
      verified(files.read(name), { digest, sizeBytes, layer: digest }),
      begun.chunkBytes,
    )) {
      if (held.length > 0) {
        location = await this.#patch(location, held, sent);
        sent += held.length;
        onProgress(sent);
      }
      held = chunk;
    }
    const isWhole = sent === 0;
    if (!isWhole && held.length > 0) location = await this.#patch(location, held, sent);
    const commit = new URL(location);
    commit.searchParams.set('digest', digest);
    const headers = { 'content-type': 'application/octet-stream' };
    const body = isWhole ? held : Buffer.alloc(0);
    await using answer = await this.#client.requestOnce({ method: 'PUT', url: commit, headers, body, signal }, [404]);
    if (answer.status === 404) throw unavailable(this.#client.registry, 'upload');
    onProgress(sizeBytes);
  }

  async #begin(): Promise<{ readonly location: URL; readonly chunkBytes: number }> {
    const url = this.#client.address('blobs/uploads/');
    const { signal } = this.#options;
    const body = Buffer.alloc(0);
    await using answer = await this.#client.requestOnce({ method: 'POST', url, body, signal }, [404]);
    if (answer.status === 404) throw imageNotFound(this.#client.registry, this.#client.repository);
    const location = this.#location(answer, url);
    if (location === undefined) throw unavailable(this.#client.registry, 'response');
    const least = Number(answer.header('oci-chunk-min-length') ?? 0);
    if (!(least <= MAX_CHUNK_BYTES)) throw unavailable(this.#client.registry, 'response');
    return { location, chunkBytes: Math.max(CHUNK_BYTES, Math.ceil(least)) };
  }

  /** Sends one chunk; when that breaks, asks how much of it has arrived and sends the rest. @returns where the next one goes */
  async #patch(location: URL, chunk: Buffer, offset: number): Promise<URL> {
    const { signal } = this.#options;
    let at = location;
    let arrived = 0;
    while (arrived < chunk.length) {
      const body = chunk.subarray(arrived);
      const start = offset + arrived;
      const headers = {
        'content-type': 'application/octet-stream',
        'content-range': `${start}-${start + body.length - 1}`,
      };
      try {
        await using answer = await this.#client.requestOnce({ method: 'PATCH', url: at, headers, body, signal });
        this.#budget.progressed();
        return this.#location(answer, at) ?? at;
      } catch (error) {
        const status = await this.#statusAfter(error, at);
        // What was before this chunk is not held any more.
        if (status === undefined || status.sizeBytes < offset || status.sizeBytes > offset + chunk.length) {
          throw unavailable(this.#client.registry, 'upload', { cause: error });
        }
        arrived = status.sizeBytes - offset;
        at = status.location;
      }
    }
    return at;
  }

  async #statusAfter(error: unknown, location: URL): Promise<UploadStatus | undefined> {
    for (let failure = error; ; ) {
      await this.#budget.afterFailure(failure);
      try {
        return await this.#status(location);
      } catch (next) {
        failure = next;
      }
    }
  }

  /** How much of an upload has arrived. Undefined when the registry does not know. */
  async #status(location: URL): Promise<UploadStatus | undefined> {
    const { signal } = this.#options;
    await using answer = await this.#client.requestOnce({ method: 'GET', url: location, signal }, [400, 404, 405]);
    const end = /^(?:bytes=)?0-([0-9]{1,15})$/.exec(answer.header('range') ?? '')?.[1];
    if (answer.status !== 204 || end === undefined) return undefined;
    // Registries say 0-0 of an upload that has nothing.
    const sizeBytes = Number(end) === 0 ? 0 : Number(end) + 1;
    return { sizeBytes, location: this.#location(answer, location) ?? location };
  }

  /** Where the registry wants the next request: at itself, or at another by TLS. */
  #location(answer: HttpAnswer, from: URL): URL | undefined {
    const text = answer.header('location');
    if (text === undefined) return undefined;
    const location = URL.canParse(text, from.href) ? new URL(text, from.href) : undefined;
    const isFit =
      location !== undefined &&
      location.username === '' &&
      location.password === '' &&
      (location.protocol === 'https:' || location.origin === from.origin);
    if (!isFit) throw unavailable(this.#client.registry, 'redirect');
    return location;
  }
}

/** Parts of equal size, the last as it comes; at least one. */
async function* chunksOf(source: AsyncIterable<Uint8Array>, chunkBytes: number): AsyncGenerator<Buffer> {
  let parts: Uint8Array[] = [];
  let held = 0;
  for await (const part of source) {
    for (let at = 0; at < part.length; ) {
      const taken = part.subarray(at, at + chunkBytes - held);
      parts.push(taken);
      held += taken.length;
      at += taken.length;
      if (held < chunkBytes) continue;
      yield Buffer.concat(parts);
      parts = [];
      held = 0;
    }
  }
  if (held > 0) yield Buffer.concat(parts);
}
