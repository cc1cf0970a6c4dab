import { mkdir, symlink, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { gzipSync, zstdCompressSync } from 'node:zlib';
import { type EnvironmentImage, PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { checkLayer, mounted, opened, overlaid, testPlace, type TestPlace, tool } from './build.fixture.ts';
import {
  architecture,
  dockerArchive,
  type ImageSpec,
  type LayoutFiles,
  layoutArchive,
  ociLayout,
  type Packing,
  saveLayout,
  sha256,
} from './oci/oci.fixture.ts';
import { tarOf } from './tar/tar.fixture.ts';
import { importImage } from './image-import.ts';
import { readLayerRecord } from './layer-store.ts';

const base = tarOf(
  { name: 'etc', type: '5', mode: 0o755 },
  { name: 'etc/passwd', content: 'root:x:0:0::/root:/bin/sh\n' },
  { name: 'etc/hosts', content: '10.0.0.1 of-the-builder\n' },
  { name: 'etc/resolv.conf', type: '2', link: '../run/systemd/resolve/stub-resolv.conf' },
  { name: 'large', content: Buffer.alloc(200_000, 'gone ') },
  { name: 'bin', type: '5', mode: 0o755 },
  { name: 'bin/tool', content: '#!', mode: 0o4755, uid: 70_000, pax: { 'SCHILY.xattr.user.note': 'kept' } },
);
const change = tarOf(
  { name: '.wh.large', content: '' },
  { name: 'bin/alias', type: '1', link: 'bin/tool' },
  { name: 'srv', type: '5', mode: 0o755 },
  { name: 'srv/data', content: 'from the upper layer' },
);

const config = {
  Env: ['PATH=/opt/bin:/bin', 'PYTHONPATH=/app', 'EMPTY=', '1BAD=x', 'no-equals-sign'],
  User: 'app:staff',
  WorkingDir: '/srv/app',
  Entrypoint: ['/entry'],
  Cmd: ['serve', '--now'],
  Labels: { maker: 'test' },
};
const spec: ImageSpec = { layers: [base, change], config, name: 'example:1' };

const saveArchive = async (place: TestPlace, bytes: Buffer): Promise<string> => {
  const path = join(place.path, 'image.tar');
  await writeFile(path, bytes);
  return path;
};

/** Imports and expects a failure that leaves nothing behind. */
const refused = async (place: TestPlace, path: string): Promise<PlatformError> => {
  const error: unknown = await importImage(place.context, { path }).then(
    () => undefined,
    (caught: unknown) => caught,
  );
  expect(await place.layers()).toEqual([]);
  if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
  return error;
};

/** The layout with one of its files changed; `index.json` and the rest stay as they were. */
const damaged = (files: LayoutFiles, name: string, damage: (bytes: Buffer) => Buffer | undefined): LayoutFiles => {
  const copy = new Map(files);
  const bytes = damage(Buffer.from(copy.get(name) ?? Buffer.alloc(0)));
  if (bytes === undefined) copy.delete(name);
  else copy.set(name, bytes);
  return copy;
};

describe('an image on this disk becomes a layer', () => {
  const forms: [string, (place: TestPlace) => Promise<string>][] = [
    ...(['plain', 'gzip', 'zstd'] satisfies Packing[]).map(
      (packing): [string, (place: TestPlace) => Promise<string>] => [
        `an OCI layout with ${packing} layers`,
        (place) => saveLayout(ociLayout({ ...spec, packing }), join(place.path, 'layout')),
      ],
    ),
    ['an archive of an OCI layout', (place) => saveArchive(place, layoutArchive(ociLayout(spec)))],
    ['a gzip archive of an OCI layout', (place) => saveArchive(place, gzipSync(layoutArchive(ociLayout(spec))))],
    [
      'a zstd archive of docker save',
      (place) => saveArchive(place, zstdCompressSync(dockerArchive({ ...spec, tag: 'a:1' }))),
    ],
    ['an archive of docker save', (place) => saveArchive(place, dockerArchive({ ...spec, tag: 'example:1' }))],
  ];

  it.each(forms)('from %s', async (_, save) => {
    await using place = await testPlace();
    const built = await importImage(place.context, { path: await save(place) });
    expect(await place.layers()).toEqual([built.layers[0]?.slice(7)]);
    await using image = await opened(place.context, built);
    expect(await image.text('srv/data')).toBe('from the upper layer');
    expect(await image.text('large')).toBeUndefined();
    expect(await image.text('bin/alias')).toBe('#!');
    // What was removed takes no room.
    expect(built.sizeBytes).toBeLessThan(100_000);
    await checkLayer(place.context, built);
  });

  it('with the configuration of the image', async () => {
    await using place = await testPlace();
    const path = await saveLayout(ociLayout(spec), join(place.path, 'layout'));
    const built = await importImage(place.context, { path });
    expect(built.config).toEqual({
      env: { PATH: '/opt/bin:/bin', PYTHONPATH: '/app', EMPTY: '' },
      user: 'app:staff',
      workdir: '/srv/app',
      entrypoint: ['/entry'],
      cmd: ['serve', '--now'],
      labels: { maker: 'test' },
    });
    expect(built.architecture).toBe(architecture);
    const record = await readLayerRecord(place.context.layersDirectory, built.layers[0] ?? '');
    expect(record).toMatchObject({ digest: built.layers[0], sizeBytes: built.sizeBytes, config: built.config });
  });

  it('with defaults where the image says nothing', async () => {
    await using place = await testPlace();
    const path = await saveLayout(
      ociLayout({ layers: [base], config: { Env: null, Cmd: null } }),
      join(place.path, 'l'),
    );
    const built = await importImage(place.context, { path });
    expect(built.config).toMatchObject({ user: 'root', workdir: '/', entrypoint: [], cmd: [], labels: {} });
    expect(built.config.env['PATH']).toContain('/usr/bin');
  });

  it('with what a sandbox is mounted on, and nothing of the network of the machine it was made on', async () => {
    await using place = await testPlace();
    const path = await saveLayout(ociLayout(spec), join(place.path, 'layout'));
    await using image = await opened(place.context, await importImage(place.context, { path }));
    for (const name of ['dev', 'proc', 'sys', 'run', 'tmp', 'srv/app'])
      expect(await image.text(name)).toBe('directory');
    for (const name of ['etc/hosts', 'etc/hostname', 'etc/resolv.conf']) expect(await image.text(name)).toBe('');
  });

  it('the same whatever the form, so that it is stored once', async () => {
    await using place = await testPlace();
    const digests = new Set<string | undefined>();
    for (const [, save] of forms.slice(0, 4)) {
      const path = await save(place);
      digests.add((await importImage(place.context, { path })).layers[0]);
    }
    expect(digests.size).toBe(1);
    expect(await place.layers()).toHaveLength(1);
  });

  it('of several layers each, which show what one would', async () => {
    await using place = await testPlace();
    const third = tarOf(
      { name: 'bin/.wh.tool', content: '' },
      { name: 'srv/.wh..wh..opq', content: '' },
      { name: 'etc/new', content: 'x' },
      { name: 'bin/other', type: '1', link: 'bin/alias' },
    );
    const path = await saveLayout(ociLayout({ ...spec, layers: [base, change, third] }), join(place.path, 'layout'));
    const one = await importImage(place.context, { path });
    const several = await importImage(place.context, { path, mergeUpToBytes: 0 });
    expect([one.layers.length, several.layers.length]).toEqual([1, 3]);
    expect(several.config).toEqual(one.config);
    for (const layers of several.layers.map((digest) => [digest]))
      await checkLayer(place.context, { ...several, layers });
    const listing = async (built: EnvironmentImage, name: string): Promise<string> => {
      await using mount = await overlaid(place.context, built, join(place.path, name));
      const { stdout } = await tool('find', mount.path, '-printf', '%P %y %m %U:%G %T@ %l\n');
      const lines = stdout.toString().split('\n').sort();
      const contents = await tool('grep', '-r', '', mount.path, '-h', '-s');
      return [...lines, ...contents.stdout.toString().split('\n').sort()].join('\n');
    };
    expect(await listing(several, 'several')).toBe(await listing(one, 'one'));
  });

  it('whose lowest layers are those of an earlier image on the same base', async () => {
    await using place = await testPlace();
    const context = { ...place.context, notesDirectory: join(place.path, 'notes') };
    const baseOnly = await saveLayout(ociLayout({ layers: [base] }), join(place.path, 'base'));
    const whole = await saveLayout(ociLayout(spec), join(place.path, 'whole'));
    const lower = await importImage(context, { path: baseOnly });
    const built = await importImage(context, { path: whole });
    expect(built.layers.slice(1)).toEqual(lower.layers);
    const steps: string[] = [];
    const again = { ...context, onProgress: ({ step }: { step: string }) => steps.push(step) };
    expect(await importImage(again, { path: whole })).toEqual(built);
    // The working directory is only this image's, so that its layer is made anew; the base is not.
    expect(steps.filter((step) => step.startsWith('storing'))).toEqual(['storing layer 2 of 2']);
    const { WorkingDir: _, ...rest } = config;
    const plain = await saveLayout(ociLayout({ ...spec, config: rest }), join(place.path, 'plain'));
    const first = await importImage(again, { path: plain });
    steps.length = 0;
    expect(await importImage(again, { path: plain })).toEqual(first);
    expect(steps.filter((step) => step.startsWith('storing'))).toEqual([]);
  });

  it('as the kernel and GNU tar see it: file by file the same', async () => {
    await using place = await testPlace();
    const source = join(place.path, 'source');
    await mkdir(join(source, 'deep', 'd'.repeat(200)), { recursive: true });
    await writeFile(join(source, 'deep', 'd'.repeat(200), 'n'.repeat(200)), 'long');
    await writeFile(join(source, 'zeros'), Buffer.alloc(3_000_000));
    await writeFile(join(source, 'program'), Buffer.alloc(70_001, 'p'), { mode: 0o755 });
    await tool('ln', join(source, 'program'), join(source, 'deep', 'again'));
    await symlink('../program', join(source, 'deep', 'link'));
    await tool('mkfifo', join(source, 'fifo'));
    await tool('chown', '70000:4000000000', join(source, 'program'));
    await tool('setcap', 'cap_net_raw=ep', join(source, 'program'));
    const archive = join(place.path, 'source.tar');
    await tool(
      'tar',
      '--format=pax',
      '--xattrs',
      '--xattrs-include=*',
      '--sort=name',
      '-cf',
      archive,
      '-C',
      source,
      '.',
    );
    const { stdout } = await tool('cat', archive);
    const path = await saveLayout(ociLayout({ layers: [stdout] }), join(place.path, 'layout'));
    const built = await importImage(place.context, { path });
    const at = join(place.path, 'mnt');
    await using _ = await mounted(place.context, built, at);
    // Says each difference and then fails.
    await tool('tar', '--compare', '--format=pax', '--same-owner', '-f', archive, '-C', at);
    const capabilities = await tool('getcap', join(at, 'program'));
    expect(capabilities.stdout.toString()).toContain('cap_net_raw=ep');
  });

  it('chosen by its name among several', async () => {
    await using place = await testPlace();
    const other = { ...spec, layers: [tarOf({ name: 'other', content: 'x' })], name: 'other:2' };
    const path = await saveLayout(ociLayout(spec, other), join(place.path, 'layout'));
    await expect(importImage(place.context, { path })).rejects.toMatchObject({ code: 'invalid_argument' });
    await expect(importImage(place.context, { path, reference: 'third' })).rejects.toMatchObject({
      code: 'invalid_argument',
      details: { names: ['example:1', 'other:2'] },
    });
    const built = await importImage(place.context, { path, reference: 'other:2' });
    await using image = await opened(place.context, built);
    expect(await image.text('etc/passwd')).toBeUndefined();
  });

  it('for this machine, of an index for several architectures', async () => {
    await using place = await testPlace();
    const foreign = { ...spec, architecture: 'riscv64', layers: [base] };
    const path = await saveLayout(ociLayout(foreign, spec), join(place.path, 'layout'));
    expect((await importImage(place.context, { path })).architecture).toBe(architecture);
  });
});

describe('an image that is damaged or hostile', () => {
  const gzipped = ociLayout({ ...spec, layers: [base] });
  const layer = [...gzipped.keys()].find((name) => gzipped.get(name)?.[0] === 0x1f) ?? '';
  const digest = `sha256:${layer.split('/').at(-1)}`;

  it.each([
    ['a changed byte', (bytes: Buffer) => bytes.fill((bytes[400] ?? 0) ^ 1, 400, 401)],
    ['its end missing', (bytes: Buffer) => bytes.subarray(0, bytes.length - 50)],
    ['something appended', (bytes: Buffer) => Buffer.concat([bytes, Buffer.alloc(10)])],
    ['no bytes at all', () => Buffer.alloc(0)],
    ['no such file', () => undefined],
  ] as [string, (bytes: Buffer) => Buffer | undefined][])(
    'a layer with %s is named, with the offset',
    async (_, damage) => {
      await using place = await testPlace();
      const error = await refused(place, await saveLayout(damaged(gzipped, layer, damage), join(place.path, 'layout')));
      expect(error.code).toBe('image_corrupt');
      expect(error.details['layer']).toBe(digest);
      expect(error.details['offset']).toBeTypeOf('number');
    },
  );

  it.each(['index.json', 'oci-manifest', 'oci-config'])('%s that is no JSON is named', async (which) => {
    await using place = await testPlace();
    const name =
      which === 'index.json'
        ? which
        : ([...gzipped].find(([, bytes]) =>
            bytes.includes(which === 'oci-manifest' ? '"layers":[' : '"diff_ids"'),
          )?.[0] ?? '');
    const files = damaged(gzipped, name, (bytes) => bytes.subarray(0, bytes.length - 3));
    const error = await refused(place, await saveLayout(files, join(place.path, 'layout')));
    expect(error.code).toBe('image_corrupt');
    expect(error.details['offset']).toBeTypeOf('number');
  });

  it('a layer of docker save whose content is not what the configuration says', async () => {
    await using place = await testPlace();
    const archive = dockerArchive({ layers: [base, base], tag: 'a:1' });
    const at = archive.indexOf('root:x:0:0');
    archive.write('toor', at);
    const error = await refused(place, await saveArchive(place, archive));
    expect([error.code, error.details['layer']]).toEqual(['image_corrupt', sha256(base)]);
  });

  it('an archive that ends early', async () => {
    await using place = await testPlace();
    const archive = layoutArchive(gzipped);
    const error = await refused(place, await saveArchive(place, archive.subarray(0, archive.length - 3000)));
    expect([error.code, error.details['layer']]).toEqual(['image_corrupt', 'archive']);
  });

  it.each([
    ['..', { name: '../../etc/cron.d/x', content: 'x' }],
    ['an absolute path', { name: '/etc/cron.d/x', content: 'x' }],
    ['a device', { name: 'dev/sda', type: '4' }],
  ])('a layer with %s: nothing is written, the layer is named', async (_, item) => {
    await using place = await testPlace();
    const tar = tarOf({ name: 'fine', content: 'x' }, item);
    const error = await refused(
      place,
      await saveLayout(ociLayout({ layers: [tar], packing: 'plain' }), join(place.path, 'l')),
    );
    expect(error.code).toBe('archive_unsafe');
    expect(error.details).toMatchObject({ layer: sha256(tar), offset: 1024, entry: item.name });
  });

  it('one for another processor', async () => {
    await using place = await testPlace();
    for (const form of [
      layoutArchive(ociLayout({ ...spec, architecture: 'riscv64' })),
      dockerArchive({ ...spec, architecture: 'riscv64', tag: 'a:1' }),
    ]) {
      const error = await refused(place, await saveArchive(place, form));
      expect(error.code).toBe('image_architecture');
      expect(error.details).toMatchObject({ found: ['linux/riscv64'], wanted: `linux/${architecture}` });
    }
  });

  it('a layout whose files are links to files of the host', async () => {
    await using place = await testPlace();
    const layout = await saveLayout(
      damaged(gzipped, layer, () => undefined),
      join(place.path, 'layout'),
    );
    await symlink('/etc/hostname', join(layout, layer));
    expect((await refused(place, layout)).code).toBe('image_corrupt');
  });

  it('something that is no image, and nothing', async () => {
    await using place = await testPlace();
    expect((await refused(place, await saveArchive(place, tarOf({ name: 'a' })))).code).toBe('image_unsupported');
    expect((await refused(place, join(place.path, 'nothing'))).code).toBe('invalid_argument');
    expect((await refused(place, await saveArchive(place, Buffer.alloc(3000, 9)))).code).toBe('image_corrupt');
  });

  it('an image beyond the bound', async () => {
    await using place = await testPlace();
    const path = await saveLayout(gzipped, join(place.path, 'layout'));
    const context = { ...place.context, maxSizeBytes: 100_000 };
    await expect(importImage(context, { path })).rejects.toMatchObject({ code: 'image_unsupported' });
    expect(await place.layers()).toEqual([]);
  });

  it.each([
    ['gzip', gzipSync],
    ['zstd', zstdCompressSync],
  ] as const)('an archive of %s that unpacks to more than the bound: no more of it is written', async (_, compress) => {
    await using place = await testPlace();
    const bomb = compress(Buffer.alloc(32 * 1024 * 1024));
    expect(bomb.length).toBeLessThan(100_000);
    const context = { ...place.context, maxSizeBytes: 1_000_000 };
    const error: unknown = await importImage(context, { path: await saveArchive(place, bomb) }).catch(
      (failed: unknown) => failed,
    );
    expect(error).toMatchObject({
      code: 'image_unsupported',
      details: { layer: 'archive', reason: 'archive_size', limit: 1_000_000 },
    });
    expect((error as PlatformError).details['offset']).toBeLessThanOrEqual(1_000_000);
    expect(await place.layers()).toEqual([]);
  });

  it('is refused with a typed error or read, whatever bytes are changed, and leaves nothing', {
    timeout: 60_000,
  }, async () => {
    await using place = await testPlace();
    const archive = layoutArchive(ociLayout({ ...spec, packing: 'plain' }));
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(archive.length - 1), fc.nat(255)), { minLength: 1, maxLength: 6 }),
        async (changes) => {
          const copy = Buffer.from(archive);
          for (const [at, byte] of changes) copy[at] = byte;
          try {
            await importImage(place.context, { path: await saveArchive(place, copy) });
          } catch (error) {
            if (!PlatformError.is(error) || error.code === 'internal') throw error;
          }
          expect((await place.layers()).filter((name) => name.startsWith('.'))).toEqual([]);
        },
      ),
      { numRuns: 60 },
    );
  });
});
