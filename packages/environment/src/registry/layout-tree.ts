import { PlatformError } from '@dsec/contract';
import { blobName, type Digest, parseDigest, verified } from '../oci/digest.ts';
import { readDocument } from '../oci/image-document.ts';
import type { ImageFiles } from '../oci/image-files.ts';
import { type Descriptor, indexParser, manifestParser } from '../oci/image-schema.ts';
import { INDEX_MEDIA_TYPES, MANIFEST_MEDIA_TYPES } from './media-type.ts';
import { MAX_MANIFEST_BYTES } from './registry-client.ts';

interface TreeManifest {
  readonly digest: Digest;
  readonly mediaType: string;
  readonly bytes: Buffer;
}

export interface TreeBlob {
  readonly digest: Digest;
  readonly sizeBytes: number;
}

/** An image of a layout, with everything below it. */
export interface LayoutTree {
  /** Each after what it names: the last is the top one. */
  readonly manifests: readonly TreeManifest[];
  readonly blobs: readonly TreeBlob[];
  readonly top: TreeManifest;
}

const MAX_DEPTH = 4;
const MAX_MANIFESTS = 1024;
const NAME_ANNOTATIONS = ['org.opencontainers.image.ref.name', 'io.containerd.image.name'];

/**
 * Reads which manifests and blobs an image of an OCI layout is made of.
 *
 * @param image its name, or the tag of that, when there are several
 * @throws PlatformError `invalid_argument` when it takes a name to tell which, `image_unsupported`, `image_corrupt`
 */
export const layoutTree = async (files: ImageFiles, image: string | undefined): Promise<LayoutTree> => {
  if ((await files.size('index.json')) === undefined) {
    throw new PlatformError('image_unsupported', 'This is no OCI layout', { details: { reason: 'no_index' } });
  }
  const { manifests } = await readDocument(files, { name: 'index.json' }, indexParser);
  const walk = new Walk(files);
  const top = await walk.visit(choose(manifests, image), 1);
  return { manifests: [...walk.manifests.values()], blobs: [...walk.blobs.values()], top };
};

const choose = (manifests: readonly Descriptor[], image: string | undefined): Descriptor => {
  const found = image === undefined ? manifests : manifests.filter((each) => hasName(each, image));
  const [only] = found;
  if (only !== undefined && new Set(found.map(({ digest }) => digest)).size === 1) return only;
  const names = manifests.flatMap(namesOf);
  const message = only === undefined ? 'There is no such image here' : 'There are several images here: say which';
  throw new PlatformError('invalid_argument', message, { details: { field: 'image', names } });
};

const namesOf = ({ annotations }: Descriptor): string[] => NAME_ANNOTATIONS.flatMap((key) => annotations?.[key] ?? []);

const hasName = (descriptor: Descriptor, image: string): boolean =>
  namesOf(descriptor).some((name) => name === image || name.endsWith(`/${image}`) || name.endsWith(`:${image}`));

class Walk {
  readonly manifests = new Map<Digest, TreeManifest>();
  readonly blobs = new Map<Digest, TreeBlob>();
  readonly #files: ImageFiles;

  constructor(files: ImageFiles) {
    this.#files = files;
  }

  async visit(descriptor: Descriptor, depth: number): Promise<TreeManifest> {
    const digest = parseDigest(descriptor.digest);
    const known = this.manifests.get(digest);
    if (known !== undefined) return known;
    const { mediaType = '' } = descriptor;
    if (!MANIFEST_MEDIA_TYPES.includes(mediaType)) throw unsupported(digest, 'media_type');
    if (depth > MAX_DEPTH) throw unsupported(digest, 'index_depth');
    if (this.manifests.size >= MAX_MANIFESTS) throw unsupported(digest, 'too_many_manifests');
    const bytes = await this.#bytes(digest, descriptor.size);
    const source = { name: blobName(digest), digest, sizeBytes: descriptor.size };
    if (INDEX_MEDIA_TYPES.some((each) => each === mediaType)) {
      const index = await readDocument(this.#files, source, indexParser);
      for (const each of index.manifests) await this.visit(each, depth + 1);
    } else {
      const { config, layers } = await readDocument(this.#files, source, manifestParser);
      for (const each of [...layers, config]) {
        const blob = parseDigest(each.digest);
        this.blobs.set(blob, { digest: blob, sizeBytes: each.size });
      }
    }
    const manifest = { digest, mediaType, bytes };
    this.manifests.set(digest, manifest);
    return manifest;
  }

  async #bytes(digest: Digest, sizeBytes: number): Promise<Buffer> {
    const name = blobName(digest);
    const actualBytes = await this.#files.size(name);
    if (actualBytes === undefined || actualBytes > MAX_MANIFEST_BYTES) {
      throw new PlatformError('image_corrupt', `The image's ${digest} is missing or damaged`, {
        details: { layer: digest, offset: 0, reason: actualBytes === undefined ? 'missing' : 'document_size' },
      });
    }
    const parts: Uint8Array[] = [];
    for await (const part of verified(this.#files.read(name), { digest, sizeBytes, layer: digest })) parts.push(part);
    return Buffer.concat(parts);
  }
}

const unsupported = (layer: string, reason: string): PlatformError =>
  new PlatformError('image_unsupported', 'The image has a part that cannot be pushed', {
    details: { layer, offset: 0, reason },
  });
