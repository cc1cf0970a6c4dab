import { open } from 'node:fs/promises';
import type { EnvironmentConfig, PackRequest } from '@dsec/contract';
import { ByteString, ImageWriter, newDirectory } from '@dsec/erofs';
import { describe, expect, it, test } from 'vitest';
import { join } from 'node:path';
import { opened, testPlace, tool } from '../build.fixture.ts';
import { fileOutput } from '../file-output.ts';
import { emptyFile } from '../root-skeleton.ts';
import { streamOf, tarOf, type TarItem } from '../tar/tar.fixture.ts';
import { changesIn } from './change-scan.ts';
import { scanChanges } from './pack-changes.ts';
import { runPack } from './run-pack.ts';
import { defaultScrubRules } from './scrub-rules.ts';
import { Selection } from './selection.ts';
import { contentDigest, verifyPack } from './verify-pack.ts';

const config: EnvironmentConfig = { env: {}, user: '', workdir: '', entrypoint: [], cmd: [], labels: {} };
const dir = (name: string, more: Partial<TarItem> = {}): TarItem => ({
  name: `${name}/`,
  type: '5',
  mode: 0o755,
  ...more,
});
const root = dir('.');
const opaque = { pax: { 'SCHILY.xattr.trusted.overlay.opaque': 'y' } };
const whiteout = (name: string): TarItem => ({ name, type: '3', mode: 0 });

const pack = async (items: readonly TarItem[], request: Partial<PackRequest> = {}) => {
  const place = await testPlace();
  try {
    const changes = streamOf(tarOf(root, ...items));
    const { image, report } = await runPack(
      place.context,
      { name: 'test', ...request },
      { changes, config, architecture: 'amd64' },
    );
    if (image === undefined) return { report, paths: [], layers: await place.layers(), text: () => undefined };
    await using layer = await opened(place.context, image);
    const paths = await layer.paths();
    const texts = new Map<string, string | undefined>();
    for (const path of paths) texts.set(path, await layer.text(path));
    return { report, paths, layers: await place.layers(), text: (path: string) => texts.get(path) };
  } finally {
    await place[Symbol.asyncDispose]();
  }
};

describe('a packed layer', () => {
  it('says what is gone and what is opaque as overlayfs does, and no name of a file means anything', async () => {
    const { paths, text } = await pack([
      dir('a', opaque),
      { name: 'a/in', content: '1' },
      whiteout('gone'),
      { name: '.wh.file', content: '2' },
    ]);
    expect(paths).toEqual(['', '.wh.file', 'a', 'a/in', 'gone']);
    expect([text('gone'), text('.wh.file')]).toEqual(['char-device', '2']);
  });

  it('moves a file to its first name that is kept, also before the directory of that name', async () => {
    const { paths, text, report } = await pack([
      dir('tmp', { mode: 0o1777 }),
      { name: 'tmp/first', content: 'bytes' },
      dir('work', { mode: 0o700 }),
      { name: 'work/second', type: '1', link: 'tmp/first' },
      { name: 'work/third', type: '1', link: 'tmp/first' },
      { name: 'tmp/fourth', type: '1', link: 'tmp/first' },
    ]);
    expect(paths).toEqual(['', 'work', 'work/second', 'work/third']);
    expect([text('work/second'), text('work/third')]).toEqual(['bytes', 'bytes']);
    expect(report.omitted).toEqual([{ by: 'temporary', entries: 2, bytes: 5 }]);
  });

  it('is empty when only the platform has written', async () => {
    const { paths, report } = await pack([dir('etc'), { name: 'etc/hosts', content: 'x' }, dir('proc'), dir('tmp')]);
    expect(paths).toEqual(['']);
    expect(report.omitted.map(({ by }) => by)).toEqual(['platform']);
  });

  it('tells of files that have the bytes of one that was left out', async () => {
    const secret = 'a secret that is long enough to be told apart';
    const { report } = await pack([
      dir('root'),
      { name: 'root/.bash_history', content: secret },
      { name: 'copy', content: secret },
    ]);
    expect(report.checks.at(-1)).toMatchObject({ rule: 'scrubbed', level: 'warn', paths: ['/copy'] });
  });
});

