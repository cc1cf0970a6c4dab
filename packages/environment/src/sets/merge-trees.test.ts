/** Layers that are not what they should be. What honest ones become: merged-overlay.test.ts. */
import { PlatformError } from '@dsec/contract';
import {
  bufferSource,
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  ImageReader,
  ImageWriter,
  type Metadata,
  newDirectory,
} from '@dsec/erofs';
import { envVariable } from '@dsec/kit';
import { MemoryOutput } from '@dsec/testkit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { type LayerImage, mergeTrees } from './merge-trees.ts';

const fuzzMs = Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 1000;
const text = ByteString.fromText;
const LAYER = 'sha256:of-the-layer';

async function* once(content: Buffer): AsyncGenerator<Buffer> {
  yield await Promise.resolve(content);
}

const imageOf = async (
  fill: (writer: ImageWriter) => Promise<DirectoryNode>,
  options: { readonly hasData?: boolean } = {},
): Promise<Buffer> => {
  const output = new MemoryOutput();
  const writer = new ImageWriter(output, options.hasData === false ? {} : { data: new MemoryOutput() });
  await writer.finish(await fill(writer));
  return output.bytes;
};

const layerOf = async (bytes: Buffer, digest = LAYER): Promise<LayerImage> => ({
  digest,
  image: await ImageReader.open(bufferSource(bytes)),
  sizeBytes: bytes.length,
});

const sample = (): Promise<Buffer> =>
  imageOf(async (writer) => {
    const root = newDirectory();
    const directory = newDirectory();
    root.children.set(text('one'), directory).set(text('two'), newDirectory());
    const data = await writer.store(9000, once(Buffer.alloc(9000, 'x')));
    const metadata = { ...defaultMetadata(0o644), xattrs: new Map([[text('user.note'), Buffer.from('value')]]) };
    directory.children.set(text('file'), { kind: 'file', metadata, data });
    directory.children.set(text('link'), { kind: 'symlink', metadata: defaultMetadata(0o777), target: text('file') });
    for (let index = 0; index < 40; index++) {
      directory.children.set(text(`name-${index}`), {
        kind: 'fifo',
        metadata: defaultMetadata(0o600),
        major: 0,
        minor: 0,
      });
    }
    return root;
  });

/** Puts other bytes in the place of those that stand there once. */
const replaced = (image: Buffer, from: string, to: string): Buffer => {
  const copy = Buffer.from(image);
  const at = copy.indexOf(from, 0, 'latin1');
  if (at === -1 || copy.indexOf(from, at + 1, 'latin1') !== -1) throw new Error(`${from} does not stand there once`);
  copy.write(to, at, 'latin1');
  return copy;
};

const withMark = (name: string, value: string): Promise<Buffer> =>
  imageOf(() => {
    const metadata: Metadata = { ...defaultMetadata(0o755), xattrs: new Map([[text(name), Buffer.from(value)]]) };
    const root = newDirectory();
    root.children.set(text('one'), newDirectory(metadata));
    return Promise.resolve(root);
  });

/** The one directory twice: the entry of another gets its number. */
const aliased = async (): Promise<Buffer> => {
  const image = Buffer.from(await sample());
  const reader = await ImageReader.open(bufferSource(image));
  const [one, two] = [await reader.lookup(text('one')), await reader.lookup(text('two'))];
  if (one === undefined || two === undefined) throw new Error('no directories');
  // Number, place of the name, type: of the last of `.`, `..`, `one` and `two`.
  const entry = Buffer.alloc(11);
  entry.writeBigUInt64LE(BigInt(two.nid));
  entry.writeUInt16LE(4 * 12 + '...one'.length, 8);
  entry.writeUInt8(2, 10);
  const at = image.indexOf(entry);
  expect(at).toBeGreaterThan(0);
  image.writeBigUInt64LE(BigInt(one.nid), at);
  return image;
};

