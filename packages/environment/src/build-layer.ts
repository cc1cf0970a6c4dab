import { open, rm, type FileHandle } from 'node:fs/promises';
import { join } from 'node:path';
import { type EnvironmentConfig, type EnvironmentImage, PlatformError } from '@dsec/contract';
import { type DirectoryNode, ImageWriter, type WrittenData } from '@dsec/erofs';
import { throwIfAborted } from '@dsec/kit';
import { type BuildContext, DEFAULT_MAX_SIZE_BYTES } from './build-context.ts';
import { fileOutput } from './file-output.ts';
import { fileSha256, layerDigest } from './layer-digest.ts';
import { DATA_FILE, ROOTFS_FILE } from './layer-files.ts';
import type { LayerRecord } from './layer-record.ts';
import { type Draft, FILE_MODE, publish, withDraft, writeRecord } from './publish-layer.ts';

/** What a source of layers gets to work with. */
export interface LayerDraft {
  readonly writer: ImageWriter;
  /** For the build's own temporary files; gone when the build ends. */
  readonly scratch: string;
}

/** What a source of layers returns when all file data are in the image. */
export interface LayerContent {
  readonly root: DirectoryNode;
  readonly config: EnvironmentConfig;
  readonly architecture: string;
  readonly source: LayerRecord['source'];
  /** Looks at what was written, before it is published; what it throws ends the build. */
  readonly verify?: (files: { readonly metadata: FileHandle; readonly data: FileHandle }) => Promise<void>;
}

/**
 * Makes one layer of metadata and, apart from them, data in chunks, and publishes it as `<layersDirectory>/<hex>/` (docs/layers.md): all at
 * once, durably, and only when it is whole. Its data are complete, so it has no map that says where to fetch them from. What fails or is
 * interrupted leaves nothing that is taken for a layer, and what it does leave (after a kill) the next build removes. A layer that is there
 * already is not written again.
 *
 * @throws PlatformError `disk_full`, `cancelled`, and what `fill` throws
 */
export const buildLayer = (
  context: BuildContext,
  fill: (draft: LayerDraft) => Promise<LayerContent>,
): Promise<EnvironmentImage> =>
  withDraft(context, async (draft) => {
    const { content, metadataBytes, data } = await writeFiles(context, draft, fill);
    throwIfAborted(context.signal);
    const { architecture, config, source } = content;
    const metadataHex = await fileSha256(join(draft.staged, ROOTFS_FILE));
    const dataHex = data.digest.toString('hex');
    const digest = layerDigest(metadataHex, dataHex);
    const sizeBytes = metadataBytes + data.sizeBytes;
    await writeRecord(draft, {
      version: 2,
      digest,
      sizeBytes,
      metadata: { digest: `sha256:${metadataHex}`, sizeBytes: metadataBytes },
      data: { digest: `sha256:${dataHex}`, sizeBytes: data.sizeBytes },
      createdAtMs: context.clock.now(),
      architecture,
      source,
      config,
    });
    await publish(context, digest, draft);
    return { layers: [digest], config, sizeBytes, architecture };
  });

interface Filled {
  readonly content: LayerContent;
  readonly metadataBytes: number;
  readonly data: WrittenData;
}

const writeFiles = async (
  context: BuildContext,
  draft: Draft,
  fill: (draft: LayerDraft) => Promise<LayerContent>,
): Promise<Filled> => {
  const dataPath = join(draft.staged, DATA_FILE);
  await using metadata = await open(join(draft.staged, ROOTFS_FILE), 'wx+', 0o600);
  await using data = await open(dataPath, 'wx+', 0o600);
  const writer = new ImageWriter(fileOutput(metadata), {
    data: fileOutput(data),
    maxSizeBytes: context.maxSizeBytes ?? DEFAULT_MAX_SIZE_BYTES,
  });
  const content = await fill({ writer, scratch: draft.scratch });
  throwIfAborted(context.signal);
  context.onProgress?.({ step: 'writing the file system' });
  const written = await writer.finish(content.root);
  if (written.data === undefined)
    throw new PlatformError('internal', 'An image with its data apart says nothing of them');
  for (const file of [metadata, data]) {
    await file.chmod(FILE_MODE);
    await file.sync();
  }
  await content.verify?.({ metadata, data });
  if (written.data.sizeBytes === 0) await rm(dataPath);
  return { content, metadataBytes: written.sizeBytes, data: written.data };
};
