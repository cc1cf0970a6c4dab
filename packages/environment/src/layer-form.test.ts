import { createHash } from 'node:crypto';
import { mkdir, readdir, readFile, stat, truncate } from 'node:fs/promises';
import { join } from 'node:path';
import { type EnvironmentConfig, PlatformError } from '@dsec/contract';
import { ByteString, type DirectoryNode, defaultMetadata, newDirectory } from '@dsec/erofs';
import { mountedFiles } from '@dsec/testkit';
import { describe, expect, it } from 'vitest';
import { testPlace, tool } from './build.fixture.ts';
import type { BuildContext } from './build-context.ts';
import { buildLayer, type LayerContent, type LayerDraft } from './build-layer.ts';
import { layerDataPath, layerImagePath, listLayers, readLayerRecord } from './layer-store.ts';

const CHUNK = 256 * 1024;
const config: EnvironmentConfig = { env: {}, user: 'root', workdir: '/', entrypoint: [], cmd: [], labels: {} };

async function* parts(content: Buffer): AsyncGenerator<Uint8Array> {
  for (let at = 0; at < content.length; at += 100_000) yield content.subarray(at, at + 100_000);
}

/** What a layer of these files, in the root, is made from. */
const filled =
  (files: Readonly<Record<string, Buffer>>) =>
  async ({ writer }: LayerDraft): Promise<LayerContent> => {
    const root: DirectoryNode = newDirectory(defaultMetadata(0o755));
    for (const [name, content] of Object.entries(files)) {
      const data = await writer.store(content.length, parts(content));
      root.children.set(ByteString.fromText(name), { kind: 'file', metadata: defaultMetadata(0o644), data });
    }
    return { root, config, architecture: 'amd64', source: { kind: 'recipe', name: 'a' } };
  };

const files = {
  small: Buffer.from('small\n'),
  large: Buffer.alloc(CHUNK + 5000, 'large'),
  // Its first chunk is a hole.
  hollow: Buffer.concat([Buffer.alloc(CHUNK), Buffer.from('end')]),
};

const build = (context: BuildContext, content: Readonly<Record<string, Buffer>> = files) =>
  buildLayer(context, filled(content));

const sha256 = (bytes: Uint8Array | string): string => createHash('sha256').update(bytes).digest('hex');

const chunkDigests = (data: Buffer): Buffer => {
  const digests: Buffer[] = [];
  for (let at = 0; at < data.length; at += CHUNK) {
    const chunk = data.subarray(at, at + CHUNK);
    digests.push(chunk.every((byte) => byte === 0) ? Buffer.alloc(32) : Buffer.from(sha256(chunk), 'hex'));
  }
  return Buffer.concat(digests);
};

/** The rule of docs/layers.md. */
const digestOf = (metadata: Buffer, data: Buffer): string =>
  `sha256:${sha256(`dsec-layer 2\n${sha256(metadata)}\n${sha256(chunkDigests(data))}\n`)}`;

