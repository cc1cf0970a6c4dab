import { mkdir, readdir, rm, truncate, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { type EnvironmentConfig, PlatformError } from '@dsec/contract';
import { ByteString, defaultMetadata, newDirectory } from '@dsec/erofs';
import { describe, expect, it } from 'vitest';
import { testPlace, tool } from './build.fixture.ts';
import type { BuildContext } from './build-context.ts';
import { buildLayer, type LayerContent } from './build-layer.ts';
import { draftName } from './draft.ts';
import { layerImagePath, readLayerRecord } from './layer-store.ts';

const config: EnvironmentConfig = { env: {}, user: 'root', workdir: '/', entrypoint: [], cmd: [], labels: {} };

const content = (name: string): LayerContent => {
  const root = newDirectory(defaultMetadata(0o755));
  root.children.set(ByteString.fromText(name), newDirectory(defaultMetadata(0o755)));
  return { root, config, architecture: 'amd64', source: { kind: 'recipe', name } };
};

const build = (context: BuildContext, name: string) => buildLayer(context, () => Promise.resolve(content(name)));

async function* megabytes(count: number): AsyncGenerator<Uint8Array> {
  for (let index = 0; index < count; index++) yield Buffer.alloc(1024 * 1024, index + 1);
}

describe('publishing a layer', () => {
  it('is done once for equal content, also by builds at the same time', async () => {
    await using place = await testPlace();
    const built = await Promise.all(Array.from({ length: 8 }, () => build(place.context, 'a')));
    expect(new Set(built.map(({ layers }) => layers[0])).size).toBe(1);
    expect(await place.layers()).toHaveLength(1);
  });

  it('replaces what has the name of a layer and is none', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    const digest = (await build(place.context, 'a')).layers[0] ?? '';
    await truncate(layerImagePath(layersDirectory, digest), 100);
    expect(await readLayerRecord(layersDirectory, digest)).toBeUndefined();
    await build(place.context, 'a');
    expect(await readLayerRecord(layersDirectory, digest)).toBeDefined();
    expect(await place.layers()).toHaveLength(1);
  });

  it('leaves nothing of a build that fails', async () => {
    await using place = await testPlace();
    const failing = buildLayer(place.context, async ({ writer, scratch }) => {
      await writer.store(1024 * 1024, megabytes(1));
      await mkdir(join(scratch, 'deep'));
      throw new PlatformError('build_failed', 'it failed');
    });
    await expect(failing).rejects.toMatchObject({ code: 'build_failed' });
    expect(await place.layers()).toEqual([]);
  });

  it('leaves nothing of a build that is cancelled', async () => {
    await using place = await testPlace();
    const controller = new AbortController();
    const cancelled = buildLayer({ ...place.context, signal: controller.signal }, () => {
      controller.abort();
      return Promise.resolve(content('a'));
    });
    await expect(cancelled).rejects.toMatchObject({ code: 'cancelled' });
    await expect(build({ ...place.context, signal: controller.signal }, 'a')).rejects.toMatchObject({
      code: 'cancelled',
    });
    expect(await place.layers()).toEqual([]);
  });

  it('says so when the disk is full, and leaves nothing', async () => {
    await using place = await testPlace();
    const { layersDirectory } = place.context;
    await tool('mount', '-t', 'tmpfs', '-o', 'size=4m', 'dsec-test', layersDirectory);
    try {
      const full = buildLayer(place.context, async ({ writer }) => {
        await writer.store(16 * 1024 * 1024, megabytes(16));
        return content('a');
      });
      await expect(full).rejects.toMatchObject({ code: 'disk_full' });
      expect(await readdir(layersDirectory)).toEqual([]);
    } finally {
      await tool('umount', layersDirectory);
    }
  });

  it('first removes what killed builds have left, and nothing of one that runs', async () => {
    await using place = await testPlace();
    const { layersDirectory, random } = place.context;
    const running = await draftName(random);
    // This process's pid, but of one that started at another time: what a killed build looks like once its pid is used again.
    const killed = `.build-${process.pid}-1-killed`;
    const gone = '.build-4194999-123-gone';
    for (const name of [running, killed, gone]) {
      await mkdir(join(layersDirectory, name));
      await writeFile(join(layersDirectory, name, 'rootfs.erofs'), 'half');
    }
    const built = await build(place.context, 'a');
    expect(new Set(await place.layers())).toEqual(new Set([built.layers[0]?.slice(7), running]));
    await rm(join(layersDirectory, running), { recursive: true });
  });
});
