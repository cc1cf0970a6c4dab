/** The judge of trees that stand above others: overlayfs over their images, file by file against all layers in one tree. */
import { lstat, mkdir, mkdtemp, open, readdir, readFile, readlink, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import {
  ByteString,
  type DirectoryNode,
  EMPTY_FILE,
  type FileData,
  fileSource,
  type FsNode,
  ImageReader,
  ImageWriter,
} from '@dsec/erofs';
import { mountedFiles } from '@dsec/testkit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { tool } from './build.fixture.ts';
import { fileOutput } from './file-output.ts';
import { LayerTree, type StoreFile } from './layer-tree.ts';
import { apply, discard, flattened, groupsOf, honest, sequence } from './layered-tree.fixture.ts';
import { type LowerTree, StackedImages, unknownLower } from './lower-tree.ts';
import { isWhiteout } from './overlay-marks.ts';
import type { TarItem } from './tar/tar.fixture.ts';

const KINDS: Readonly<Record<FsNode['kind'], number>> = {
  file: 0o100000,
  directory: 0o040000,
  symlink: 0o120000,
  'char-device': 0o020000,
  'block-device': 0o060000,
  fifo: 0o010000,
  socket: 0o140000,
};

/** Remembers what it stored by the data's own identity. */
class Contents {
  readonly #contents = new Map<FileData, Buffer>();

  readonly store: StoreFile = async (sizeBytes, bytes) => {
    const parts: Uint8Array[] = [];
    for await (const part of bytes) parts.push(part);
    const data = { ...EMPTY_FILE, sizeBytes };
    this.#contents.set(data, Buffer.concat(parts));
    return data;
  };

  of(data: FileData): Buffer {
    return this.#contents.get(data) ?? Buffer.alloc(0);
  }
}

interface Written {
  readonly image: string;
  readonly data: string | undefined;
  readonly reader: ImageReader;
  close(): Promise<void>;
}

/** Writes the image of layers that are one tree, above the images that are there. */
const write = async (
  directory: string,
  layers: readonly (readonly TarItem[])[],
  above: LowerTree | undefined,
): Promise<Written> => {
  await mkdir(directory);
  const image = join(directory, 'rootfs.erofs');
  const dataPath = join(directory, 'data');
  const file = await open(image, 'wx+');
  const data = await open(dataPath, 'wx+');
  const writer = new ImageWriter(fileOutput(file), { data: fileOutput(data) });
  const tree = new LayerTree(above === undefined ? {} : { above });
  for (const items of layers) await apply(tree, items, (sizeBytes, bytes) => writer.store(sizeBytes, bytes));
  const written = await writer.finish(tree.finish());
  const hasData = (written.data?.sizeBytes ?? 0) > 0;
  return {
    image,
    data: hasData ? dataPath : undefined,
    reader: await ImageReader.open(await fileSource(file), hasData ? { data: await fileSource(data) } : {}),
    close: async () => {
      await file.close();
      await data.close();
    },
  };
};

const compare = async (directory: string, root: DirectoryNode, contents: Contents): Promise<number> => {
  let compared = 0;
  const visit = async (place: string, node: FsNode): Promise<void> => {
    compared++;
    const info = await lstat(place, { bigint: true });
    const { mode, uid, gid, mtime } = node.metadata;
    expect([place, Number(info.mode), Number(info.uid), Number(info.gid), info.mtimeNs]).toEqual([
      place,
      KINDS[node.kind] | mode,
      uid,
      gid,
      BigInt(mtime.seconds) * 1_000_000_000n,
    ]);
    if (node.kind === 'file') expect((await readFile(place)).equals(contents.of(node.data))).toBe(true);
    if (node.kind === 'symlink') expect(await readlink(place)).toBe(node.target);
    if (node.kind !== 'directory') return;
    expect([place, ...(await readdir(place)).sort()]).toEqual([place, ...[...node.children.keys()].sort()]);
    for (const [name, child] of node.children) await visit(join(place, name), child);
  };
  await visit(directory, root);
  return compared;
};

/** The paths of a tree, with what overlayfs is told. */
const shown = (root: DirectoryNode): string[] => {
  const found: string[] = [];
  const visit = (directory: DirectoryNode, above: string): void => {
    for (const [name, node] of directory.children) {
      const marks = [...node.metadata.xattrs.keys()].filter((key) => key.startsWith('trusted.')).join();
      found.push(`${above}${name}${isWhiteout(node) ? ' gone' : ''}${marks === '' ? '' : ` ${marks}`}`);
      if (node.kind === 'directory') visit(node, `${above}${name}/`);
    }
  };
  visit(root, '');
  return found.sort();
};

const layered = async (...layers: TarItem[][]): Promise<string[]> => {
  const tree = new LayerTree({ above: unknownLower });
  for (const items of layers) await apply(tree, items, discard);
  return shown(tree.finish());
};

const directory = (name: string): TarItem => ({ name, type: '5', mode: 0o755 });
const file = (name: string): TarItem => ({ name, content: 'x' });

describe('a tree that stands above others', () => {
  it('keeps whiteouts, in the form of overlayfs', async () => {
    expect(await layered([directory('a'), file('a/.wh.x'), file('.wh.b'), file('c')])).toEqual([
      'a trusted.overlay.origin',
      'a/x gone',
      'b gone',
      'c',
    ]);
    expect(await layered([directory('a'), file('a/new'), file('a/.wh..wh..opq'), file('a/.wh.x')])).toEqual([
      'a trusted.overlay.opaque',
      'a/new',
    ]);
  });

  it('hides what is below a directory that its own layer also whites out, in any order', async () => {
    const expected = ['a trusted.overlay.opaque', 'a/new'];
    expect(await layered([file('.wh.a'), directory('a'), file('a/new')])).toEqual(expected);
    expect(await layered([directory('a'), file('a/new'), file('.wh.a')])).toEqual(expected);
    expect(await layered([file('a/new'), file('.wh.a')])).toEqual(expected);
  });

  it('merges layers, and goes on hiding what any of them hid', async () => {
    expect(await layered([file('.wh.a')], [directory('a'), file('a/new')])).toEqual([
      'a trusted.overlay.opaque',
      'a/new',
    ]);
    expect(await layered([file('a')], [directory('a')])).toEqual(['a trusted.overlay.opaque']);
    expect(await layered([directory('a'), file('a/x')], [file('a/.wh.x')])).toEqual([
      'a trusted.overlay.origin',
      'a/x gone',
    ]);
    expect(await layered([file('.wh.a')], [file('a')])).toEqual(['a']);
    expect(await layered([directory('a'), file('a/.wh.x')], [file('a/.wh..wh..opq')])).toEqual([
      'a trusted.overlay.opaque',
    ]);
  });

  it('keeps hard links, and refuses one whose target nobody knows', async () => {
    const tree = new LayerTree({ above: unknownLower });
    await apply(tree, [file('a'), { name: 'b', type: '1', link: 'a' }], discard);
    const name = ByteString.fromText;
    expect(tree.root.children.get(name('a'))).toBe(tree.root.children.get(name('b')));
    await expect(apply(tree, [{ name: 'c', type: '1', link: 'x' }], discard)).rejects.toMatchObject({
      code: 'image_corrupt',
    });
    await expect(apply(tree, [file('.wh.a'), { name: 'c', type: '1', link: 'a' }], discard)).rejects.toMatchObject({
      code: 'image_corrupt',
    });
  });

  it('shows in an overlay mount what all layers show in one tree, whatever the layers', {
    timeout: 240_000,
  }, async () => {
    const place = await mkdtemp(join(tmpdir(), 'dsec-layered-'));
    let runs = 0;
    let compared = 0;
    try {
      await fc.assert(
        fc.asyncProperty(sequence, async (drawn) => {
          runs++;
          const layers = await honest(drawn.map(([items]) => items));
          const groups = groupsOf(
            layers,
            drawn.map(([, begins]) => begins),
          );
          const contents = new Contents();
          const expected = await flattened(layers, contents.store);
          await using cleanup = new AsyncDisposableStack();
          const images: Written[] = [];
          const lowers: string[] = [];
          for (const [index, group] of groups.entries()) {
            const above = index === 0 ? undefined : new StackedImages(images.map(({ reader }) => reader));
            const written = await write(join(place, `${runs}-${index}`), group, above);
            cleanup.defer(() => written.close());
            images.push(written);
            const mountPoint = join(place, `${runs}-${index}`, 'mnt');
            cleanup.use(await mountedFiles(written.image, written.data, mountPoint));
            lowers.unshift(mountPoint);
          }
          const overlay = join(place, `${runs}`);
          await mkdir(overlay);
          await tool('mount', '-t', 'overlay', 'overlay', '-o', `ro,lowerdir=${lowers.join(':')}`, overlay);
          cleanup.defer(async () => {
            await tool('umount', overlay);
          });
          compared += await compare(overlay, expected, contents);
        }),
        { numRuns: 60 },
      );
      expect(compared).toBeGreaterThan(200);
    } finally {
      await rm(place, { recursive: true });
    }
  });
});
