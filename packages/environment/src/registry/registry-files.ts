import { createReadStream } from 'node:fs';
import { statfs } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { Semaphore } from '@dsec/kit';
import { blobName } from '../oci/digest.ts';
import type { ImageFiles } from '../oci/image-files.ts';
import { type Descriptor, indexParser, manifestParser } from '../oci/image-schema.ts';
import { downloadBlob } from './blob-download.ts';
import { INDEX_MEDIA_TYPES, MANIFEST_MEDIA_TYPES } from './media-type.ts';
import { type ImageReference, printReference } from './reference.ts';
import type { FetchedManifest } from './registry-client.ts';
import type { RegistryEndpoints } from './registry-endpoints.ts';

/** How far one layer is. */
export interface LayerProgress {
  readonly layer: string;
  /** Bytes of this layer. */
  readonly doneBytes: number;
  readonly totalBytes: number;
  /** Bytes of all layers, compressed as they come. */
  readonly imageDoneBytes: number;
  readonly imageTotalBytes: number;
  /** How many layers there are. */
  readonly layerCount: number;
}

export interface RegistryFilesOptions {
  readonly reference: ImageReference;
  readonly endpoints: RegistryEndpoints;
  /** Directory for what is downloaded. */
  readonly scratch: string;
  /** Larger images, as they come compressed, are refused. */
  readonly maxBytes: number;
  /** Ends all downloads. */
  readonly signal: AbortSignal;
  readonly onProgress?: ((progress: LayerProgress) => void) | undefined;
}

/** Layers that are downloaded at once, as docker has it. */
const PARALLEL_LAYERS = 3;
const READ_BYTES = 1024 * 1024;
const PLAIN_DIGEST = /^sha256:[0-9a-f]{64}$/;

/**
 * An image in a registry, as if it were a layout on this disk. Manifests are kept in memory; configuration and layers are downloaded into
 * `scratch`, and nothing of them is read before all of it is there and matches its digest. The first layer to be read sets all of them going that will be.
 */
export class RegistryFiles implements ImageFiles {
  readonly #options: RegistryFilesOptions;
  readonly #stop = new AbortController();
  readonly #signal: AbortSignal;
  readonly #slots: Semaphore;
  readonly #documents = new Map<string, Buffer>();
  readonly #manifests = new Map<string, Descriptor>();
  readonly #blobs = new Map<string, Descriptor>();
  /** Layers of all manifests that have been read (one, of an index as well), as far as they will be. */
  readonly #layers = new Set<string>();
  readonly #downloads = new Map<string, Promise<string>>();
  readonly #doneBytes = new Map<string, number>();
  #hasLayersBegun = false;
  #totalBytes = 0;
  #failure: PlatformError | undefined;

  private constructor(options: RegistryFilesOptions) {
    this.#options = options;
    this.#signal = AbortSignal.any([options.signal, this.#stop.signal]);
    this.#slots = new Semaphore({ permits: PARALLEL_LAYERS, maxWaiting: Number.MAX_SAFE_INTEGER });
  }

  /** @throws PlatformError `image_not_found`, `image_corrupt`, `registry_…`, `cancelled` */
  static async open(options: RegistryFilesOptions): Promise<RegistryFiles> {
    const files = new RegistryFiles(options);
    const { tag, digest } = options.reference;
    const top = await files.#fetchManifest(digest ?? tag ?? '');
    const descriptor = { mediaType: mediaTypeOf(top), digest: top.digest, size: top.bytes.length };
    files.#documents.set(blobName(top.digest), top.bytes);
    files.#learn(top.bytes);
    files.#documents.set('index.json', Buffer.from(JSON.stringify({ schemaVersion: 2, manifests: [descriptor] })));
    return files;
  }

  async size(name: string): Promise<number | undefined> {
    const document = await this.#document(name);
    return document?.length ?? this.#blobs.get(name)?.size;
  }

