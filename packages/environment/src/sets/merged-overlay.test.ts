/** The judges of a set: the kernel's own overlayfs of the same layers, and fsck.erofs. */
import { existsSync } from 'node:fs';
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import type { EnvironmentImage } from '@dsec/contract';
import {
  ByteString,
  defaultMetadata,
  type DirectoryNode,
  type FsNode,
  ImageReader,
  type ImageWriter,
  type Metadata,
  newDirectory,
} from '@dsec/erofs';
import { mountedFiles } from '@dsec/testkit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { mounted, testPlace, type TestPlace, tool } from '../build.fixture.ts';
import { buildLayer } from '../build-layer.ts';
import { layerDataPath } from '../layer-store.ts';
import { LayerTree } from '../layer-tree.ts';
import { apply, groupsOf, honest, sequence } from '../layered-tree.fixture.ts';
import { StackedImages } from '../lower-tree.ts';
import { markDirectories, newWhiteout } from '../overlay-marks.ts';
import { openedLayers } from './sets.fixture.ts';
import { SET_IMAGE_FILE, setDirectory } from './set-record.ts';
import { ensureSet } from './write-set.ts';

type Fill = (writer: ImageWriter) => Promise<DirectoryNode>;

const CONFIG = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };

const layerOf = async ({ context }: TestPlace, fill: Fill): Promise<EnvironmentImage> =>
  buildLayer(context, async ({ writer }) => ({
    root: await fill(writer),
    config: CONFIG,
    architecture: 'amd64',
    source: { kind: 'recipe', name: 'test' },
  }));

/** All that a tree shows: contents, modes, owners, times, attributes, hard links, device numbers. */
const shown = async (directory: string): Promise<Buffer> => {
  const pax = '--pax-option=exthdr.name=%f,delete=atime,delete=ctime';
  const xattrs = ['--xattrs', '--xattrs-include=*'];
  const { stdout } = await tool(
    'tar',
    '--format=pax',
    pax,
    ...xattrs,
    '--numeric-owner',
    '--sort=name',
    '-cC',
    directory,
    '.',
  );
  return stdout;
};

let runs = 0;

/** Compares the set of layers with their overlay. @param layers topmost first. @returns how many bytes there were to compare */
const compare = async (place: TestPlace, layers: readonly string[]): Promise<number> => {
  const { layersDirectory } = place.context;
  const setsDirectory = join(place.path, 'sets');
  await mkdir(setsDirectory, { recursive: true });
  const directories = { setsDirectory, draftsDirectory: setsDirectory, layersDirectory };
  const { digest } = (await ensureSet(directories, layers)).record;
  const image = join(setDirectory(setsDirectory, digest), SET_IMAGE_FILE);
  const devices = layers.map((layer) => layerDataPath(layersDirectory, layer)).filter((path) => existsSync(path));
  expect((await tool('fsck.erofs', ...devices.map((path) => `--device=${path}`), image)).exitCode).toBe(0);
  await using mounts = new AsyncDisposableStack();
  const at = join(place.path, `mounts-${runs}`);
  runs += 1;
  await mkdir(at);
  const lowers: string[] = [];
  for (const [index, layer] of layers.entries()) {
    const lower = join(at, `${index}`);
    const one = { layers: [layer], config: CONFIG, sizeBytes: 0, architecture: 'amd64' };
    mounts.use(await mounted(place.context, one, lower));
    lowers.push(lower);
  }
  mounts.use(await mountedFiles(image, devices, join(at, 'set')));
  const overlay = join(at, 'overlay');
  await mkdir(overlay);
  // Alone it would have nothing below it.
  const empty = join(at, 'empty');
  await mkdir(empty);
  const below = lowers.length === 1 ? [...lowers, empty] : lowers;
  await tool('mount', '-t', 'overlay', 'overlay', '-o', `ro,lowerdir=${below.join(':')}`, overlay);
  mounts.defer(async () => void (await tool('umount', overlay)));
  const [expected, merged] = [await shown(overlay), await shown(join(at, 'set'))];
  // A digest of megabytes says nothing; a listing does.
  if (!expected.equals(merged)) expect(merged.toString('latin1')).toBe(expected.toString('latin1'));
  return expected.length;
};

type Plan =
  | {
      readonly kind: 'directory';
      readonly metadata: Metadata;
      readonly isOpaque: boolean;
      readonly children: readonly (readonly [string, Plan])[];
    }
  | { readonly kind: 'file'; readonly metadata: Metadata; readonly content: Buffer }
  | { readonly kind: 'symlink'; readonly metadata: Metadata; readonly target: string }
  | {
      readonly kind: 'char-device' | 'block-device' | 'fifo';
      readonly metadata: Metadata;
      readonly major: number;
      readonly minor: number;
    }
  | { readonly kind: 'whiteout' };

