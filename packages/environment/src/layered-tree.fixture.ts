/** Layers as archives have them, and what they are as trees. */
import { PlatformError } from '@dsec/contract';
import { type DirectoryNode, EMPTY_FILE } from '@dsec/erofs';
import fc from 'fast-check';
import { LayerTree, type StoreFile } from './layer-tree.ts';
import { streamOf, type TarItem, tarOf } from './tar/tar.fixture.ts';

export const apply = async (tree: LayerTree, items: readonly TarItem[], store: StoreFile): Promise<void> =>
  tree.apply(streamOf(tarOf(...items)), { name: 'sha256:layer', store });

export const flattened = async (layers: readonly (readonly TarItem[])[], store: StoreFile): Promise<DirectoryNode> => {
  const tree = new LayerTree();
  for (const items of layers) await apply(tree, items, store);
  return tree.finish();
};

export const discard: StoreFile = (sizeBytes) => Promise.resolve({ ...EMPTY_FILE, sizeBytes });

/** Leaves out what cannot be applied after what stands before it. */
export const honest = async (layers: readonly (readonly TarItem[])[]): Promise<TarItem[][]> => {
  const kept: TarItem[][] = [];
  for (const items of layers) {
    const layer: TarItem[] = [];
    for (const item of items) {
      const isHonest = await flattened([...kept, [...layer, item]], discard).then(
        () => true,
        (error: unknown) => {
          if (PlatformError.is(error)) return false;
          throw error;
        },
      );
      if (isHonest) layer.push(item);
    }
    kept.push(layer);
  }
  return kept;
};

const path = fc.array(fc.constantFrom('a', 'b', 'c'), { minLength: 1, maxLength: 3 }).map((names) => names.join('/'));
const attributes = fc.record({
  mode: fc.constantFrom(0o755, 0o700, 0o1777, 0o644),
  uid: fc.constantFrom(0, 1000, 70_000),
  mtime: fc.constantFrom(1, 1_700_000_000),
});
const beside = (parent: string, name: string): string => {
  const at = parent.lastIndexOf('/') + 1;
  return `${parent.slice(0, at)}${name}${parent.slice(at)}`;
};
const item: fc.Arbitrary<TarItem> = fc.oneof(
  {
    weight: 8,
    arbitrary: fc
      .tuple(path, attributes, fc.constantFrom(0, 3, 5000, 300_000), fc.constantFrom('x', 'y'))
      .map(([name, rest, length, byte]) => ({ name, ...rest, content: Buffer.alloc(length, byte) })),
  },
  { weight: 8, arbitrary: fc.tuple(path, attributes).map(([name, rest]) => ({ name, ...rest, type: '5' })) },
  { weight: 6, arbitrary: path.map((name) => ({ name: beside(name, '.wh.') })) },
  { weight: 4, arbitrary: fc.tuple(path, path).map(([name, link]) => ({ name, type: '1', link })) },
  { weight: 1, arbitrary: path.map((name) => ({ name: `${name}/.wh..wh..opq` })) },
  { weight: 1, arbitrary: fc.tuple(path, path).map(([name, link]) => ({ name, type: '2', mode: 0o777, link })) },
  { weight: 1, arbitrary: path.map((name) => ({ name, type: '6' })) },
  { weight: 1, arbitrary: attributes.map((rest) => ({ name: './', ...rest, type: '5' })) },
  { weight: 1, arbitrary: fc.constant({ name: '.wh..wh..opq' }) },
);
/** Layers, lowest first, and with each whether it begins a new image; the others are merged with the one before. */
export const sequence = fc.array(fc.tuple(fc.array(item, { maxLength: 9 }), fc.boolean()), {
  minLength: 2,
  maxLength: 5,
});

/** The layers that each image is made of, lowest first; there are two at least. */
export const groupsOf = (layers: readonly TarItem[][], begins: readonly boolean[]): TarItem[][][] => {
  const groups: TarItem[][][] = [];
  for (const [index, layer] of layers.entries()) {
    const last = groups.at(-1);
    if (last === undefined || begins[index] === true || (index === layers.length - 1 && groups.length < 2)) {
      groups.push([layer]);
    } else {
      last.push(layer);
    }
  }
  return groups;
};
