import { PlatformError } from '@dsec/contract';
import { blobName, type Digest, parseDigest } from './digest.ts';
import { readBlobDocument, readDocument } from './image-document.ts';
import type { ImageFiles } from './image-files.ts';
import {
  configParser,
  type Descriptor,
  type DockerManifest,
  dockerManifestParser,
  type ImageConfig,
  indexParser,
  manifestParser,
} from './image-schema.ts';

/** One layer, as the image names it. */
export interface ImageLayer {
  /** What errors call it. */
  readonly name: string;
  readonly file: string;
  /** Of the bytes in the file, when the image says. */
  readonly digest: Digest | undefined;
  readonly sizeBytes: number | undefined;
  /** Of the uncompressed archive. */
  readonly diffId: Digest;
}

export interface SelectedImage {
  readonly config: ImageConfig;
  /** Lowest first. */
  readonly layers: readonly ImageLayer[];
}

export interface Selection {
  /** In OCI's words: `amd64`, `arm64`. */
  readonly architecture: string;
  /** Which image of several: a tag, or a name as the archive has it. */
  readonly reference?: string | undefined;
}

/** Indexes in indexes: real images have two levels. */
const MAX_INDEX_DEPTH = 4;

const INDEX_TYPES = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
];
const MANIFEST_TYPES = [
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.v2+json',
];
const LAYER_TYPE =
  /^application\/vnd\.(?:oci\.image\.layer(?:\.nondistributable)?\.v1\.tar(?:\+gzip|\+zstd)?|docker\.image\.rootfs\.(?:diff|foreign\.diff)\.tar(?:\.gzip|\.zstd)?)$/;
const NAME_ANNOTATIONS = ['org.opencontainers.image.ref.name', 'io.containerd.image.name'];

/**
 * Finds the image in a layout: an OCI index if there is one (newer `docker save` writes both forms), else Docker's `manifest.json`.
 *
 * @throws PlatformError `image_architecture` when there is none for this processor, `invalid_argument` when the reference names none or it
 * takes one to tell several apart, `image_corrupt`, `image_unsupported`
 */
export const selectImage = async (files: ImageFiles, selection: Selection): Promise<SelectedImage> => {
  if ((await files.size('index.json')) !== undefined) {
    const { manifests } = await readDocument(files, { name: 'index.json' }, indexParser);
    return await fromIndex(files, byReference(manifests, selection), selection, 1);
  }
  if ((await files.size('manifest.json')) !== undefined) {
    return await fromDocker(
      files,
      await readDocument(files, { name: 'manifest.json' }, dockerManifestParser),
      selection,
    );
  }
  throw new PlatformError('image_unsupported', 'This is neither an OCI layout nor an archive of docker save', {
    details: { reason: 'no_index' },
  });
};

const byReference = (manifests: readonly Descriptor[], selection: Selection): readonly Descriptor[] => {
  const { reference } = selection;
  if (reference === undefined) return manifests;
  const found = manifests.filter((each) => namesOf(each).some((name) => nameMatches(name, reference)));
  if (found.length === 0) throw unknownReference(reference, manifests.flatMap(namesOf));
  return found;
};

const fromIndex = async (
  files: ImageFiles,
  manifests: readonly Descriptor[],
  selection: Selection,
  depth: number,
): Promise<SelectedImage> => {
  // Attestations stand beside images as manifests of no platform.
  const images = manifests.filter(({ platform }) => platform?.os !== 'unknown');
  const fitting = images.filter(
    ({ platform }) =>
      platform === undefined ||
      platform === null ||
      (platform.os === 'linux' && platform.architecture === selection.architecture),
  );
  const [only] = fitting;
  if (only === undefined) {
    throw wrongArchitecture(
      images.map(({ platform }) => `${platform?.os}/${platform?.architecture}`),
      selection,
    );
  }
  const digests = new Set(fitting.map(({ digest }) => digest));
  if (digests.size > 1 && depth === 1) throw ambiguous(fitting.flatMap(namesOf));
  const digest = parseDigest(only.digest);
  const mediaType = only.mediaType ?? '';
  if (INDEX_TYPES.includes(mediaType)) {
    if (depth >= MAX_INDEX_DEPTH) {
      throw new PlatformError('image_unsupported', 'The indexes of the image are nested too deep', {
        details: { reason: 'index_depth' },
      });
    }
    const nested = await readBlobDocument(files, only, digest, indexParser);
    return await fromIndex(files, nested.manifests, selection, depth + 1);
  }
  if (!MANIFEST_TYPES.includes(mediaType)) throw unsupportedType(digest, mediaType);
  const manifest = await readBlobDocument(files, only, digest, manifestParser);
  const config = await readBlobDocument(files, manifest.config, parseDigest(manifest.config.digest), configParser);
  const diffIds = checkedConfig(config, manifest.layers.length, selection, manifest.config.digest);
  const layers = manifest.layers.map((layer, index): ImageLayer => {
    const layerDigest = parseDigest(layer.digest);
    if (layer.mediaType === undefined || !LAYER_TYPE.test(layer.mediaType)) {
      throw unsupportedType(layerDigest, layer.mediaType ?? '');
    }
    const diffId = diffIds[index] ?? '';
    return { name: layerDigest, file: blobName(layerDigest), digest: layerDigest, sizeBytes: layer.size, diffId };
  });
  return { config, layers };
};