const xattrs = (namespaces: readonly string[]): fc.Arbitrary<Metadata['xattrs']> =>
  fc
    .array(fc.tuple(fc.constantFrom(...namespaces), fc.constantFrom('a', 'b'), fc.uint8Array({ maxLength: 9 })), {
      maxLength: 2,
    })
    .map((entries) => new Map(entries.map(([space, name, value]) => [ByteString.fromText(`${space}.${name}`), value])));

const metadata = (namespaces: readonly string[]): fc.Arbitrary<Metadata> =>
  fc.record({
    mode: fc.integer({ min: 0, max: 0o7777 }),
    uid: fc.constantFrom(0, 1000, 70_000),
    gid: fc.constantFrom(0, 100_000),
    mtime: fc.record({
      seconds: fc.constantFrom(-5, 0, 1_700_000_000),
      nanoseconds: fc.constantFrom(0, 1, 999_999_999),
    }),
    xattrs: fc.oneof({ weight: 3, arbitrary: fc.constant(new Map()) }, { weight: 1, arbitrary: xattrs(namespaces) }),
  });

const name = fc.constantFrom('a', 'b', 'c', '\xe9');
const leaf: fc.Arbitrary<Plan> = fc.oneof(
  {
    weight: 5,
    arbitrary: fc.record({
      kind: fc.constant('file' as const),
      metadata: metadata(['user', 'trusted', 'security']),
      content: fc
        .tuple(fc.constantFrom(0, 1, 4096, 5000, 262_144, 300_000), fc.integer({ min: 0, max: 255 }))
        .map(([length, byte]) => Buffer.alloc(length, byte)),
    }),
  },
  { weight: 4, arbitrary: fc.constant({ kind: 'whiteout' as const }) },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('symlink' as const),
      metadata: metadata(['trusted']).map((each) => ({ ...each, mode: 0o777 })),
      target: fc.constantFrom('a', '/nowhere', 'x'.repeat(4000)),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constantFrom('char-device' as const, 'block-device' as const),
      metadata: metadata(['trusted']),
      major: fc.constantFrom(1, 4095),
      minor: fc.constantFrom(0, 255, 1_048_575),
    }),
  },
  {
    weight: 1,
    arbitrary: fc.record({
      kind: fc.constant('fifo' as const),
      metadata: metadata(['trusted']),
      major: fc.constant(0),
      minor: fc.constant(0),
    }),
  },
);
type DirectoryPlan = Extract<Plan, { kind: 'directory' }>;
const { directory } = fc.letrec<{ directory: DirectoryPlan; node: Plan }>((tie) => ({
  directory: fc.record({
    kind: fc.constant('directory' as const),
    metadata: metadata(['user', 'trusted']),
    isOpaque: fc.oneof({ weight: 3, arbitrary: fc.constant(false) }, { weight: 1, arbitrary: fc.constant(true) }),
    children: fc.array(fc.tuple(name, tie('node')), { maxLength: 5, depthIdentifier: 'tree' }),
  }),
  // Few names and many directories, so that layers meet.
  node: fc.oneof(
    { depthIdentifier: 'tree', maxDepth: 3, depthSize: 'max' },
    { weight: 1, arbitrary: leaf },
    { weight: 1, arbitrary: tie('directory') },
  ),
}));
/** A tree, and the names that become hard links: each in the directory of that place to the leaf of that place. */
const layer = fc.tuple(
  directory,
  fc.array(fc.tuple(fc.nat(), fc.constantFrom('l', 'm', 'a'), fc.nat()), { maxLength: 3 }),
);
type LayerPlan = readonly [DirectoryPlan, readonly (readonly [number, string, number])[]];

const bytesOf = (text: string): ByteString => ByteString.fromBytes(Buffer.from(text, 'latin1'));

async function* once(content: Buffer): AsyncGenerator<Buffer> {
  yield await Promise.resolve(content);
}

