import fc from 'fast-check';
import { ByteString, type DirectoryNode, type FsNode, type Metadata, newDirectory } from './index.ts';
import type { Store } from './image.fixture.ts';

/** A tree as the tests describe it, with the bytes of its files. */
export type Model =
  | { readonly kind: 'directory'; readonly metadata: Metadata; readonly children: ReadonlyMap<string, Model> }
  | { readonly kind: 'file'; readonly metadata: Metadata; readonly content: Buffer }
  | { readonly kind: 'symlink'; readonly metadata: Metadata; readonly target: string }
  | {
      readonly kind: 'char-device' | 'block-device' | 'fifo' | 'socket';
      readonly metadata: Metadata;
      readonly major: number;
      readonly minor: number;
    };

const latin1 = (bytes: Uint8Array): string => Buffer.from(bytes).toString('latin1');

/** Any bytes but slash and NUL, among them names that are not UTF-8. */
const nameByte = fc.integer({ min: 1, max: 255 }).filter((byte) => byte !== 0x2f);
const name = fc
  .oneof(
    { weight: 6, arbitrary: fc.array(nameByte, { minLength: 1, maxLength: 12 }) },
    { weight: 1, arbitrary: fc.array(nameByte, { minLength: 200, maxLength: 255 }) },
  )
  .map((bytes) => latin1(Uint8Array.from(bytes)))
  .filter((text) => text !== '.' && text !== '..');

const id = fc.oneof(fc.constantFrom(0, 1000, 65_534, 65_536, 4_294_967_294), fc.integer({ min: 0, max: 100_000 }));
const xattrValue = fc.oneof(
  fc.uint8Array({ maxLength: 20 }),
  fc.integer({ min: 3000, max: 9000 }).map((length) => Buffer.alloc(length, 0x61)),
);

const xattrs = (namespace: string): fc.Arbitrary<ReadonlyMap<ByteString, Uint8Array>> =>
  fc
    .array(
      fc.tuple(
        fc.stringMatching(/^[a-z]{1,20}$/).map((suffix) => ByteString.fromText(`${namespace}${suffix}`)),
        xattrValue,
      ),
      { maxLength: 3 },
    )
    .map((entries) => new Map(entries));

/** Linux gives `user.` attributes only to files and directories. */
const metadata = (namespace: string): fc.Arbitrary<Metadata> =>
  fc.record({
    mode: fc.integer({ min: 0, max: 0o7777 }),
    uid: id,
    gid: id,
    mtime: fc.record({
      seconds: fc.oneof(fc.integer({ min: -100_000, max: 4_000_000_000 }), fc.constant(2 ** 40)),
      nanoseconds: fc.integer({ min: 0, max: 999_999_999 }),
    }),
    xattrs: fc.oneof({ weight: 3, arbitrary: fc.constant(new Map()) }, { weight: 1, arbitrary: xattrs(namespace) }),
  });

const sizeBytes = fc.oneof(
  fc.constantFrom(0, 1, 4095, 4096, 4097, 8192, 70_000, 262_144, 300_000, 1_048_577),
  fc.integer({ min: 0, max: 9000 }),
);
const content = fc
  .tuple(sizeBytes, fc.integer({ min: 0, max: 255 }))
  .map(([length, byte]) => Buffer.alloc(length, byte)); // zeros among them: holes

const leaf: fc.Arbitrary<Model> = fc.oneof(
  { weight: 5, arbitrary: fc.record({ kind: fc.constant('file' as const), metadata: metadata('user.'), content }) },
  {
    weight: 2,
    arbitrary: fc.record({
      kind: fc.constant('symlink' as const),
      metadata: metadata('trusted.').map((each) => ({ ...each, mode: 0o777 })),
      target: fc
        .oneof(
          fc.array(fc.integer({ min: 1, max: 255 }), { minLength: 1, maxLength: 60 }),
          fc.integer({ min: 3900, max: 4095 }).map((length) => Array<number>(length).fill(0x78)),
        )
        .map((bytes) => latin1(Uint8Array.from(bytes))),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constantFrom('char-device' as const, 'block-device' as const),
      metadata: metadata('trusted.'),
      major: fc.integer({ min: 0, max: 4095 }),
      minor: fc.integer({ min: 0, max: 1_048_575 }),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constantFrom('fifo' as const, 'socket' as const),
      metadata: metadata('trusted.'),
      major: fc.constant(0),
      minor: fc.constant(0),
    }),
  },
);

