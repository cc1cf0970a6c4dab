import { join } from 'node:path';
import { type EnvironmentConfig, type EnvironmentImage, PlatformError } from '@dsec/contract';
import { type DirectoryNode, EMPTY_FILE, type FileData, type FsNode, type ImageWriter } from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import { type BuildContext, DEFAULT_MAX_SIZE_BYTES } from './build-context.ts';
import { buildLayer } from './build-layer.ts';
import { decompress } from './decompress.ts';
import { hostArchitecture } from './host-architecture.ts';
import { DEFAULT_MERGE_UP_TO_BYTES, groupLayers, type LayerGroup } from './layer-groups.ts';
import { imageOf, NO_CONFIG } from './layer-stack.ts';
import { LayerTree, type StoreFile } from './layer-tree.ts';
import type { LowerTree } from './lower-tree.ts';
import { MadeLayers } from './made-layers.ts';
import { verified } from './oci/digest.ts';
import { environmentConfig } from './oci/environment-config.ts';
import { type ImageFiles, openImageFiles } from './oci/image-files.ts';
import { type ImageLayer, selectImage } from './oci/select-image.ts';
import { openLayers } from './open-layers.ts';
import { withDraft } from './publish-layer.ts';
import { completeRoot, completeUpperRoot, completeWorkdir, hasWorkdir } from './root-skeleton.ts';

/** How an image becomes layers. */
export interface ImportOptions {
  /**
   * Consecutive layers of the image become one up to this size, as the image holds them; 0 keeps each apart. What an earlier import has made
   * of the image's lowest layers is taken as it is. @default 3 GiB
   */
  readonly mergeUpToBytes?: number | undefined;
}

export interface ImageImport extends ImportOptions {
  /** An OCI layout directory, or an archive of one or of `docker save` (plain, gzip or zstd). */
  readonly path: string;
  /** Which image, when there are several: a name, or only its tag. */
  readonly reference?: string | undefined;
  /** In OCI's words. @default that of this machine */
  readonly architecture?: string;
}

/** Where the files of an image come from, and which image is meant. */
export interface ImageSource extends ImportOptions {
  /** What the record of the layer says it was made from. */
  readonly name: string;
  /** Which image, when there are several. */
  readonly reference?: string | undefined;
  /** In OCI's words. @default that of this machine */
  readonly architecture?: string | undefined;
  /** Opens the files. What they need on the disk stands in `scratch`, which outlives them. */
  readonly open: (scratch: string) => Promise<ImageFiles>;
}

/**
 * Makes an image on this disk into layers: one, or several when it is large or stands on what is there already. Every digest is checked,
 * nothing is unpacked, and no root is needed.
 *
 * @throws PlatformError `image_corrupt`, `image_unsupported`, `archive_unsafe` (each with `details` layer, offset and reason),
 * `image_architecture`, `invalid_argument`, `disk_full`, `cancelled`
 *
 * @example
 * const image = await importImage(context, { path: 'alpine.tar' });
 */
export const importImage = (context: BuildContext, image: ImageImport): Promise<EnvironmentImage> =>
  importFrom(context, {
    ...image,
    name: image.reference ?? '',
    open: (scratch) =>
      openImageFiles(image.path, () =>
        Promise.resolve({
          path: join(scratch, 'image.tar'),
          maxBytes: context.maxSizeBytes ?? DEFAULT_MAX_SIZE_BYTES,
        }),
      ),
  });

/** As {@link importImage}, wherever the files of the image are. */
export const importFrom = (context: BuildContext, source: ImageSource): Promise<EnvironmentImage> =>
  withDraft(context, async ({ scratch }) => {
    context.onProgress?.({ step: 'reading the image' });
    await using files = await source.open(scratch);
    const architecture = source.architecture ?? hostArchitecture();
    const { config, layers } = await selectImage(files, { architecture, reference: source.reference });
    const stack = new ImageStack({ context, source, files, layers, architecture, config: environmentConfig(config) });
    return await stack.make();
  });