const fillWith =
  ([rootPlan, links]: LayerPlan): Fill =>
  async (writer) => {
    const opaque = new Set<DirectoryNode>();
    const directories: DirectoryNode[] = [];
    const leaves: FsNode[] = [];
    /** Below an opaque directory there is nothing to white out, and no layer that is made here tries. */
    const build = async (plan: Plan, isSealed: boolean): Promise<FsNode | undefined> => {
      switch (plan.kind) {
        case 'whiteout':
          return isSealed ? undefined : newWhiteout();
        case 'directory': {
          const node = newDirectory(plan.metadata);
          const isOpaque = plan.isOpaque && plan !== rootPlan;
          if (isOpaque) opaque.add(node);
          directories.push(node);
          for (const [childName, child] of plan.children) {
            const made = await build(child, isSealed || isOpaque);
            if (made !== undefined) node.children.set(bytesOf(childName), made);
          }
          return node;
        }
        case 'file': {
          const { content } = plan;
          const node = {
            kind: plan.kind,
            metadata: plan.metadata,
            data: await writer.store(content.length, once(content)),
          };
          leaves.push(node);
          return node;
        }
        case 'symlink': {
          const node = { kind: plan.kind, metadata: plan.metadata, target: bytesOf(plan.target) };
          leaves.push(node);
          return node;
        }
        default:
          leaves.push(plan);
          return plan;
      }
    };
    const root = await build(rootPlan, false);
    if (root?.kind !== 'directory') throw new Error('the root is a directory');
    for (const [where, linkName, target] of links) {
      const node = leaves[target % Math.max(leaves.length, 1)];
      const into = directories[where % directories.length];
      if (node !== undefined) into?.children.set(bytesOf(linkName), node);
    }
    markDirectories(root, opaque);
    return root;
  };

describe('a set of layers', () => {
  it('shows what overlayfs shows of them, whatever they have', { timeout: 240_000 }, async () => {
    await using place = await testPlace();
    let compared = 0;
    await fc.assert(
      fc.asyncProperty(fc.array(layer, { minLength: 1, maxLength: 5 }), async (plans) => {
        const digests: string[] = [];
        for (const plan of plans) digests.unshift(...(await layerOf(place, fillWith(plan))).layers);
        compared += await compare(place, [...new Set(digests)]);
      }),
      { numRuns: 60 },
    );
    expect(compared).toBeGreaterThan(1_000_000);
  });

  it('shows what overlayfs shows of layers of images, whatever their archives', { timeout: 240_000 }, async () => {
    await using place = await testPlace();
    await fc.assert(
      fc.asyncProperty(sequence, async (drawn) => {
        const layers = await honest(drawn.map(([items]) => items));
        const begins = drawn.map(([, isFirst]) => isFirst);
        const digests: string[] = [];
        for (const [index, group] of groupsOf(layers, begins).entries()) {
          await using below = await openedLayers(place.context, digests);
          const images = below.images.toReversed();
          const built = await layerOf(place, async (writer) => {
            const tree = new LayerTree(index === 0 ? {} : { above: new StackedImages(images) });
            for (const items of group) await apply(tree, items, (sizeBytes, bytes) => writer.store(sizeBytes, bytes));
            return tree.finish();
          });
          digests.unshift(...built.layers);
        }
        await compare(place, [...new Set(digests)]);
      }),
      { numRuns: 30 },
    );
  });

  it('is one of the most layers that a sandbox may stand on', { timeout: 120_000 }, async () => {
    await using place = await testPlace();
    const digests: string[] = [];
    for (let index = 0; index < 64; index++) {
      const built = await layerOf(place, async (writer) => {
        const root = newDirectory();
        for (const fileName of [`only-${index}`, `every`, `half-${index >> 1}`]) {
          const content = Buffer.from(`${fileName} of ${index}`);
          const data = await writer.store(content.length, once(content));
          root.children.set(bytesOf(fileName), { kind: 'file', metadata: defaultMetadata(0o644), data });
        }
        return root;
      });
      digests.unshift(...built.layers);
    }
    const found = await filesOf(place, digests);
    expect(found).toHaveLength(64 + 32 + 1);
    expect(found).toContain('every: every of 63');
    expect(found).toContain('half-3: half-3 of 7');
  });
});

/** Read without the kernel: the paths of so many layers do not fit in the one page of options that mount(2) takes. */
const filesOf = async (place: TestPlace, layers: readonly string[]): Promise<string[]> => {
  const { layersDirectory } = place.context;
  const setsDirectory = join(place.path, 'sets');
  await mkdir(setsDirectory);
  const directories = { setsDirectory, draftsDirectory: setsDirectory, layersDirectory };
  const { digest } = (await ensureSet(directories, layers)).record;
  await using opened = await openedLayers(place.context, layers);
  const image = await ImageReader.open(opened.sourceOf(join(setDirectory(setsDirectory, digest), SET_IMAGE_FILE)), {
    devices: opened.data,
  });
  const found: string[] = [];
  for await (const { path, inode } of image.walk()) {
    if (inode.kind !== 'file') continue;
    const parts: Buffer[] = [];
    for await (const part of image.read(inode)) parts.push(part);
    found.push(`${path}: ${Buffer.concat(parts).toString()}`);
  }
  return found;
};
