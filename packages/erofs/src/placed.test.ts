/** Images over devices that other images have filled, judged by the kernel and fsck.erofs. */
import { mkdir, readFile } from 'node:fs/promises';
import { join } from 'node:path';
import { MemoryOutput, mountedFiles } from '@dsec/testkit';
import { describe, expect, it } from 'vitest';
import { bufferSource } from './byte-source.ts';
import { ByteString } from './byte-string.ts';
import { chunkedImageOf, imageOf, saved, temporaryDirectory, tool } from './image.fixture.ts';
import { ImageReader } from './image-reader.ts';
import { ImageWriter } from './image-writer.ts';
import { defaultMetadata, type FileData, newDirectory } from './tree.ts';

const text = ByteString.fromText;
const file = (data: FileData) => ({ kind: 'file' as const, metadata: defaultMetadata(0o644), data });
const MAX_EMBEDDED = 1024 * 1024;

/** One file of its own for each layer. */
const layerOf = (content: Buffer) =>
  chunkedImageOf(async (store) => {
    const root = newDirectory();
    root.children.set(text('file'), file(await store(content)));
    return root;
  });

/** Of many layers, with one file of each. */
const over = async (images: readonly { readonly image: Buffer }[]): Promise<Buffer> => {
  const root = newDirectory();
  const devices = [];
  for (const [index, { image }] of images.entries()) {
    const reader = await ImageReader.open(bufferSource(image));
    const inode = await reader.lookup(text('file'));
    if (inode === undefined) throw new Error('no file');
    root.children.set(text(`${index}`), file(await reader.placed(inode, devices.length, MAX_EMBEDDED)));
    devices.push(...reader.devices);
  }
  const output = new MemoryOutput();
  await new ImageWriter(output, { devices }).finish(root);
  return output.bytes;
};

describe('an image over devices that are there', () => {
  // 23 devices fit into the first block.
  it.each([1, 2, 23, 24, 64])('shows the files of %i devices', async (count) => {
    await using place = await temporaryDirectory();
    const contents = Array.from({ length: count }, (_, index) => Buffer.alloc(1 + index * 5000, index + 1));
    const layers = await Promise.all(contents.map(layerOf));
    const bytes = await over(layers);
    const image = join(place.path, 'image.erofs');
    await saved(bytes, image);
    const devices = layers.map((_, index) => `${image}.${index}`);
    for (const [index, { data }] of layers.entries()) await saved(data, devices[index] ?? '');
    expect((await tool('fsck.erofs', ...devices.map((path) => `--device=${path}`), image)).exitCode).toBe(0);
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    await using _ = await mountedFiles(image, devices, mountPoint);
    const reader = await ImageReader.open(bufferSource(bytes), {
      devices: layers.map(({ data }) => bufferSource(data)),
    });
    expect(reader.devices).toHaveLength(count);
    for (const [index, content] of contents.entries()) {
      expect((await readFile(join(mountPoint, `${index}`))).equals(content)).toBe(true);
      const inode = await reader.lookup(text(`${index}`));
      const parts: Buffer[] = [];
      if (inode !== undefined) for await (const part of reader.read(inode)) parts.push(part);
      expect(Buffer.concat(parts).equals(content)).toBe(true);
    }
  });

  it('copies what lies in the other image itself, whatever its length', async () => {
    await using place = await temporaryDirectory();
    const image = join(place.path, 'image.erofs');
    const mountPoint = join(place.path, 'mnt');
    await mkdir(mountPoint);
    const contents = [1, 100, 4000, 4032, 4033, 4095, 4096, 4097, 70_000].map((size) => Buffer.alloc(size, size % 251));
    const images = await Promise.all(
      contents.map(async (content) => ({
        image: await imageOf(async (store) => {
          const root = newDirectory();
          root.children.set(text('file'), file(await store(content)));
          return root;
        }),
      })),
    );
    await saved(await over(images), image);
    expect((await tool('fsck.erofs', image)).exitCode).toBe(0);
    await using _ = await mountedFiles(image, undefined, mountPoint);
    for (const [index, content] of contents.entries()) {
      expect((await readFile(join(mountPoint, `${index}`))).equals(content), `${content.length} bytes`).toBe(true);
    }
  });

  it('refuses more bytes in the other image than it may copy, and more devices than EROFS can count', async () => {
    const image = await ImageReader.open(
      bufferSource(
        await imageOf(async (store) => {
          const root = newDirectory();
          root.children.set(text('file'), file(await store(Buffer.alloc(101))));
          return root;
        }),
      ),
    );
    const inode = await image.lookup(text('file'));
    if (inode === undefined) throw new Error('no file');
    await expect(image.placed(inode, 0, 100)).rejects.toMatchObject({
      code: 'image_unsupported',
      details: { reason: 'data_in_image' },
    });
    const devices = Array.from({ length: 65_536 }, () => ({ tag: '', blocks: 1 }));
    await expect(new ImageWriter(new MemoryOutput(), { devices }).finish(newDirectory())).rejects.toMatchObject({
      code: 'image_unsupported',
      details: { reason: 'devices' },
    });
  });
});