interface ImageStackParts {
  readonly context: BuildContext;
  readonly source: ImageSource;
  readonly files: ImageFiles;
  /** Lowest first. */
  readonly layers: readonly ImageLayer[];
  readonly architecture: string;
  readonly config: EnvironmentConfig;
}

/** The layers that an image becomes, from the lowest up. */
class ImageStack {
  readonly #parts: ImageStackParts;
  readonly #made: MadeLayers | undefined;
  /** Topmost first. */
  #digests: string[] = [];
  #isExpected = false;

  constructor(parts: ImageStackParts) {
    this.#parts = parts;
    const { layersDirectory, notesDirectory: directory, clock, holds } = parts.context;
    this.#made = directory === undefined ? undefined : new MadeLayers({ directory, layersDirectory, clock, holds });
  }

  async make(): Promise<EnvironmentImage> {
    const { context, layers, files, source, config, architecture } = this.#parts;
    const sizes: number[] = [];
    for (const { file, sizeBytes } of layers) sizes.push(sizeBytes ?? (await files.size(file)) ?? 0);
    const groups = await groupLayers({
      sizes,
      mergeUpToBytes: source.mergeUpToBytes ?? DEFAULT_MERGE_UP_TO_BYTES,
      isKnown: async (group) => (await this.#made?.find(this.#key(group))) !== undefined,
    });
    // An image may be nothing but its configuration.
    if (groups.length === 0) groups.push({ start: 0, end: 0 });
    for (const [index, group] of groups.entries()) await this.#add(group, groups.slice(index));
    return await imageOf(context.layersDirectory, { layers: this.#digests, config, architecture });
  }

  /** @param rest the group and all above it */
  async #add(group: LayerGroup, rest: readonly LayerGroup[]): Promise<void> {
    const { context, layers, config } = this.#parts;
    const isTop = group.end === layers.length;
    const key = this.#key(group);
    const known = await this.#made?.find(key);
    if (known?.layer !== undefined && (!isTop || (await this.#hasWorkdir(known.layer)))) {
      this.#put(known.layer);
      return;
    }
    await this.#expect(rest);
    await using below =
      this.#digests.length === 0 ? undefined : await openLayers(context.layersDirectory, this.#digests);
    let isOwn = true;
    const { layers: made } = await buildLayer(context, async ({ writer }) => {
      const root = await this.#merge(group, writer, below?.tree);
      if (below === undefined) completeRoot(root);
      else completeUpperRoot(root);
      // A directory that only this image asks for is none of what others make of the same layers.
      if (isTop && (await completeWorkdir(root, config.workdir, below?.tree))) isOwn = false;
      const { architecture, source } = this.#parts;
      return {
        root,
        config: isTop ? config : NO_CONFIG,
        architecture,
        source: { kind: 'image', name: source.name.slice(0, 1024) },
      };
    });
    const [digest] = made;
    if (digest === undefined) return;
    if (isOwn) await this.#made?.note(key, digest);
    this.#put(digest);
  }

  /** Says which layers will be read, when the first of them is about to be. */
  async #expect(groups: readonly LayerGroup[]): Promise<void> {
    if (this.#isExpected) return;
    this.#isExpected = true;
    const { files, layers } = this.#parts;
    const names: string[] = [];
    for (const group of groups) {
      const isTop = group.end === layers.length;
      if (!isTop && (await this.#made?.find(this.#key(group))) !== undefined) continue;
      names.push(...layers.slice(group.start, group.end).map(({ file }) => file));
    }
    files.expectLayers?.(names);
  }

  /** overlayfs takes each layer once: of two that are equal the upper one says it all. */
  #put(digest: string): void {
    this.#digests = [digest, ...this.#digests.filter((each) => each !== digest)];
  }

  async #hasWorkdir(top: string): Promise<boolean> {
    const { context, config } = this.#parts;
    await using stack = await openLayers(context.layersDirectory, [
      top,
      ...this.#digests.filter((each) => each !== top),
    ]);
    return await hasWorkdir(stack.tree, config.workdir);
  }

  /** What a group becomes depends on its layers and on all that are below it. */
  #key({ start, end }: LayerGroup): string {
    const diffIds = this.#parts.layers.slice(0, end).map(({ diffId }) => diffId);
    return MadeLayers.key('image-layers', 1, diffIds, start);
  }

  /**
   * Merges the layers of a group into one tree. Of several layers only what survives is stored: they are gone through once to see what that
   * is, and again to store it.
   */
  async #merge(group: LayerGroup, writer: ImageWriter, below: LowerTree | undefined): Promise<DirectoryNode> {
    const storeAll: StoreFile = (sizeBytes, bytes) => writer.store(sizeBytes, bytes);
    if (group.end - group.start <= 1) return await this.#apply(group, below, storeAll, 'storing');
    const scan = new SurvivorScan();
    const scanned = await this.#apply(group, below, scan.number, 'checking');
    return await this.#apply(group, below, scan.storeOnly(scanned, storeAll), 'storing');
  }

  async #apply(
    { start, end }: LayerGroup,
    below: LowerTree | undefined,
    store: StoreFile,
    verb: string,
  ): Promise<DirectoryNode> {
    const { context, files, layers } = this.#parts;
    const tree = new LayerTree(below === undefined ? {} : { above: below });
    for (let index = start; index < end; index++) {
      const layer = layers[index];
      if (layer === undefined) break;
      const step = `${verb} layer ${index + 1} of ${layers.length}`;
      const totalBytes = await files.size(layer.file);
      if (totalBytes === undefined) {
        throw new PlatformError('image_corrupt', 'The image lacks one of its layers', {
          details: { layer: layer.name, offset: 0, reason: 'missing' },
        });
      }
      const stored = watched(context, files.read(layer.file), { step, totalBytes });
      const { digest, sizeBytes, name } = layer;
      const checked =
        digest === undefined
          ? stored
          : verified(stored, { digest, layer: name, ...(sizeBytes === undefined ? {} : { sizeBytes }) });
      const tar = verified(decompress(checked, name), { digest: layer.diffId, layer: name });
      await tree.apply(tar, { name, store });
    }
    return tree.finish();
  }
}

const PROGRESS_BYTES = 16 * 1024 * 1024;

/** Reports how far the stream is, and ends it when the build is cancelled. */
async function* watched(
  context: BuildContext,
  source: AsyncIterable<Uint8Array>,
  progress: { readonly step: string; readonly totalBytes: number },
): AsyncGenerator<Uint8Array> {
  let doneBytes = 0;
  let reported = Number.NEGATIVE_INFINITY;
  for await (const chunk of source) {
    throwIfAborted(context.signal);
    if (doneBytes - reported >= PROGRESS_BYTES) {
      context.onProgress?.({ ...progress, doneBytes });
      reported = doneBytes;
    }
    yield chunk;
    doneBytes += chunk.length;
  }
}

/** Tells, before anything is stored, which of the layers' files are still there when all layers are applied. */
class SurvivorScan {
  #count = 0;

  /** Gives each file its number, counted in the order of the layers, where its first block will be. */
  readonly number: StoreFile = (sizeBytes) => Promise.resolve({ sizeBytes, startBlock: this.#count++ });

  /** @param scanned the tree that was made with {@link number} */
  storeOnly(scanned: DirectoryNode, store: StoreFile): StoreFile {
    const survivors = new Set<number>();
    collectNumbers(scanned, survivors);
    let count = 0;
    return (sizeBytes, bytes): Promise<FileData> =>
      survivors.has(count++) ? store(sizeBytes, bytes) : Promise.resolve(EMPTY_FILE);
  }
}

const collectNumbers = (node: FsNode, into: Set<number>): void => {
  if (node.kind === 'file') into.add(node.data.startBlock);
  if (node.kind === 'directory') for (const child of node.children.values()) collectNumbers(child, into);
};