it.each<[string, TarItem[], boolean]>([
  ['nothing', [], false],
  ['what the platform makes', [dir('etc'), { name: 'etc/hosts', content: 'x' }, dir('proc'), dir('tmp')], false],
  ['a socket', [{ name: 's', type: '6', pax: { 'SCHILY.xattr.dsec.socket': '1' } }], false],
  ['a file', [{ name: 'f' }], true],
  ['a file in a directory that the platform makes', [dir('etc'), { name: 'etc/f' }], true],
  ['something that is gone', [whiteout('gone')], true],
])('%s: whether it is a change', async (_what, items, expected) => {
  for (const archive of [tarOf(...items), tarOf(root, ...items)]) {
    const { hasChanges } = await scanChanges(changesIn(streamOf(archive), 'test', new Selection()));
    expect(hasChanges).toBe(expected);
  }
});

test.each<[string, TarItem[], Partial<PackRequest>, object]>([
  ['a device', [{ name: 'd', type: '4' }], {}, { code: 'archive_unsafe', details: { reason: 'device' } }],
  ['a name that leads out', [{ name: '../x', content: '1' }], {}, { code: 'archive_unsafe' }],
  ['a link to nothing', [{ name: 'l', type: '1', link: 'none' }], {}, { code: 'image_corrupt' }],
  [
    'a setuid file',
    [{ name: 's', mode: 0o4755, content: '1' }],
    {},
    { code: 'pack_refused', details: { rules: ['setuid'], paths: ['/s'] } },
  ],
  [
    'too many bytes',
    [{ name: 'b', content: 'x'.repeat(100) }],
    { limits: { maxBytes: 99 } },
    { code: 'pack_refused', details: { rules: ['size'] } },
  ],
  [
    'a setuid file that moves to a name that is kept',
    [
      { name: 'tmp/s', mode: 0o4755, content: '1' },
      { name: 'usr/s', type: '1', link: 'tmp/s' },
    ],
    {},
    { code: 'pack_refused', details: { rules: ['setuid'], paths: ['/usr/s'] } },
  ],
  [
    'a file with capabilities that moves to a name that is kept',
    [
      { name: 'tmp/c', content: '1', pax: { 'SCHILY.xattr.security.capability': 'any' } },
      { name: 'usr/c', type: '1', link: 'tmp/c' },
    ],
    {},
    { code: 'pack_refused', details: { rules: ['capabilities'], paths: ['/usr/c'] } },
  ],
  [
    'too many bytes under another name',
    [
      { name: 'tmp/b', content: 'x'.repeat(100) },
      { name: 'b', type: '1', link: 'tmp/b' },
      { name: 'b2', type: '1', link: 'tmp/b' },
    ],
    { limits: { maxBytes: 99 } },
    { code: 'pack_refused', details: { rules: ['size'] } },
  ],
  [
    'too many entries',
    [dir('a'), dir('b')],
    { limits: { maxEntries: 2 } },
    { code: 'pack_refused', details: { rules: ['entries'] } },
  ],
])('%s is refused, and nothing is left', async (_what, items, request, expected) => {
  await using place = await testPlace();
  const changes = streamOf(tarOf(root, ...items));
  const packing = runPack(place.context, { name: 'test', ...request }, { changes, config, architecture: 'amd64' });
  await expect(packing).rejects.toMatchObject(expected);
  expect(await place.layers()).toEqual([]);
});

it('an archive that breaks off is refused', async () => {
  await using place = await testPlace();
  const bytes = tarOf(root, { name: 'a', content: 'x'.repeat(2000) });
  const changes = streamOf(bytes.subarray(0, 1500));
  await expect(
    runPack(place.context, { name: 'test' }, { changes, config, architecture: 'amd64' }),
  ).rejects.toMatchObject({ code: 'image_corrupt' });
  expect(await place.layers()).toEqual([]);
});

it('a full disk is told, and leaves no layer', async () => {
  await using place = await testPlace();
  const small = join(place.path, 'small');
  await tool('mkdir', small);
  await tool('mount', '-t', 'tmpfs', '-o', 'size=256k', 'tmpfs', small);
  try {
    const context = { ...place.context, layersDirectory: small };
    const changes = streamOf(tarOf(root, { name: 'big', content: Buffer.alloc(600_000, 'x') }), 65_536);
    await expect(runPack(context, { name: 'test' }, { changes, config, architecture: 'amd64' })).rejects.toMatchObject({
      code: 'disk_full',
    });
  } finally {
    await tool('umount', small);
  }
});

