import { ByteString, type DirectoryNode, EMPTY_FILE, type FsNode } from '@dsec/erofs';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { streamOf, type TarItem, tarOf } from './tar/tar.fixture.ts';
import { type LayerOptions, LayerTree } from './layer-tree.ts';

const options: LayerOptions = {
  name: 'sha256:layer',
  store: (sizeBytes) => Promise.resolve({ ...EMPTY_FILE, sizeBytes }),
};

const treeOf = async (
  layers: readonly (readonly TarItem[])[],
  more: Partial<LayerOptions> = {},
): Promise<LayerTree> => {
  const tree = new LayerTree();
  for (const items of layers) await tree.apply(streamOf(tarOf(...items)), { ...options, ...more });
  return tree;
};

/** The paths of a tree; directories end in a slash, links show their target. */
const paths = (root: DirectoryNode): string[] => {
  const found: string[] = [];
  const visit = (directory: DirectoryNode, above: string): void => {
    for (const [name, node] of directory.children) {
      const path = `${above}${name}`;
      found.push(node.kind === 'directory' ? `${path}/` : node.kind === 'symlink' ? `${path} -> ${node.target}` : path);
      if (node.kind === 'directory') visit(node, `${path}/`);
    }
  };
  visit(root, '');
  return found.sort((a, b) => ByteString.compare(ByteString.fromText(a), ByteString.fromText(b)));
};

const at = (root: DirectoryNode, path: string): FsNode | undefined => {
  let node: FsNode | undefined = root;
  for (const name of path.split('/')) {
    node = node?.kind === 'directory' ? node.children.get(ByteString.fromText(name)) : undefined;
  }
  return node;
};

const directory = (name: string): TarItem => ({ name, type: '5', mode: 0o755 });
const file = (name: string, content = 'x'): TarItem => ({ name, content });
const link = (name: string, target: string): TarItem => ({ name, type: '2', link: target });
const hard = (name: string, target: string): TarItem => ({ name, type: '1', link: target });

describe('layers, one over the other', () => {
  it('whiteouts remove what is below, and only that', async () => {
    const tree = await treeOf([
      [directory('a'), file('a/one'), file('a/two'), directory('b'), file('b/three'), file('c')],
      [file('.wh.c'), file('a/.wh.one'), file('.wh.b'), file('b/new'), file('a/.wh.nothing')],
    ]);
    expect(paths(tree.root)).toEqual(['a/', 'a/two', 'b/', 'b/new']);
  });

  it('an opaque directory hides what is below, wherever its marker stands in the layer', async () => {
    const lower = [directory('a'), file('a/old'), directory('a/sub'), file('a/sub/old')];
    for (const upper of [
      [directory('a'), file('a/.wh..wh..opq'), file('a/new'), file('a/sub/new')],
      [directory('a'), file('a/new'), file('a/sub/new'), file('a/.wh..wh..opq')],
    ]) {
      expect(paths((await treeOf([lower, upper])).root)).toEqual(['a/', 'a/new', 'a/sub/', 'a/sub/new']);
    }
  });

  it('a whiteout beside a hard link to the same file removes only the old name', async () => {
    const tree = await treeOf([[file('old')], [hard('new', 'old'), file('.wh.old')]]);
    expect(paths(tree.root)).toEqual(['new']);
  });

  it('directories merge and take the metadata of the upper layer; other things replace', async () => {
    const tree = await treeOf([
      [directory('a'), file('a/keep'), file('b'), directory('c'), file('c/gone')],
      [{ ...directory('a'), mode: 0o700, uid: 7 }, directory('b'), file('c')],
    ]);
    expect(paths(tree.root)).toEqual(['a/', 'a/keep', 'b/', 'c']);
    expect(at(tree.root, 'a')?.metadata).toMatchObject({ mode: 0o700, uid: 7 });
  });

  it('a directory stands where a lower layer had a link that a path leads through', async () => {
    const tree = await treeOf([[link('lib', '/etc'), directory('etc')], [file('lib/passwd')]]);
    expect(paths(tree.root)).toEqual(['etc/', 'lib/', 'lib/passwd']);
  });

  it('hard links share one file, also with a lower layer', async () => {
    const tree = await treeOf([[file('a')], [hard('b', './a')]]);
    expect(at(tree.root, 'a')).toBe(at(tree.root, 'b'));
  });

  it('agrees with a plain model of whiteouts, whatever the layers', async () => {
    const path = fc.tuple(fc.constantFrom('p', 'q'), fc.constantFrom('p', 'q')).map((parts) => parts.join('/'));
    const operation = fc.oneof(
      fc.tuple(fc.constant('add' as const), path, fc.constantFrom('x', 'y')),
      fc.tuple(fc.constant('hide' as const), path, fc.constantFrom('x', 'y')),
      fc.tuple(fc.constant('hide-directory' as const), fc.constant('.'), fc.constantFrom('p', 'q')),
      fc.tuple(fc.constant('opaque' as const), path, fc.constant('')),
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.array(operation, { maxLength: 8 }), { minLength: 1, maxLength: 4 }),
        async (layers) => {
          let expected = new Set<string>();
          for (const operations of layers) {
            const isHidden = (name: string): boolean =>
              operations.some(([kind, parent, child]) =>
                kind === 'opaque'
                  ? name.startsWith(`${parent}/`)
                  : kind === 'hide-directory'
                    ? name.startsWith(`${child}/`)
                    : kind === 'hide' && name === `${parent}/${child}`,
              );
            expected = new Set([...expected].filter((name) => !isHidden(name)));
            for (const [kind, parent, child] of operations) if (kind === 'add') expected.add(`${parent}/${child}`);
          }
          const tree = await treeOf(
            layers.map((operations) =>
              operations.map(([kind, parent, child]) =>
                file(kind === 'add' ? `${parent}/${child}` : `${parent}/.wh.${kind === 'opaque' ? '.wh..opq' : child}`),
              ),
            ),
          );
          expect(paths(tree.root).filter((name) => !name.endsWith('/'))).toEqual([...expected].sort());
        },
      ),
      { numRuns: 200 },
    );
  });
});