  async *read(name: string): AsyncGenerator<Uint8Array> {
    const document = await this.#document(name);
    if (document !== undefined) {
      yield document;
      return;
    }
    if (this.#layers.has(name)) await this.#beginLayers();
    const path = await this.#download(name);
    for await (const chunk of createReadStream(path, { highWaterMark: READ_BYTES })) {
      // What fails in one layer need not wait until the one before it has been stored.
      if (this.#failure !== undefined) throw this.#failure;
      yield chunk as Buffer;
    }
  }

  expectLayers(names: readonly string[]): void {
    const wanted = new Set(names);
    for (const name of this.#layers) if (!wanted.has(name)) this.#layers.delete(name);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await Promise.allSettled(this.#downloads.values());
  }

  async #document(name: string): Promise<Buffer | undefined> {
    const known = this.#documents.get(name);
    const listed = this.#manifests.get(name);
    if (known !== undefined || listed === undefined) return known;
    const { bytes } = await this.#fetchManifest(listed.digest);
    this.#documents.set(name, bytes);
    this.#learn(bytes);
    return bytes;
  }

  async #fetchManifest(selector: string): Promise<FetchedManifest> {
    const { endpoints, reference } = this.#options;
    const image = printReference(reference);
    return await endpoints.any((client) => client.manifest({ image, selector }, this.#signal));
  }

  /** Takes note of what a manifest or an index names. Whoever reads the document says what is wrong with it. */
  #learn(bytes: Buffer): void {
    let value: unknown;
    try {
      value = JSON.parse(bytes.toString('utf8'));
    } catch {
      return;
    }
    const note = (into: Map<string, Descriptor>, descriptor: Descriptor): string | undefined => {
      if (!PLAIN_DIGEST.test(descriptor.digest)) return undefined;
      const name = blobName(descriptor.digest);
      if (!into.has(name)) into.set(name, descriptor);
      return name;
    };
    if (indexParser.is(value)) for (const each of value.manifests) note(this.#manifests, each);
    if (!manifestParser.is(value)) return;
    note(this.#blobs, value.config);
    for (const layer of value.layers) {
      const name = note(this.#blobs, layer);
      if (name !== undefined) this.#layers.add(name);
    }
  }

  async #beginLayers(): Promise<void> {
    if (this.#hasLayersBegun) return;
    this.#hasLayersBegun = true;
    const { maxBytes, scratch, reference } = this.#options;
    for (const name of this.#layers) this.#totalBytes += this.#blobs.get(name)?.size ?? 0;
    if (this.#totalBytes > maxBytes) {
      throw new PlatformError('image_unsupported', `The image ${printReference(reference)} is too large`, {
        details: { reason: 'too_large', sizeBytes: this.#totalBytes, limit: maxBytes },
      });
    }
    const { bavail, bsize } = await statfs(scratch);
    if (this.#totalBytes > bavail * bsize) {
      throw new PlatformError('disk_full', `The disk has no room for the layers of ${printReference(reference)}`, {
        details: { requested: this.#totalBytes, current: bavail * bsize },
      });
    }
    for (const name of this.#layers) void this.#download(name);
  }

  /** @returns where it is, when it is there */
  #download(name: string): Promise<string> {
    const begun = this.#downloads.get(name);
    if (begun !== undefined) return begun;
    const download = this.#fetchBlob(name);
    this.#downloads.set(name, download);
    download.catch((error: unknown) => {
      this.#failure ??= PlatformError.is(error)
        ? error
        : new PlatformError('internal', 'A layer could not be kept', { cause: error });
      this.#stop.abort(this.#failure);
    });
    return download;
  }

  async #fetchBlob(name: string): Promise<string> {
    const descriptor = this.#blobs.get(name);
    if (descriptor === undefined) throw new PlatformError('internal', 'The image names no such blob');
    const { digest, size } = descriptor;
    const { scratch, endpoints } = this.#options;
    const path = join(scratch, `blob-${digest.slice('sha256:'.length)}`);
    using _slot = await this.#slots.acquire(this.#signal);
    await downloadBlob({
      digest,
      sizeBytes: size,
      path,
      clients: endpoints.clients,
      signal: this.#signal,
      onProgress: (doneBytes) => this.#report(name, doneBytes),
    });
    return path;
  }

  #report(name: string, doneBytes: number): void {
    if (!this.#layers.has(name)) return;
    this.#doneBytes.set(name, doneBytes);
    const { digest: layer, size: totalBytes } = this.#blobs.get(name) ?? { digest: name, size: doneBytes };
    const imageDoneBytes = this.#doneBytes.values().reduce((sum, each) => sum + each, 0);
    this.#options.onProgress?.({
      layer,
      doneBytes,
      totalBytes,
      imageDoneBytes,
      imageTotalBytes: this.#totalBytes,
      layerCount: this.#layers.size,
    });
  }
}

/** What a registry calls a manifest, or, from one that serves it as any file, what it calls itself. */
const mediaTypeOf = ({ bytes, mediaType }: FetchedManifest): string => {
  if (MANIFEST_MEDIA_TYPES.includes(mediaType) || mediaType.startsWith('application/vnd.')) return mediaType;
  try {
    const value = JSON.parse(bytes.toString('utf8')) as unknown;
    if (typeof value !== 'object' || value === null) return mediaType;
    if ('mediaType' in value && typeof value.mediaType === 'string') return value.mediaType;
    if ('manifests' in value) return INDEX_MEDIA_TYPES[0];
    if ('layers' in value) return MANIFEST_MEDIA_TYPES[INDEX_MEDIA_TYPES.length] ?? mediaType;
  } catch {
    // No JSON, which its reader reports.
  }
  return mediaType;
};
