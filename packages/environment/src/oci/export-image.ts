/** Environments as images that other engines take: an OCI layout, as a directory or as one archive. */
import { createHash } from 'node:crypto';
import { createReadStream } from 'node:fs';
import { mkdir, mkdtemp, open, readdir, rename, rm, stat } from 'node:fs/promises';
import { basename, dirname, join, resolve } from 'node:path';
import { pipeline } from 'node:stream/promises';
import { createGzip } from 'node:zlib';
import { type EnvironmentConfig, type EnvironmentImage, PlatformError } from '@dsec/contract';
import { ByteString, type ImageReader } from '@dsec/erofs';
import { syncDirectory, throwIfAborted } from '@dsec/kit';
import type { BuildContext } from '../build-context.ts';
import { openLayers } from '../open-layers.ts';
import { TAR_END, tarHead, tarPadding } from '../tar/tar-writer.ts';
import { layerArchive } from './layer-archive.ts';

export interface ImageExport {
  readonly image: EnvironmentImage;
  /** What the layout calls it. */
  readonly name: string;
  /** A directory that is made, or a file that is written when this ends with `.tar`. Nothing may be there. */
  readonly output: string;
}

export interface ExportedImage {
  /** Of the manifest. */
  readonly digest: string;
  readonly layers: number;
  /** Of the compressed layers. */
  readonly sizeBytes: number;
}

const LAYER_TYPE = 'application/vnd.oci.image.layer.v1.tar+gzip';
const CONFIG_TYPE = 'application/vnd.oci.image.config.v1+json';
const MANIFEST_TYPE = 'application/vnd.oci.image.manifest.v1+json';
const INDEX_TYPE = 'application/vnd.oci.image.index.v1+json';
const REF_NAME = 'org.opencontainers.image.ref.name';
const EPOCH = { seconds: 0, nanoseconds: 0 };
/** Fast, and within a few percent of the best. */
const GZIP_LEVEL = 6;

interface Descriptor {
  readonly mediaType: string;
  readonly digest: string;
  readonly size: number;
}

/**
 * Writes an environment as an OCI layout. Each of its layers becomes one layer of the image, in the same order. Equal environments give equal digests.
 * What stands at `output` is whole or not there.
 *
 * @throws PlatformError `file_exists` when something is at `output`; `layer_not_found` for a layer that the node lacks or has not all data of;
 * `image_unsupported`, `disk_full`, `cancelled`
 */
export const exportImage = async (context: BuildContext, request: ImageExport): Promise<ExportedImage> => {
  const output = resolve(request.output);
  await requireFree(output);
  const draft = await mkdtemp(join(dirname(output), `.${basename(output)}-`)).catch((error: unknown) => {
    throw noPlace(output, error);
  });
  try {
    const layout = join(draft, 'layout');
    const exported = await writeLayout(context, request, layout);
    await requireFree(output);
    if (output.endsWith('.tar')) {
      context.onProgress?.({ step: 'writing the archive' });
      await writeFileOf(join(draft, 'archive'), archiveOf(context, layout));
      await rename(join(draft, 'archive'), output);
    } else {
      await rename(layout, output);
    }
    await syncDirectory(dirname(output));
    return exported;
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOSPC')
      throw new PlatformError('disk_full', 'The disk that the image is written to is full', { cause: error });
    throw error;
  } finally {
    await rm(draft, { recursive: true, force: true });
  }
};

const noPlace = (output: string, cause: unknown): PlatformError =>
  new PlatformError('file_not_found', `${dirname(output)} is no directory to write into`, {
    details: { path: dirname(output) },
    cause,
  });

const requireFree = async (path: string): Promise<void> => {
  const present = await stat(path).catch((error: unknown) => {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return undefined;
    throw noPlace(path, error);
  });
  if (present !== undefined) {
    throw new PlatformError('file_exists', `there is something at ${path}`, { details: { path } });
  }
};

const writeLayout = async (context: BuildContext, request: ImageExport, layout: string): Promise<ExportedImage> => {
  const { image, name } = request;
  const blobs = join(layout, 'blobs/sha256');
  await mkdir(blobs, { recursive: true, mode: 0o755 });
  await using opened = await openLayers(context.layersDirectory, image.layers);
  const layers: Descriptor[] = [];
  const diffIds: string[] = [];
  for (const [index, reader] of opened.images.entries()) {
    context.onProgress?.({ step: `writing layer ${index + 1} of ${opened.images.length}` });
    const digest = image.layers[image.layers.length - 1 - index] ?? '';
    const { descriptor, diffId } = await writeLayer(context, reader, { blobs, name: digest });
    layers.push(descriptor);
    diffIds.push(diffId);
  }
  const config = await writeDocument(blobs, CONFIG_TYPE, configOf(image, diffIds));
  const manifest = await writeDocument(blobs, MANIFEST_TYPE, {
    schemaVersion: 2,
    mediaType: MANIFEST_TYPE,
    config,
    layers,
  });
  const index = {
    schemaVersion: 2,
    mediaType: INDEX_TYPE,
    manifests: [
      {
        ...manifest,
        platform: { os: 'linux', architecture: image.architecture },
        annotations: { [REF_NAME]: name },
      },
    ],
  };
  await writeFileOf(join(layout, 'index.json'), [Buffer.from(JSON.stringify(index))]);
  await writeFileOf(join(layout, 'oci-layout'), [Buffer.from('{"imageLayoutVersion":"1.0.0"}')]);
  for (const directory of [blobs, dirname(blobs), layout]) await syncDirectory(directory);
  const sizeBytes = layers.reduce((sum, { size }) => sum + size, 0);
  return { digest: manifest.digest, layers: layers.length, sizeBytes };
};

