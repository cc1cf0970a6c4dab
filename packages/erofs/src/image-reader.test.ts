import { mkdir, open, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { chunkedImageOf, imageOf, type Store, temporaryDirectory, tool } from './image.fixture.ts';
import { buildTree, expectedLinks, flatten, rootModel } from './tree-model.fixture.ts';
import { bufferSource, fileSource } from './byte-source.ts';
import { ByteString } from './byte-string.ts';
import { crc32c } from './crc32c.ts';
import { ImageReader } from './image-reader.ts';
import type { Inode } from './inode-reader.ts';
import { defaultMetadata, newDirectory, type DirectoryNode } from './tree.ts';

const text = ByteString.fromText;

const contentOf = async (image: ImageReader, file: Inode): Promise<Buffer> => {
  const parts: Buffer[] = [];
  for await (const part of image.read(file)) parts.push(part);
  return Buffer.concat(parts);
};

/** Walks the image and reads everything in it. */
const readAll = async (bytes: Buffer, data?: Buffer): Promise<number> => {
  const image = await ImageReader.open(
    bufferSource(bytes),
    data === undefined ? undefined : { data: bufferSource(data) },
  );
  let read = 0;
  for await (const { inode } of image.walk()) {
    if (inode.kind === 'symlink') await image.readLink(inode);
    if (inode.kind !== 'file') continue;
    for await (const part of image.read(inode)) {
      read += part.length;
      if (read > MAX_READ_BYTES) return read;
    }
  }
  return read;
};

/** A damaged index may say that a file is a hole of many terabytes. */
const MAX_READ_BYTES = 2 ** 24;

const written = {
  'in one piece': async (make: (store: Store) => Promise<DirectoryNode>) => ({ image: await imageOf(make) }),
  'with its data apart': async (make: (store: Store) => Promise<DirectoryNode>) => {
    const { image, data } = await chunkedImageOf(make);
    return { image, data: bufferSource(data) };
  },
};

const sampleTree = async (store: Store): Promise<DirectoryNode> => {
  const root = newDirectory();
  const etc = newDirectory();
  root.children.set(text('etc'), etc);
  const file = (content: string) => store(Buffer.from(content));
  etc.children.set(text('passwd'), {
    kind: 'file',
    metadata: { ...defaultMetadata(0o644), xattrs: new Map([[text('user.note'), Buffer.from('value')]]) },
    data: await file('root:x:0:0::/root:/bin/sh\n'),
  });
  etc.children.set(text('large'), {
    kind: 'file',
    metadata: defaultMetadata(0o644),
    data: await file('y'.repeat(9000)),
  });
  const link = (target: string) => ({
    kind: 'symlink' as const,
    metadata: defaultMetadata(0o777),
    target: text(target),
  });
  root.children.set(text('users'), link('etc/passwd'));
  root.children.set(text('absolute'), link('/etc'));
  root.children.set(text('up'), link('../../../etc/passwd'));
  root.children.set(text('loop'), link('loop'));
  root.children.set(text('dangling'), link('nowhere/at/all'));
  for (let index = 0; index < 300; index++) root.children.set(text(`file-${index}`), link('etc'));
  return root;
};

const sample = (): Promise<Buffer> => imageOf(sampleTree);

/** Changes bytes of the superblock and makes its checksum right again. */
const withSuperblock = (image: Buffer, change: (superblock: Buffer) => void): Buffer => {
  const copy = Buffer.from(image);
  const superblock = copy.subarray(1024, 4096);
  change(superblock);
  superblock.writeUInt32LE(0, 4);
  superblock.writeUInt32LE(crc32c(superblock), 4);
  return copy;
};

describe('reading an image', () => {
  it.each(Object.entries(written))('gives back the tree that was written %s, whatever the tree', async (_, write) => {
    await fc.assert(
      fc.asyncProperty(rootModel, async (root) => {
        const { image: bytes, ...options } = await write((store) => buildTree(root, store));
        const image = await ImageReader.open(bufferSource(bytes), options);
        const expected = flatten(root);
        const links = expectedLinks(root);
        const seen = new Set<string>();
        for await (const { path, inode } of image.walk()) {
          const model = expected.get(path);
          if (model === undefined) throw new Error(`unexpected ${path}`);
          seen.add(path);
          expect(inode.kind).toBe(model.kind);
          expect(inode.nlink).toBe(links.get(model));
          const { xattrs, ...rest } = inode.metadata;
          const { xattrs: expectedXattrs, ...expectedRest } = model.metadata;
          expect(rest).toEqual(expectedRest);
          expect(new Map([...xattrs].map(([name, value]) => [name, Buffer.from(value).toString('hex')]))).toEqual(
            new Map([...expectedXattrs].map(([name, value]) => [name, Buffer.from(value).toString('hex')])),
          );
          if (model.kind === 'file') expect((await contentOf(image, inode)).equals(model.content)).toBe(true);
          if (model.kind === 'symlink') expect(await image.readLink(inode)).toBe(model.target);
          if (model.kind === 'char-device') expect(inode.device).toEqual({ major: model.major, minor: model.minor });
        }
        expect(seen).toEqual(new Set(expected.keys()));
      }),
      { numRuns: 100 },
    );
  });

  it('reads what mkfs.erofs writes', async () => {
    await using place = await temporaryDirectory();
    const source = join(place.path, 'source');
    await mkdir(join(source, 'sub'), { recursive: true });
    await writeFile(join(source, 'small'), 'small\n');
    await writeFile(join(source, 'sub', 'large'), 'z'.repeat(100_001));
    await symlink('sub/large', join(source, 'link'));
    const path = join(place.path, 'image.erofs');
    await tool('mkfs.erofs', '-T0', path, source);
    await using file = await open(path, 'r');
    const image = await ImageReader.open(await fileSource(file));
    const paths: string[] = [];
    for await (const entry of image.walk()) paths.push(entry.path);
    expect(paths).toEqual(['', 'link', 'small', 'sub', 'sub/large']);
    const large = await image.lookup(text('link'));
    expect(large?.sizeBytes).toBe(100_001);
    if (large !== undefined) expect((await contentOf(image, large)).equals(Buffer.alloc(100_001, 'z'))).toBe(true);
  });

  it('reads what mkfs.erofs writes in chunks, in the image and on a further device', async () => {
    await using place = await temporaryDirectory();
    const source = join(place.path, 'source');
    await mkdir(source);
    // Of its five chunks the third is zeros, which is a hole.
    const content = Buffer.alloc(300_001, 'c').fill(0, 131_072, 196_608);
    await writeFile(join(source, 'file'), content);
    const path = join(place.path, 'image.erofs');
    const blob = join(place.path, 'blob');
    for (const apart of [[], [`--blobdev=${blob}`]]) {
      await tool('mkfs.erofs', '-T0', '--chunksize=65536', ...apart, path, source);
      await using file = await open(path, 'r');
      await using device = apart.length > 0 ? await open(blob, 'r') : undefined;
      const options = device === undefined ? {} : { data: await fileSource(device) };
      const image = await ImageReader.open(await fileSource(file), options);
      expect(image.devices.length === 0).toBe(device === undefined);
      const inode = await image.lookup(text('file'));
      expect(inode?.extent).toMatchObject({ kind: 'chunks', chunkBytes: 65_536 });
      if (inode !== undefined) expect((await contentOf(image, inode)).equals(content)).toBe(true);
    }
  });

  it('lists an image without its data, and says that the bytes of files are not there', async () => {
    const { image } = await chunkedImageOf(sampleTree);
    const reader = await ImageReader.open(bufferSource(image));
    const passwd = await reader.lookup(text('users'));
    expect(passwd?.sizeBytes).toBe(26);
    if (passwd === undefined) throw new Error('there is no passwd');
    await expect(contentOf(reader, passwd)).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('follows paths and links inside the image only', async () => {
    const image = await ImageReader.open(bufferSource(await sample()));
    const size = async (path: string) => (await image.lookup(text(path)))?.sizeBytes;
    expect(await size('/etc/passwd')).toBe(26);
    expect(await size('users')).toBe(26);
    expect(await size('absolute/passwd')).toBe(26);
    expect(await size('up')).toBe(26);
    expect(await size('etc/../../etc/./passwd')).toBe(26);
    expect(await size('dangling')).toBeUndefined();
    expect(await size('etc/passwd/..')).toBeUndefined();
    expect((await image.lookup(text('users'), { followLast: false }))?.kind).toBe('symlink');
    await expect(image.lookup(text('loop'))).rejects.toMatchObject({ code: 'invalid_argument' });
  });
});

describe('reading an image that is not trusted', () => {
  it.each([
    ['empty', () => Buffer.alloc(0), 'image_corrupt'],
    ['all zeros', () => Buffer.alloc(8192), 'image_corrupt'],
    ['without its end', (image: Buffer) => image.subarray(0, image.length - 8192), 'image_corrupt'],
    ['with a wrong checksum', (image: Buffer) => Buffer.from(image).fill(1, 1100, 1101), 'image_corrupt'],
    [
      'of unknown features',
      (image: Buffer) => withSuperblock(image, (s) => s.writeUInt32LE(0x80, 80)),
      'image_unsupported',
    ],
    ['of other blocks', (image: Buffer) => withSuperblock(image, (s) => s.writeUInt8(9, 12)), 'image_unsupported'],
    [
      'with its root elsewhere',
      (image: Buffer) => withSuperblock(image, (s) => s.writeUInt16LE(65_535, 14)),
      'image_corrupt',
    ],
    [
      'with its inodes behind the end',
      (image: Buffer) => withSuperblock(image, (s) => s.writeUInt32LE(2 ** 31, 40)),
      'image_corrupt',
    ],
  ])('refuses one that is %s, with the offset', async (_, damage, code) => {
    const failure = await readAll(damage(await sample())).catch((error: unknown) => error);
    expect(PlatformError.is(failure) && failure.code).toBe(code);
    expect(PlatformError.is(failure) && failure.details['offset']).toBeTypeOf('number');
  });

  it('refuses data that are too short, and devices that it does not know', async () => {
    const { image, data } = await chunkedImageOf(sampleTree);
    expect(await readAll(image, data)).toBe(9026);
    await expect(readAll(image, data.subarray(0, data.length - 1))).rejects.toMatchObject({ code: 'image_corrupt' });
    const many = withSuperblock(image, (superblock) => superblock.writeUInt16LE(65_535, 86));
    await expect(readAll(many, data)).rejects.toMatchObject({ code: 'image_corrupt' });
    const away = withSuperblock(image, (superblock) => superblock.writeUInt16LE(65_535, 88));
    await expect(readAll(away, data)).rejects.toMatchObject({ code: 'image_corrupt' });
    const none = withSuperblock(image, (superblock) => superblock.writeUInt32LE(4, 80));
    await expect(readAll(none, data)).rejects.toMatchObject({ code: 'image_corrupt' });
  });

  it('ends when a directory contains itself', async () => {
    const image = await sample();
    // The entry `etc` of the root is made to point at the root.
    const reader = await ImageReader.open(bufferSource(image));
    const root = await reader.root();
    const etc = await reader.lookup(text('etc'));
    const metaStart = reader.superblock.metaBlock * 4096;
    const pointer = Buffer.alloc(8);
    pointer.writeBigUInt64LE(BigInt(etc?.nid ?? 0));
    if (root.extent.kind !== 'flat') throw new Error('directories are flat');
    const dataStart = root.extent.blockBytes > 0 ? root.extent.startBlock * 4096 : root.extent.inlineOffset;
    const at = image.indexOf(pointer, Math.min(dataStart, metaStart));
    image.writeBigUInt64LE(BigInt(root.nid), at);
    await expect(readAll(image)).rejects.toMatchObject({ code: 'image_corrupt' });
  });

  it.each([
    ['in one piece', async () => ({ image: await sample(), data: undefined })],
    ['with its data apart', () => chunkedImageOf(sampleTree)],
  ])('never fails but with a typed error, whatever bytes are changed: %s', { timeout: 60_000 }, async (_, write) => {
    const { image, data } = await write();
    // Most of the damage goes where the metadata are.
    const metadataStart = image.length - 6 * 4096;
    const position = fc.oneof(
      { weight: 1, arbitrary: fc.integer({ min: 0, max: image.length - 1 }) },
      { weight: 6, arbitrary: fc.integer({ min: Math.max(0, metadataStart), max: image.length - 1 }) },
    );
    let refused = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(fc.tuple(position, fc.nat(255)), { minLength: 1, maxLength: 20 }), async (changes) => {
        const copy = Buffer.from(image);
        for (const [at, byte] of changes) copy[at] = byte;
        try {
          await readAll(copy, data);
        } catch (error) {
          if (!PlatformError.is(error) || !error.code.startsWith('image_')) throw error;
          expect(error.details['offset']).toBeTypeOf('number');
          refused++;
        }
      }),
      { numRuns: 500 },
    );
    expect(refused).toBeGreaterThan(50);
  });
});

describe('writing an image', () => {
  it('gives the same bytes for the same tree, whatever the order and the chunks', async () => {
    const make = (order: readonly string[]) => async (store: Parameters<Parameters<typeof imageOf>[0]>[0]) => {
      const root: DirectoryNode = newDirectory();
      const data = await store(Buffer.alloc(3_000_000, 'ab\0'));
      for (const name of order) {
        root.children.set(text(name), { kind: 'file', metadata: defaultMetadata(0o644), data });
      }
      return root;
    };
    const image = await imageOf(make(['a', 'b', 'c']), 1000);
    expect((await imageOf(make(['c', 'a', 'b']), 77_777)).equals(image)).toBe(true);
    const other = await imageOf(make(['c', 'a', 'd']), 77_777);
    // The UUID follows the content.
    expect(other.subarray(1072, 1088).equals(image.subarray(1072, 1088))).toBe(false);
  });

  it.each([
    ['an empty name', ''],
    ['a slash in a name', 'a/b'],
    ['a NUL in a name', 'a\0b'],
    ['the name ..', '..'],
    ['a name of 256 bytes', 'n'.repeat(256)],
  ])('refuses %s', async (_, name) => {
    const image = imageOf(() => {
      const root = newDirectory();
      root.children.set(text(name), newDirectory());
      return Promise.resolve(root);
    });
    await expect(image).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('refuses a directory under two names', async () => {
    const image = imageOf(() => {
      const root = newDirectory();
      const shared = newDirectory();
      root.children.set(text('a'), shared).set(text('b'), shared);
      return Promise.resolve(root);
    });
    await expect(image).rejects.toMatchObject({ code: 'invalid_argument' });
  });

  it('refuses owners and times that an inode cannot hold', async () => {
    for (const change of [{ uid: -1 }, { gid: 2 ** 32 }, { mtime: { seconds: 0, nanoseconds: 1_000_000_000 } }]) {
      const image = imageOf(() => Promise.resolve(newDirectory({ ...defaultMetadata(0o755), ...change })));
      await expect(image).rejects.toMatchObject({ code: 'invalid_argument' });
    }
  });
});
