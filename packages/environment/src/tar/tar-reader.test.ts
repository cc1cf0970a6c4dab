import { mkdir, truncate, writeFile } from 'node:fs/promises';
import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { testPlace, tool } from '../build.fixture.ts';
import { END_OF_ARCHIVE, streamOf, tarItem, tarOf } from './tar.fixture.ts';
import { type TarEntry, TarReader } from './tar-reader.ts';

interface ReadEntry extends Omit<TarEntry, 'data'> {
  readonly content: Buffer;
}

const readAll = async (bytes: Uint8Array, chunkBytes?: number): Promise<ReadEntry[]> => {
  const entries: ReadEntry[] = [];
  for await (const { data, ...entry } of new TarReader(streamOf(bytes, chunkBytes), 'sha256:layer').entries()) {
    const parts: Uint8Array[] = [];
    for await (const part of data) parts.push(Buffer.from(part));
    entries.push({ ...entry, content: Buffer.concat(parts) });
  }
  return entries;
};

const failure = async (bytes: Uint8Array): Promise<PlatformError> => {
  const error = await readAll(bytes).catch((caught: unknown) => caught);
  if (!PlatformError.is(error)) throw new Error('a PlatformError was expected', { cause: error });
  return error;
};

describe('reading a tar archive', () => {
  it('takes pax records over the header, bytes and nanoseconds kept', async () => {
    const capability = Buffer.from([1, 0, 0, 2, 0, 0x20, 0, 0, 0xff, 0xfe, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0x0a]);
    const [entry] = await readAll(
      tarOf({
        name: 'short',
        content: 'abc',
        mtime: 5,
        pax: {
          path: Buffer.concat([Buffer.from(`${'d/'.repeat(100)}`), Buffer.from([0xff, 0xc3])]),
          mtime: '-1.25',
          uid: '3000000000',
          'SCHILY.xattr.security.capability': capability,
        },
      }),
    );
    expect(entry?.path).toBe(`${'d/'.repeat(100)}\xff\xc3`);
    expect(entry?.mtime).toEqual({ seconds: -2, nanoseconds: 750_000_000 });
    expect(entry?.uid).toBe(3_000_000_000);
    expect([...(entry?.xattrs ?? [])]).toEqual([['security.capability', capability]]);
    expect(entry?.content.toString()).toBe('abc');
  });

  it('gives the same entries however the stream is cut', async () => {
    const archive = tarOf(
      { name: 'a', content: 'x'.repeat(3000) },
      { name: 'b', type: '5' },
      { name: 'c', type: '2', link: 'a', pax: { linkpath: 'l'.repeat(300) } },
    );
    const whole = await readAll(archive, archive.length);
    await fc.assert(
      fc.asyncProperty(fc.integer({ min: 1, max: 1500 }), async (chunkBytes) => {
        expect(await readAll(archive, chunkBytes)).toEqual(whole);
      }),
      { numRuns: 20 },
    );
  });

  it('takes an archive without its end mark for whole, as tar does', async () => {
    expect((await readAll(tarItem({ name: 'a', content: 'x' }))).map(({ path }) => path)).toEqual(['a']);
    expect(await readAll(Buffer.alloc(0))).toEqual([]);
  });

  it('passes over data that nobody reads', async () => {
    const archive = tarOf({ name: 'a', content: 'x'.repeat(3000) }, { name: 'b', content: 'y' });
    const names: string[] = [];
    for await (const entry of new TarReader(streamOf(archive), 'layer').entries()) names.push(entry.path);
    expect(names).toEqual(['a', 'b']);
  });

  it('applies global headers until others replace them', async () => {
    const global = (gid: string) => {
      const item = tarItem({ name: 'g', type: 'g', content: `${9 + gid.length - 1} gid=${gid}\n` });
      return item;
    };
    const archive = Buffer.concat([
      global('70'),
      tarItem({ name: 'a' }),
      global('71'),
      tarItem({ name: 'b', pax: { gid: '5' } }),
      tarItem({ name: 'c' }),
      END_OF_ARCHIVE,
    ]);
    expect((await readAll(archive)).map(({ gid }) => gid)).toEqual([70, 5, 71]);
  });

  it.each(['gnu', 'pax', 'ustar', 'v7'])('reads what GNU tar writes in its %s form', async (format) => {
    await using place = await testPlace();
    const source = join(place.path, 'source');
    const name = format === 'gnu' || format === 'pax' ? 'n'.repeat(180) : 'n'.repeat(80);
    await mkdir(source);
    await writeFile(join(source, name), 'content');
    const { stdout } = await tool('tar', `--format=${format}`, '-cC', source, '.');
    const entries = await readAll(stdout);
    expect(entries.map(({ path, type, content }) => [path, type, content.toString()])).toEqual([
      ['./', 'directory', ''],
      [`./${name}`, 'file', 'content'],
    ]);
  });

  it.each([['gnu'], ['pax', '--sparse-version=1.0'], ['pax', '--sparse-version=0.1']])(
    'fills the holes of sparse files (%s %s)',
    async (format, ...options) => {
      await using place = await testPlace();
      const path = join(place.path, 'sparse');
      const expected = Buffer.alloc(6_000_000);
      await using file = await open(path, 'w+');
      for (let index = 0; index < 40; index++) {
        const at = 65_536 + index * 131_072;
        expected.write(`part ${index}`, at);
        await file.write(`part ${index}`, at);
      }
      await truncate(path, expected.length);
      const { stdout } = await tool('tar', '--sparse', `--format=${format}`, ...options, '-cC', place.path, 'sparse');
      expect(stdout.length).toBeLessThan(1_000_000);
      const [entry] = await readAll(stdout);
      expect(entry?.path).toBe('sparse');
      expect(entry?.sizeBytes).toBe(expected.length);
      expect(entry?.content.equals(expected)).toBe(true);
    },
  );
});