const cases: Readonly<Record<string, readonly [code: string, reason: string, () => Promise<Buffer>]>> = {
  'a directory that stands twice': ['image_corrupt', 'directory_twice', aliased],
  'a name that stands twice in a directory': [
    'image_corrupt',
    'name_twice',
    async () => replaced(await sample(), 'name-10', 'name-11'),
  ],
  'a directory that overlayfs is to look for elsewhere': [
    'image_unsupported',
    'overlay_mark',
    () => withMark('trusted.overlay.redirect', '/etc'),
  ],
  'a file whose data overlayfs is to look for below': [
    'image_unsupported',
    'overlay_mark',
    () => withMark('trusted.overlay.metacopy', ''),
  ],
  'whiteouts of the other form': ['image_unsupported', 'overlay_mark', () => withMark('trusted.overlay.opaque', 'x')],
  'too much data among its metadata': [
    'image_unsupported',
    'data_in_image',
    () =>
      imageOf(
        async (writer) => {
          const root = newDirectory();
          const size = 16 * 1024 * 1024 + 1;
          const data = await writer.store(size, once(Buffer.alloc(size)));
          root.children.set(text('file'), { kind: 'file', metadata: defaultMetadata(0o644), data });
          return root;
        },
        { hasData: false },
      ),
  ],
  'links that lie one over the other': [
    'image_corrupt',
    'overlap',
    async () => {
      const image = await imageOf(() => {
        const root = newDirectory();
        for (let index = 0; index < 64; index++) {
          root.children.set(text(`${index}`), { kind: 'symlink', metadata: defaultMetadata(0o777), target: text('x') });
        }
        return Promise.resolve(root);
      });
      const reader = await ImageReader.open(bufferSource(image));
      for await (const { inode } of reader.walk()) {
        if (inode.kind !== 'symlink') continue;
        const at = reader.superblock.metaBlock * 4096 + inode.nid * 32;
        image.writeUInt16LE(1, at); // extended, in whole blocks
        image.writeBigUInt64LE(4095n, at + 8);
        image.writeUInt32LE(0, at + 16); // the first block
      }
      return image;
    },
  ],
  'several devices of its own': [
    'image_unsupported',
    'devices',
    async () => {
      const output = new MemoryOutput();
      const devices = [1, 2].map((blocks) => ({ tag: '', blocks }));
      await new ImageWriter(output, { devices }).finish(newDirectory());
      return output.bytes;
    },
  ],
};

describe('a layer that cannot be merged', () => {
  it.each(Object.entries(cases))('is named: %s', async (_, [code, reason, make]) => {
    const good = await layerOf(await sample(), 'sha256:of-a-good-layer');
    const bad = await layerOf(await make());
    for (const layers of [[bad], [good, bad], [bad, good]]) {
      await expect(mergeTrees(layers)).rejects.toMatchObject({ code, details: { reason, layer: LAYER } });
    }
  });

  it('is an error of its own kind, or merged, whatever is wrong with it (fuzz)', {
    timeout: fuzzMs + 60_000,
  }, async () => {
    const image = await sample();
    const good = await layerOf(image, 'sha256:of-a-good-layer');
    const used = image.findLastIndex((byte) => byte !== 0);
    const position = fc.integer({ min: 1024, max: used });
    let refused = 0;
    let merged = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(fc.tuple(position, fc.nat(255)), { minLength: 1, maxLength: 12 }), async (changes) => {
        const copy = Buffer.from(image);
        for (const [at, byte] of changes) copy[at] = byte;
        // A right checksum is no obstacle to who makes a layer.
        copy.writeUInt8(copy.readUInt8(1032) & 0xfe, 1032);
        try {
          const bad = await layerOf(copy);
          const { root, devices } = await mergeTrees([good, bad]);
          await new ImageWriter(new MemoryOutput(), { devices }).finish(root);
          merged += 1;
        } catch (error) {
          if (!PlatformError.is(error) || !/^image_|^invalid_argument$/.test(error.code)) throw error;
          refused += 1;
        }
      }),
      { numRuns: 1_000_000, interruptAfterTimeLimit: fuzzMs, markInterruptAsFailure: false },
    );
    expect(refused).toBeGreaterThan(10);
    expect(merged).toBeGreaterThan(10);
  });
});