const { directory } = fc.letrec<{ directory: Model; node: Model }>((tie) => ({
  directory: fc.record({
    kind: fc.constant('directory' as const),
    metadata: metadata('user.'),
    children: fc
      .array(fc.tuple(name, tie('node')), { maxLength: 12, depthIdentifier: 'tree' })
      .map((entries) => new Map(entries)),
  }),
  node: fc.oneof({ depthIdentifier: 'tree', maxDepth: 4 }, leaf, tie('directory')),
}));

/** A root directory; the same Model object under two names is a hard link. */
export const rootModel: fc.Arbitrary<Extract<Model, { kind: 'directory' }>> = fc
  .tuple(directory, fc.array(fc.tuple(name, fc.nat()), { maxLength: 4 }))
  .map(([root, links]) => {
    if (root.kind !== 'directory') throw new Error('the root is a directory');
    const children = new Map(root.children);
    const targets = [...children.values()].filter((each) => each.kind !== 'directory');
    for (const [link, pick] of links) {
      const target = targets[pick % Math.max(targets.length, 1)];
      if (target !== undefined && !children.has(link)) children.set(link, target);
    }
    return { ...root, children };
  });

/** Builds the tree that a model describes, storing its files on the way. */
export const buildTree = async (root: Extract<Model, { kind: 'directory' }>, store: Store): Promise<DirectoryNode> => {
  const made = new Map<Model, FsNode>();
  const build = async (model: Model): Promise<FsNode> => {
    const known = made.get(model);
    if (known !== undefined) return known;
    const node = await make(model);
    made.set(model, node);
    return node;
  };
  const make = async (model: Model): Promise<FsNode> => {
    switch (model.kind) {
      case 'directory': {
        const node = newDirectory(model.metadata);
        for (const [childName, child] of model.children) {
          node.children.set(ByteString.fromBytes(Buffer.from(childName, 'latin1')), await build(child));
        }
        return node;
      }
      case 'file':
        return { kind: 'file', metadata: model.metadata, data: await store(model.content) };
      case 'symlink':
        return {
          kind: 'symlink',
          metadata: model.metadata,
          target: ByteString.fromBytes(Buffer.from(model.target, 'latin1')),
        };
      default:
        return { kind: model.kind, metadata: model.metadata, major: model.major, minor: model.minor };
    }
  };
  const node = await build(root);
  if (node.kind !== 'directory') throw new Error('the root is a directory');
  return node;
};

/** Every path of a model with what is there; the root is the empty path. */
export const flatten = (root: Model): Map<string, Model> => {
  const paths = new Map<string, Model>();
  const visit = (path: string, model: Model): void => {
    paths.set(path, model);
    if (model.kind !== 'directory') return;
    for (const [childName, child] of model.children) visit(path === '' ? childName : `${path}/${childName}`, child);
  };
  visit('', root);
  return paths;
};

/** How many names (and, for directories, subdirectories) point at each model. */
export const expectedLinks = (root: Model): Map<Model, number> => {
  const links = new Map<Model, number>();
  for (const model of flatten(root).values()) {
    const own = model.kind === 'directory' ? 2 : (links.get(model) ?? 0) + 1;
    const below = model.kind === 'directory' ? [...model.children.values()] : [];
    links.set(model, own + below.filter((child) => child.kind === 'directory').length);
  }
  return links;
};
