import { existsSync } from 'node:fs';
import { mkdir, readdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import type { EnvironmentConfig, EnvironmentImage } from '@dsec/contract';
import { ByteString } from '@dsec/erofs';
import fc from 'fast-check';
import { describe, expect, it, test } from 'vitest';
import { testPlace, tool } from '../build.fixture.ts';
import type { BuildContext } from '../build-context.ts';
import { packChanges } from '../changes/pack-changes.ts';
import { importImage } from '../image-import.ts';
import { openLayers } from '../open-layers.ts';
import { TarReader } from '../tar/tar-reader.ts';
import { streamOf, tarOf, type TarItem } from '../tar/tar.fixture.ts';
import { TAR_END, tarHead, tarPadding } from '../tar/tar-writer.ts';
import { exportImage } from './export-image.ts';
import { layerArchive } from './layer-archive.ts';

const config: EnvironmentConfig = {
  env: { PATH: '/bin', A: 'b=c' },
  user: 'nobody',
  workdir: '/srv',
  entrypoint: ['/bin/sh'],
  cmd: ['-c', 'true'],
  labels: { x: 'y' },
  exposedPorts: ['80/tcp'],
};
const dir = (name: string, more: Partial<TarItem> = {}): TarItem => ({
  name: `${name}/`,
  type: '5',
  mode: 0o755,
  ...more,
});
const opaque = { pax: { 'SCHILY.xattr.trusted.overlay.opaque': 'y' } };

const layer = async (context: BuildContext, ...items: readonly TarItem[]): Promise<string> => {
  const changes = streamOf(tarOf(dir('.'), ...items));
  const image = await packChanges(context, { changes, name: 'test', config, architecture: 'amd64' });
  return image.layers[0] ?? '';
};

/** Two layers that use all that there is. */
const image = async (context: BuildContext): Promise<EnvironmentImage> => {
  const lower = await layer(
    context,
    dir('a'),
    { name: 'a/gone', content: '1' },
    dir('a/covered'),
    { name: 'a/covered/below', content: '2' },
    dir('srv'),
    { name: 'srv/file', content: 'x'.repeat(70_000), uid: 1000, gid: 33, mode: 0o640, mtime: 981173106 },
    { name: 'srv/hard', type: '1', link: 'srv/file' },
    { name: 'srv/soft', type: '2', link: 'file' },
    { name: 'srv/pipe', type: '6' },
    { name: `srv/${'n'.repeat(200)}`.slice(0, 99), content: 'long' },
  );
  const upper = await layer(context, dir('a'), { name: 'a/gone', type: '3', mode: 0 }, dir('a/covered', opaque), {
    name: 'a/covered/new',
    content: '3',
    pax: { path: Buffer.from('a/covered/\xe9\n', 'latin1'), 'SCHILY.xattr.user.k': 'v', mtime: '1.5' },
  });
  return { layers: [upper, lower], config, architecture: 'amd64', sizeBytes: 1 };
};

/** All that can be told of a tree of layers. */
const listing = async (context: BuildContext, layers: readonly string[]): Promise<string[]> => {
  await using opened = await openLayers(context.layersDirectory, layers);
  const lines: string[] = [];
  const visit = async (path: readonly ByteString[]): Promise<void> => {
    for await (const { name, node } of opened.tree.entries(path)) {
      const { mode, uid, gid, mtime, xattrs } = node.metadata;
      const parts: string[] = [];
      if (node.kind === 'file')
        for await (const bytes of node.bytes()) parts.push(Buffer.from(bytes).toString('latin1'));
      const all = [...path, name];
      const rest = JSON.stringify([
        mode,
        uid,
        gid,
        mtime,
        [...xattrs].map(([key, value]) => [key, Buffer.from(value).toString('latin1')]),
      ]);
      lines.push(`${all.join('/')} ${node.kind} ${rest} ${node.kind === 'symlink' ? node.target : parts.join('')}`);
      if (node.kind === 'directory') await visit(all);
    }
  };
  await visit([]);
  return lines.toSorted();
};

describe('an exported environment', () => {
  test.each(['layout', 'image.tar'])('comes back from %s as it was', async (name) => {
    await using place = await testPlace();
    await using other = await testPlace();
    const made = await image(place.context);
    const output = join(place.path, name);
    const exported = await exportImage(place.context, { image: made, name: 'test:1', output });
    expect(exported.layers).toBe(2);
    const back = await importImage(other.context, { path: output, reference: 'test:1', architecture: 'amd64' });
    const has = (paths: readonly string[]) => paths.filter((path) => /^(?:a|srv)\b/.test(path));
    expect(has(await listing(other.context, back.layers))).toEqual(has(await listing(place.context, made.layers)));
    expect(back.config).toEqual(config);
  });

  it('is the same image each time', async () => {
    await using place = await testPlace();
    const made = await image(place.context);
    const digests = [];
    for (const name of ['one', 'two']) {
      digests.push(
        (await exportImage(place.context, { image: made, name: 'x', output: join(place.path, name) })).digest,
      );
    }
    expect(digests[0]).toBe(digests[1]);
    expect(existsSync(join(place.path, 'one/blobs/sha256', digests[0]?.slice(7) ?? ''))).toBe(true);
  });

  it('replaces nothing, and leaves nothing when it fails', async () => {
    await using place = await testPlace();
    const made = await image(place.context);
    await mkdir(join(place.path, 'out'));
    await writeFile(join(place.path, 'out.tar'), '');
    for (const name of ['out', 'out.tar']) {
      const exporting = exportImage(place.context, { image: made, name: 'x', output: join(place.path, name) });
      await expect(exporting).rejects.toMatchObject({ code: 'file_exists' });
    }
    const lost = { ...made, layers: [`sha256:${'0'.repeat(64)}`] };
    const output = join(place.path, 'lost');
    await expect(exportImage(place.context, { image: lost, name: 'x', output })).rejects.toMatchObject({
      code: 'layer_not_found',
    });
    for (const nowhere of ['no/where', 'out.tar/where', 'a'.repeat(5000)]) {
      const exporting = exportImage(place.context, { image: made, name: 'x', output: join(place.path, nowhere) });
      await expect(exporting).rejects.toMatchObject({ code: 'file_not_found' });
    }
    expect((await readdir(place.path)).toSorted()).toEqual(['layers', 'out', 'out.tar']);
  });

  it('refuses a file whose name would hide another', async () => {
    await using place = await testPlace();
    const layers = [await layer(place.context, { name: '.wh.x', content: '1' })];
    const exporting = exportImage(place.context, {
      image: { layers, config, architecture: 'amd64', sizeBytes: 1 },
      name: 'x',
      output: join(place.path, 'out'),
    });
    await expect(exporting).rejects.toMatchObject({ code: 'image_unsupported', details: { reason: 'whiteout_name' } });
  });

  it('reads as tar has it', async () => {
    await using place = await testPlace();
    const made = await image(place.context);
    await using opened = await openLayers(place.context.layersDirectory, made.layers);
    const [, upper] = opened.images;
    if (upper === undefined) throw new Error('no upper layer');
    const path = join(place.path, 'upper.tar');
    await writeFile(path, layerArchive(upper, 'upper'));
    const { stdout } = await tool('tar', '--list', '--quoting-style=escape', '--file', path);
    expect(stdout.toString().trim().split('\n').toSorted()).toEqual(
      ['./', 'a/', 'a/.wh.gone', 'a/covered/', 'a/covered/.wh..wh..opq', 'a/covered/\\351\\n'].toSorted(),
    );
  });
});

describe('a written header', () => {
  it('fuzz: is read as it was written', async () => {
    const text = fc
      .array(fc.integer({ min: 1, max: 255 }), { minLength: 1, maxLength: 300 })
      .map((bytes) => ByteString.fromBytes(Uint8Array.from(bytes)));
    const id = fc.integer({ min: 0, max: 0xfffffffe });
    const head = fc.record({
      type: fc.constantFrom('file', 'symlink', 'hard-link', 'fifo'),
      path: text.filter((path) => !path.endsWith('/')),
      linkPath: text,
      mode: fc.integer({ min: 0, max: 0o7777 }),
      uid: id,
      gid: id,
      mtime: fc.record({
        seconds: fc.integer({ min: -(2 ** 40), max: 2 ** 40 }),
        nanoseconds: fc.integer({ min: 0, max: 999_999_999 }),
      }),
    });
    await fc.assert(
      fc.asyncProperty(head, fc.uint8Array({ maxLength: 1500 }), async (made, content) => {
        const bytes = made.type === 'file' ? Buffer.from(content) : Buffer.alloc(0);
        const written = Buffer.concat([
          tarHead({ ...made, sizeBytes: bytes.length }),
          bytes,
          tarPadding(bytes.length),
          TAR_END,
        ]);
        for await (const entry of new TarReader(streamOf(written), 'test').entries()) {
          const parts: Uint8Array[] = [];
          for await (const part of entry.data) parts.push(part);
          expect(entry).toMatchObject({ ...made, sizeBytes: bytes.length });
          expect(Buffer.concat(parts)).toEqual(bytes);
        }
      }),
    );
  });
});