it('a dry run lists everything and stores nothing', async () => {
  const { report, layers } = await pack(
    [dir('root'), { name: 'root/.bash_history', content: 'ls' }, { name: 'file', content: '123' }],
    { dryRun: true },
  );
  expect(report.listed).toEqual([
    { path: '/root', kind: 'directory', sizeBytes: 0, omittedBy: null },
    { path: '/root/.bash_history', kind: 'file', sizeBytes: 2, omittedBy: 'shell-history' },
    { path: '/file', kind: 'file', sizeBytes: 3, omittedBy: null },
  ]);
  expect(layers).toEqual([]);
});

describe('the check of a written layer', () => {
  const written = async (place: { readonly path: string }, names: readonly string[], stray?: string) => {
    const metadata = await open(join(place.path, 'metadata'), 'wx+');
    const data = await open(join(place.path, 'data'), 'wx+');
    const writer = new ImageWriter(fileOutput(metadata), { data: fileOutput(data) });
    const root = newDirectory();
    const store = (text: string) => writer.store(text.length, streamOf(Buffer.from(text)));
    if (stray !== undefined) await store(stray);
    for (const name of names) {
      const file = {
        kind: 'file',
        metadata: newDirectory().metadata,
        data: await store(`content of ${name}`),
      } as const;
      root.children.set(ByteString.fromText(name), file);
    }
    await writer.finish(root);
    return {
      metadata,
      data,
      [Symbol.asyncDispose]: async () => void (await Promise.all([metadata.close(), data.close()])),
    };
  };

  it('passes one that has only what is kept', async () => {
    await using place = await testPlace();
    await using files = await written(place, ['a', 'b']);
    expect(await verifyPack(files, { selection: new Selection(), omitted: new Set() })).toMatchObject({
      files: 2,
      copies: [],
    });
  });

  it('finds a path that was to be left out', async () => {
    await using place = await testPlace();
    await using files = await written(place, ['a', '.a.swp']);
    const selection = new Selection({ rules: defaultScrubRules });
    await expect(verifyPack(files, { selection, omitted: new Set() })).rejects.toMatchObject({ code: 'internal' });
  });

  it('takes an empty file only for one of those that every layer has', async () => {
    await using place = await testPlace();
    await using files = await written(place, []);
    const root = newDirectory();
    for (const [directory, name] of [
      ['etc', 'hosts'],
      ['root', '.bash_history'],
    ] as const) {
      const parent = newDirectory();
      parent.children.set(ByteString.fromText(name), emptyFile(0o644));
      root.children.set(ByteString.fromText(directory), parent);
    }
    const metadata = await open(join(place.path, 'of-two'), 'wx+');
    await using _ = metadata;
    await new ImageWriter(fileOutput(metadata), { data: fileOutput(files.data) }).finish(root);
    const check = (selection: Selection) =>
      verifyPack({ metadata, data: files.data }, { selection, omitted: new Set() });
    expect(await check(new Selection())).toMatchObject({ files: 2 });
    await expect(check(new Selection({ rules: defaultScrubRules }))).rejects.toThrow(/bash_history/);
  });

  it('finds bytes that belong to no file', async () => {
    await using place = await testPlace();
    await using files = await written(place, ['a'], 'bytes of a file that was left out');
    await expect(verifyPack(files, { selection: new Selection(), omitted: new Set() })).rejects.toThrow(
      /bytes that are of none/,
    );
  });

  it('finds bytes behind the end of a file', async () => {
    await using place = await testPlace();
    await using files = await written(place, ['a']);
    await files.data.write(Buffer.from('x'), 0, 1, 2000);
    await expect(verifyPack(files, { selection: new Selection(), omitted: new Set() })).rejects.toThrow(
      /bytes that are of none/,
    );
  });

  it('finds copies of what was left out', async () => {
    await using place = await testPlace();
    await using files = await written(place, ['a name that is long enough for it']);
    const omitted = new Set([
      await contentDigest(streamOf(Buffer.from('content of a name that is long enough for it'))),
    ]);
    const { copies } = await verifyPack(files, { selection: new Selection(), omitted });
    expect(copies).toEqual(['/a name that is long enough for it']);
  });
});