const fromDocker = async (
  files: ImageFiles,
  manifests: DockerManifest,
  selection: Selection,
): Promise<SelectedImage> => {
  const { reference } = selection;
  const names = manifests.flatMap(({ RepoTags }) => RepoTags ?? []);
  const found =
    reference === undefined
      ? manifests
      : manifests.filter(({ RepoTags }) => (RepoTags ?? []).some((name) => nameMatches(name, reference)));
  const [only] = found;
  if (only === undefined) throw unknownReference(reference ?? '', names);
  if (found.length > 1) throw ambiguous(names);
  // The name of the configuration is its digest.
  const hex = /(?:^|\/)([0-9a-f]{64})(?:\.json)?$/.exec(only.Config)?.[1];
  const digest = hex === undefined ? {} : { digest: `sha256:${hex}` };
  const config = await readDocument(files, { name: only.Config, ...digest }, configParser);
  const files_ = only.Layers ?? [];
  const diffIds = checkedConfig(config, files_.length, selection, only.Config);
  const layers = files_.map((file, index): ImageLayer => {
    const diffId = diffIds[index] ?? '';
    return { name: diffId, file, digest: undefined, sizeBytes: undefined, diffId };
  });
  return { config, layers };
};

/** @returns the digests of the uncompressed layers */
const checkedConfig = (config: ImageConfig, layers: number, selection: Selection, name: string): Digest[] => {
  const os = config.os ?? 'linux';
  if (config.architecture !== selection.architecture || (os !== 'linux' && os !== '')) {
    throw wrongArchitecture([`${os}/${config.architecture}`], selection);
  }
  const diffIds = (config.rootfs.diff_ids ?? []).map(parseDigest);
  if (diffIds.length !== layers) {
    throw new PlatformError('image_corrupt', 'Manifest and configuration of the image name different layers', {
      details: { layer: name, offset: 0, reason: 'layer_count' },
    });
  }
  return diffIds;
};

const namesOf = ({ annotations }: Descriptor): string[] => NAME_ANNOTATIONS.flatMap((key) => annotations?.[key] ?? []);

/** A reference may be the whole name, its end after a slash, or only the tag. */
const nameMatches = (name: string, reference: string): boolean =>
  name === reference || name.endsWith(`/${reference}`) || name.endsWith(`:${reference}`);

const wrongArchitecture = (found: readonly string[], { architecture }: Selection): PlatformError =>
  new PlatformError(
    'image_architecture',
    `The image is for ${found.join(', ') || 'nothing'}, not for linux/${architecture}`,
    {
      details: { found: [...new Set(found)], wanted: `linux/${architecture}` },
    },
  );

const unknownReference = (reference: string, names: readonly string[]): PlatformError =>
  new PlatformError('invalid_argument', `There is no image ${reference} here`, {
    details: { field: 'reference', names: [...names] },
  });

const ambiguous = (names: readonly string[]): PlatformError =>
  new PlatformError('invalid_argument', 'There are several images here: say which', {
    details: { field: 'reference', names: [...names] },
  });

const unsupportedType = (layer: string, mediaType: string): PlatformError =>
  new PlatformError('image_unsupported', `The image has a part of the type ${mediaType.slice(0, 128) || '(none)'}`, {
    details: { layer, offset: 0, reason: 'media_type' },
  });