describe('a tar archive that is not trusted', () => {
  const file = { name: 'file', content: 'x'.repeat(2000) };
  /** A header of one record of which the whole is so long. */
  const extended = (type: 'x' | 'g', bytes: number) => ({
    name: type,
    type,
    content: `${bytes} comment=`.padEnd(bytes - 1, 'x') + '\n',
  });
  /** The map of GNU's old form, of runs that say nothing, each block continued by another. */
  const endlessMap = (): Buffer => {
    const header = tarItem({ name: 's', type: 'S' });
    const [sum, isContinued] = [148, 482];
    header[isContinued] = 1;
    const before = Number.parseInt(header.toString('latin1', sum, sum + 6), 8);
    header.write((before + 1).toString(8).padStart(6, '0'), sum);
    const block = Buffer.alloc(512);
    block.write(`${'0'.repeat(11)}\0`.repeat(2 * 21));
    block[504] = 1;
    return Buffer.concat([header, ...Array.from({ length: 5_000 }, () => block), Buffer.alloc(512)]);
  };
  const hugeSize = Buffer.from([0x80, 0, 0, 0, 0x7f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff]);

  it.each([
    ['that ends in a header', tarOf(file).subarray(0, 100), 'image_corrupt', 'truncated'],
    ['that ends in the data', tarOf(file).subarray(0, 1500), 'image_corrupt', 'truncated'],
    ['that ends in the padding', tarOf(file).subarray(0, 512 + 2001), 'image_corrupt', 'truncated'],
    [
      'that ends after an extended header',
      tarItem({ ...file, pax: { path: 'p' } }).subarray(0, 1024),
      'image_corrupt',
      'truncated',
    ],
    [
      'whose end stands behind an extended header',
      Buffer.concat([tarItem({ ...file, pax: { path: 'p' } }).subarray(0, 1024), END_OF_ARCHIVE]),
      'image_corrupt',
      'truncated',
    ],
    ['of garbage', Buffer.alloc(2048, 7), 'image_corrupt', 'checksum'],
    ['with an impossible size', tarOf({ ...file, claimedSize: hugeSize }), 'image_corrupt', 'number'],
    ['with a negative size', tarOf({ ...file, claimedSize: Buffer.alloc(12, 0xff) }), 'image_corrupt', 'number'],
    ['with an absurd size', tarOf({ ...file, claimedSize: 0o77777777777 }), 'image_corrupt', 'truncated'],
    ['with an absurd pax size', tarOf({ ...file, pax: { size: '9007199254740993' } }), 'image_corrupt', 'number'],
    ['with a negative uid', tarOf({ ...file, pax: { uid: '-1' } }), 'image_corrupt', 'number'],
    [
      'with a huge extended header',
      tarOf({ name: 'x', type: 'x', claimedSize: 2 ** 30 }),
      'image_corrupt',
      'extended_header_size',
    ],
    [
      'with many extended headers before one entry',
      tarOf(...Array.from({ length: 3 }, () => extended('x', 400_000))),
      'image_corrupt',
      'extended_header_size',
    ],
    [
      'with global headers without end',
      tarOf(...Array.from({ length: 5 }, () => extended('g', 15_000)), file),
      'image_corrupt',
      'extended_header_size',
    ],
    [
      'with a record of an extended header that has no value',
      tarOf({ name: 'x', type: 'x', content: '6 abc\n8 a=bcd\n' }, file),
      'image_corrupt',
      'extended_header',
    ],
    [
      'with a malformed extended header',
      tarOf({ name: 'x', type: 'x', content: '99 a=b\n' }),
      'image_corrupt',
      'extended_header',
    ],
    ['with a malformed time', tarOf({ ...file, pax: { mtime: 'now' } }), 'image_corrupt', 'number'],
    ['with an unknown entry type', tarOf({ ...file, type: 'Z' }), 'image_unsupported', 'tar_entry_type'],
    [
      'with a sparse map out of order',
      tarOf({ ...file, pax: { 'GNU.sparse.map': '100,1000,0,1000', 'GNU.sparse.size': '5000' } }),
      'image_corrupt',
      'sparse_map',
    ],
    ['with a sparse map without end', Buffer.concat([endlessMap(), END_OF_ARCHIVE]), 'image_corrupt', 'sparse_map'],
    [
      'with a sparse file of the largest size that a kernel gives',
      tarOf({ ...file, pax: { 'GNU.sparse.major': '1', 'GNU.sparse.realsize': '9223372036854775807' } }),
      'image_unsupported',
      'file_size',
    ],
    [
      'with the oldest sparse form',
      tarOf({ ...file, pax: { 'GNU.sparse.size': '5000', 'GNU.sparse.offset': '0' } }),
      'image_unsupported',
      'sparse_format',
    ],
  ])('%s is refused with its name and the offset', async (_, archive, code, reason) => {
    const error = await failure(archive);
    expect([error.code, error.details['reason']]).toEqual([code, reason]);
    expect(error.details['layer']).toBe('sha256:layer');
    expect(error.details['offset']).toBeTypeOf('number');
  });

  it('is named with the offset of the entry that is wrong', async () => {
    const error = await failure(tarOf(file, { ...file, type: 'Z' }));
    expect(error.details['offset']).toBe(512 + 2048);
  });

  it('names a sparse file that is too large, so that who packs a sandbox can remove it', async () => {
    const pax = { 'GNU.sparse.map': '0,2000', 'GNU.sparse.size': '9007199254740992', 'GNU.sparse.name': 'srv/huge' };
    expect((await failure(tarOf({ ...file, pax }))).details).toMatchObject({ entry: 'srv/huge', reason: 'file_size' });
  });

  it('never fails but with a typed error, whatever bytes are changed', async () => {
    const archive = tarOf(
      { ...file, pax: { path: 'p'.repeat(120), 'SCHILY.xattr.user.a': 'b' } },
      { name: 'dir', type: '5' },
      { name: 'link', type: '2', link: 'dir' },
      { ...file, pax: { 'GNU.sparse.map': '0,1000,3000,1000', 'GNU.sparse.size': '5000' } },
    );
    await fc.assert(
      fc.asyncProperty(
        fc.array(fc.tuple(fc.nat(archive.length - 1), fc.nat(255)), { minLength: 1, maxLength: 12 }),
        fc.boolean(),
        async (changes, isCut) => {
          const copy = Buffer.from(archive);
          for (const [at, byte] of changes) copy[at] = byte;
          const [cut] = changes;
          try {
            await readAll(isCut ? copy.subarray(0, cut?.[0]) : copy);
          } catch (error) {
            if (!PlatformError.is(error)) throw error;
            expect(error.details['offset']).toBeTypeOf('number');
          }
        },
      ),
      { numRuns: 500 },
    );
  });
});