const writeLayer = async (
  context: BuildContext,
  reader: ImageReader,
  { blobs, name }: { readonly blobs: string; readonly name: string },
): Promise<{ readonly descriptor: Descriptor; readonly diffId: string }> => {
  const plain = createHash('sha256');
  const stored = createHash('sha256');
  const partial = join(blobs, 'layer.partial');
  let size = 0;
  await using file = await open(partial, 'wx', 0o644);
  await pipeline(
    async function* () {
      for await (const bytes of layerArchive(reader, name)) {
        throwIfAborted(context.signal);
        plain.update(bytes);
        yield bytes;
      }
    },
    createGzip({ level: GZIP_LEVEL }),
    async (compressed: AsyncIterable<Buffer>) => {
      for await (const bytes of compressed) {
        stored.update(bytes);
        size += bytes.length;
        await file.appendFile(bytes);
      }
    },
  );
  await file.sync();
  const hex = stored.digest('hex');
  await rename(partial, join(blobs, hex));
  return {
    descriptor: { mediaType: LAYER_TYPE, digest: `sha256:${hex}`, size },
    diffId: `sha256:${plain.digest('hex')}`,
  };
};

const writeDocument = async (blobs: string, mediaType: string, document: object): Promise<Descriptor> => {
  const bytes = Buffer.from(JSON.stringify(document));
  const hex = createHash('sha256').update(bytes).digest('hex');
  await writeFileOf(join(blobs, hex), [bytes]);
  return { mediaType, digest: `sha256:${hex}`, size: bytes.length };
};

const writeFileOf = async (path: string, parts: Iterable<Buffer> | AsyncIterable<Buffer>): Promise<void> => {
  await using file = await open(path, 'wx', 0o644);
  for await (const bytes of parts) await file.appendFile(bytes);
  await file.sync();
};

const configOf = ({ architecture, config }: EnvironmentImage, diffIds: readonly string[]): object => ({
  architecture,
  os: 'linux',
  config: runConfig(config),
  rootfs: { type: 'layers', diff_ids: diffIds },
  history: diffIds.map(() => ({ created_by: 'dsec' })),
});

const runConfig = ({ env, user, workdir, entrypoint, cmd, labels, exposedPorts }: EnvironmentConfig): object => ({
  Env: Object.entries(env).map(([key, value]) => `${key}=${value}`),
  ...(user === '' ? {} : { User: user }),
  ...(workdir === '' ? {} : { WorkingDir: workdir }),
  ...(entrypoint.length === 0 ? {} : { Entrypoint: entrypoint }),
  ...(cmd.length === 0 ? {} : { Cmd: cmd }),
  ...(Object.keys(labels).length === 0 ? {} : { Labels: labels }),
  ...(exposedPorts === undefined ? {} : { ExposedPorts: Object.fromEntries(exposedPorts.map((port) => [port, {}])) }),
});

/** The layout as one archive: what names the blobs comes first. */
async function* archiveOf(context: BuildContext, layout: string): AsyncGenerator<Buffer> {
  const head = { mode: 0o644, uid: 0, gid: 0, mtime: EPOCH };
  const blobs = (await readdir(join(layout, 'blobs/sha256'))).toSorted();
  for (const path of ['blobs', 'blobs/sha256']) {
    yield tarHead({ ...head, type: 'directory', mode: 0o755, path: ByteString.fromText(path) });
  }
  for (const path of ['oci-layout', 'index.json', ...blobs.map((blob) => `blobs/sha256/${blob}`)]) {
    const { size } = await stat(join(layout, path));
    yield tarHead({ ...head, type: 'file', path: ByteString.fromText(path), sizeBytes: size });
    // A file that is opened without an encoding gives Buffers.
    for await (const bytes of createReadStream(join(layout, path)) as AsyncIterable<Buffer>) {
      throwIfAborted(context.signal);
      yield bytes;
    }
    yield tarPadding(size);
  }
  yield TAR_END;
}