describe('publishing a layer with its data apart', () => {
  it('names it by both, with a record of both beside them and no map of chunks', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const built = await build(place.context);
    const digest = built.layers[0] ?? '';
    const metadata = await readFile(layerImagePath(layersDirectory, digest));
    const data = await readFile(layerDataPath(layersDirectory, digest));
    expect(digestOf(metadata, data)).toBe(digest);
    expect(built.sizeBytes).toBe(metadata.length + data.length);
    const directory = join(layersDirectory, digest.slice('sha256:'.length));
    expect((await readdir(directory)).sort()).toEqual(['data', 'layer.json', 'rootfs.erofs']);
    for (const name of await readdir(directory)) expect((await stat(join(directory, name))).mode & 0o777).toBe(0o644);
    expect(await listLayers(layersDirectory)).toEqual([
      expect.objectContaining({
        version: 2,
        digest,
        sizeBytes: built.sizeBytes,
        metadata: { digest: `sha256:${sha256(metadata)}`, sizeBytes: metadata.length },
        data: { digest: `sha256:${sha256(chunkDigests(data))}`, sizeBytes: data.length },
      }),
    ]);
    // The hole takes no room.
    const { blocks } = await stat(layerDataPath(layersDirectory, digest));
    expect(blocks * 512).toBeLessThan(data.length - CHUNK / 2);
  });

  it('gives the kernel the files', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const digest = (await build(place.context)).layers[0] ?? '';
    const image = layerImagePath(layersDirectory, digest);
    const data = layerDataPath(layersDirectory, digest);
    await tool('fsck.erofs', `--device=${data}`, image);
    const mountPoint = join(place.path, 'mnt');
    await using _ = await mountedFiles(image, data, mountPoint);
    for (const [name, content] of Object.entries(files)) {
      expect((await readFile(join(mountPoint, name))).equals(content)).toBe(true);
    }
  });

  it('writes no data where there are none', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const digest = (await build(place.context, { empty: Buffer.alloc(0) })).layers[0] ?? '';
    const metadata = await readFile(layerImagePath(layersDirectory, digest));
    expect(digestOf(metadata, Buffer.alloc(0))).toBe(digest);
    expect((await readdir(join(layersDirectory, digest.slice('sha256:'.length)))).sort()).toEqual([
      'layer.json',
      'rootfs.erofs',
    ]);
    expect(await readLayerRecord(layersDirectory, digest)).toMatchObject({ data: { sizeBytes: 0 } });
    await using _ = await mountedFiles(layerImagePath(layersDirectory, digest), undefined, join(place.path, 'mnt'));
    expect(await readdir(join(place.path, 'mnt'))).toEqual(['empty']);
  });

  it('is done once for equal content, also by builds at the same time', async () => {
    await using place = await testPlace();
    const built = await Promise.all(Array.from({ length: 4 }, () => build(place.context)));
    expect(new Set(built.map(({ layers }) => layers[0])).size).toBe(1);
    expect(await place.layers()).toHaveLength(1);
  });

  it('tells layers apart that differ in their data only', async () => {
    await using place = await testPlace();
    const one = await build(place.context, { file: Buffer.alloc(5000, 'x') });
    const other = await build(place.context, { file: Buffer.alloc(5000, 'y') });
    expect(one.layers).not.toEqual(other.layers);
  });

  it('replaces what has lost its data, or part of them', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const digest = (await build(place.context)).layers[0] ?? '';
    await truncate(layerDataPath(layersDirectory, digest), CHUNK);
    expect(await readLayerRecord(layersDirectory, digest)).toBeUndefined();
    await build(place.context);
    expect(await readLayerRecord(layersDirectory, digest)).toBeDefined();
    expect(await place.layers()).toHaveLength(1);
  });

  it('leaves nothing of a build that fails, is cancelled, or fills the disk', async () => {
    await using place = await testPlace();
    const { context } = place;
    const failing = buildLayer(context, async (draft) => {
      await filled(files)(draft);
      throw new PlatformError('build_failed', 'it failed');
    });
    await expect(failing).rejects.toMatchObject({ code: 'build_failed' });
    const controller = new AbortController();
    const cancelled = buildLayer({ ...context, signal: controller.signal }, async (draft) => {
      controller.abort();
      return filled(files)(draft);
    });
    await expect(cancelled).rejects.toMatchObject({ code: 'cancelled' });
    expect(await place.layers()).toEqual([]);
    const small = join(place.path, 'small');
    await mkdir(small);
    await tool('mount', '-t', 'tmpfs', '-o', 'size=1m', 'dsec-test', small);
    try {
      const content = { large: Buffer.alloc(4 * 1024 * 1024, 'x') };
      await expect(build({ ...context, layersDirectory: small }, content)).rejects.toMatchObject({ code: 'disk_full' });
      expect(await readdir(small)).toEqual([]);
    } finally {
      await tool('umount', small);
    }
  });
});