describe('entries that no honest layer has', () => {
  it.each([
    ['..', [file('../etc/passwd')], 'archive_unsafe', 'path_dot_dot'],
    ['.. in the middle', [directory('a'), file('a/../../b')], 'archive_unsafe', 'path_dot_dot'],
    ['an absolute path', [file('/etc/passwd')], 'archive_unsafe', 'path_absolute'],
    ['an absolute hard link', [hard('a', '/etc/passwd')], 'archive_unsafe', 'link_path_absolute'],
    ['a hard link with ..', [hard('a', '../../etc/passwd')], 'archive_unsafe', 'link_path_dot_dot'],
    ['a path through its own link', [link('a', '/etc'), file('a/passwd')], 'archive_unsafe', 'path_through_symlink'],
    [
      'a hard link through a link',
      [link('a', 'b'), directory('b'), file('b/f'), hard('c', 'a/f')],
      'archive_unsafe',
      'link_through_symlink',
    ],
    ['a hard link to nothing', [hard('a', 'b')], 'image_corrupt', 'link_target_missing'],
    ['a hard link to a directory', [directory('a'), hard('b', 'a')], 'image_corrupt', 'link_to_directory'],
    ['a path through a file', [file('a'), file('a/b')], 'image_corrupt', 'path_through_file'],
    ['a character device', [{ name: 'dev/mem', type: '3' }], 'archive_unsafe', 'device'],
    ['a block device', [{ name: 'sda', type: '4' }], 'archive_unsafe', 'device'],
    ['a name of 256 bytes', [{ name: 'a', pax: { path: 'n'.repeat(256) } }], 'archive_unsafe', 'name_too_long'],
    ['a path of 5000 bytes', [{ name: 'a', pax: { path: 'n/'.repeat(2500) } }], 'archive_unsafe', 'path_too_long'],
    ['a NUL in its path', [{ name: 'a', pax: { path: 'a\0b' } }], 'archive_unsafe', 'path_nul'],
    ['a link to nowhere', [link('a', '')], 'image_corrupt', 'symlink_target'],
    ['a root that is a file', [file('./')], 'image_corrupt', 'root_not_directory'],
    ['a whiteout of ..', [file('.wh...')], 'archive_unsafe', 'whiteout'],
    [
      'attributes beyond any bound',
      [{ name: 'a', pax: { 'SCHILY.xattr.user.a': 'v'.repeat(70_000) } }],
      'image_unsupported',
      'xattr_size',
    ],
  ] as [string, TarItem[], string, string][])('%s: refused, with layer and offset', async (_, items, code, reason) => {
    const bad = treeOf([[directory('fine'), ...items]]);
    await expect(bad).rejects.toMatchObject({ code, details: { layer: 'sha256:layer', reason } });
    const error: unknown = await bad.catch((caught: unknown) => caught);
    // The entry that is wrong is the last.
    const { offset } = (error as { details: { offset: number } }).details;
    expect(offset % 512).toBe(0);
    expect(offset).toBeGreaterThan(0);
  });

  it('devices are left out when the maker of the archive is trusted', async () => {
    const tree = await treeOf([[directory('dev'), { name: 'dev/null', type: '3' }, file('a')]], { devices: 'drop' });
    expect(paths(tree.root)).toEqual(['a', 'dev/']);
  });

  it('directories that only paths name count as entries, so that a small archive makes no large tree', async () => {
    const apply = (maxEntries: number): Promise<void> =>
      new LayerTree({ maxEntries }).apply(streamOf(tarOf(file('a/b/c/one'), file('a/b/d/two'))), options);
    await expect(apply(6)).resolves.toBeUndefined();
    await expect(apply(5)).rejects.toMatchObject({
      code: 'image_unsupported',
      details: { reason: 'too_many_entries', entry: 'a/b/d/two' },
    });
  });

  it('attributes that would steer the overlay mount are left out, and counted', async () => {
    const tree = await treeOf([
      [
        {
          name: 'a',
          pax: {
            'SCHILY.xattr.trusted.overlay.redirect': '/etc',
            'SCHILY.xattr.user.overlay.opaque': 'y',
            'SCHILY.xattr.security.selinux': 'label',
            'SCHILY.xattr.security.capability': 'c',
            'SCHILY.xattr.user.kept': 'k',
          },
        },
      ],
    ]);
    expect([...(at(tree.root, 'a')?.metadata.xattrs.keys() ?? [])]).toEqual(['security.capability', 'user.kept']);
    expect([...tree.droppedXattrs.keys()]).toHaveLength(3);
  });
});
