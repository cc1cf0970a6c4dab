import { writeFileSync } from 'node:fs';
import { mkdir, mkdtemp, readFile, rm, truncate } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock, SystemClock, SystemRandom } from '@dsec/kit';
import { afterAll, beforeAll, describe, expect, test } from 'vitest';
import { DirectoryStore } from './directory-store.ts';
import { sha256Name } from './digest.ts';
import { layerFiles, MortalStore } from './layer-files.fixture.ts';
import { BLOCK_BYTES, CHUNK_BYTES, MAX_RECORD_BYTES } from './layer-format.ts';
import { fetchLayer, openLayer, readChunk } from './layer-reader.ts';
import { LayerUploader } from './layer-uploader.ts';
import { MemoryStore } from './memory-store.fixture.ts';
import type { ObjectStore } from './object-store.ts';
import { BUCKET, S3Server } from './s3-server.fixture.ts';
import { S3Store } from './s3-store.ts';

let base: string;
beforeAll(async () => {
  base = await mkdtemp(join(tmpdir(), 'blob-upload-'));
});
afterAll(() => rm(base, { recursive: true }));

const random = new SystemRandom();
const record = Buffer.from('{"version":2}');
const memory = (clock = new ManualClock()) => ({ clock, store: new MortalStore(new MemoryStore(clock)) });
const uploaderTo = (store: ObjectStore, clock: ManualClock | SystemClock): LayerUploader =>
  new LayerUploader({ store, clock, packBytes: 4 * CHUNK_BYTES });
const packsOf = (keys: readonly string[]): readonly string[] => keys.filter((key) => key.startsWith('packs/'));

async function readAll(store: ObjectStore, from: Awaited<ReturnType<typeof openLayer>>): Promise<Buffer> {
  const chunks: Buffer[] = [];
  for (let index = 0; index < from.map.chunks; index++) chunks.push(await readChunk(store, from, index));
  return Buffer.concat(chunks);
}

const stores = [
  {
    name: 'directory',
    open: async () => {
      const root = join(base, 'store');
      await mkdir(root);
      return { store: new DirectoryStore({ root, random }), [Symbol.asyncDispose]: () => Promise.resolve() };
    },
  },
  {
    name: 'S3',
    open: async () => {
      const clock = new SystemClock();
      const server = await S3Server.start(clock);
      const store = new S3Store({ endpoint: server.endpoint, bucket: BUCKET, ...server.account, clock, random });
      return { store, [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
    },
  },
];

describe.each(stores)('a layer in a store: $name', ({ name, open }) => {
  test('comes back as it was, and the next one sends only what is new', async () => {
    await using opened = await open();
    const store = new MortalStore(opened.store);
    const uploader = uploaderTo(store, new SystemClock());
    const first = await layerFiles(base, `${name}-first`, [1, 0, -2, 3, 1, 4, 5, 0, 6, 7]);
    const uploaded = await uploader.upload({ ...first, record });
    expect(uploaded).toMatchObject({ bytes: 7 * CHUNK_BYTES + 2 * BLOCK_BYTES });
    expect(uploaded.newBytes).toBe(6 * CHUNK_BYTES + 2 * BLOCK_BYTES);
    expect(packsOf(store.written)).toHaveLength(2);
    expect(store.written.at(-1)).toBe(`layers/${uploaded.layer}/layer.json`);

    const directory = join(base, `${name}-fetched`);
    const fetched = await fetchLayer(opened.store, uploaded.layer, { directory, random });
    expect((await readFile(join(directory, 'rootfs.erofs'))).equals(first.metadata)).toBe(true);
    expect((await readFile(join(directory, 'chunks'))).equals(uploaded.map.bytes)).toBe(true);
    expect((await readFile(join(directory, 'layer.json'))).equals(record)).toBe(true);
    expect((await readAll(opened.store, fetched)).equals(first.data)).toBe(true);

    const sentBefore = store.sentBytes;
    const second = await layerFiles(base, `${name}-second`, [3, -2, 8, 1, 0, 9]);
    const another = await uploaderTo(store, new SystemClock()).upload({ ...second, record });
    expect(another.newBytes).toBe(CHUNK_BYTES + 2 * BLOCK_BYTES);
    expect(another.dedupeShare).toBeCloseTo(3 / 4, 1);
    expect(store.sentBytes - sentBefore).toBeLessThan(2000);
    expect((await readAll(opened.store, await openLayer(opened.store, another.layer))).equals(second.data)).toBe(true);
  });
});

describe('LayerUploader', () => {
  test('takes a layer without data, and one of holes only', async () => {
    const { store, clock } = memory();
    const { metadataPath } = await layerFiles(base, 'none', []);
    const none = await uploaderTo(store, clock).upload({ metadataPath, record });
    expect(none).toMatchObject({ bytes: 0, newBytes: 0, sentBytes: 0, dedupeShare: 0 });
    const holes = await layerFiles(base, 'holes', [0, 0, 0]);
    const uploaded = await uploaderTo(store, clock).upload({ ...holes, record });
    expect(uploaded).toMatchObject({ bytes: 0, newBytes: 0, sentBytes: 0 });
    expect(packsOf(store.written)).toEqual([]);
    expect((await readAll(store, await openLayer(store, uploaded.layer))).equals(holes.data)).toBe(true);
  });

  test('sends no byte of a pack twice, wherever it was killed', async () => {
    const files = await layerFiles(base, 'killed', [-1, -2, -3, -4, -5, 0, -6, -7, -8, -9, -10, 1]);
    const whole = memory();
    const expected = await uploaderTo(whole.store, whole.clock).upload({ ...files, record });
    const packsBytes = expected.newBytes - 2 * BLOCK_BYTES;
    const changes = whole.store.written.length;
    expect(packsOf(whole.store.written)).toHaveLength(3);
    for (let lived = 0; lived < changes; lived++) {
      const { store, clock } = memory();
      store.changesLeft = lived;
      await expect(uploaderTo(store, clock).upload({ ...files, record })).rejects.toThrow('killed');
      store.changesLeft = Number.POSITIVE_INFINITY;
      await expect(openLayer(store, expected.layer)).rejects.toMatchObject({ code: 'layer_not_found' });
      const again = await uploaderTo(store, clock).upload({ ...files, record });
      expect(again.layer).toBe(expected.layer);
      expect(packsOf(store.written).toSorted()).toEqual(packsOf(whole.store.written).toSorted());
      // Metadata, indexes and the like are sent again; packs are not.
      expect(store.sentBytes).toBeLessThan(packsBytes + 10_000);
      expect((await readAll(store, await openLayer(store, again.layer))).equals(files.data)).toBe(true);
    }
  });

  test('keeps an old pack young that it relies on, before it relies on it', async () => {
    const { store, clock } = memory();
    const uploader = uploaderTo(store, clock);
    await uploader.upload({ ...(await layerFiles(base, 'base', [1, 2, 3])), record });
    const index = store.written.find((key) => key.startsWith('indexes/')) ?? '';
    const before = store.written.length;
    await uploader.upload({ ...(await layerFiles(base, 'soon', [2, 5])), record });
    expect(store.written.slice(before)).not.toContain(index);
    await clock.advance(2 * 3_600_000);
    const rest = store.written.length;
    await uploader.upload({ ...(await layerFiles(base, 'later', [2, 6])), record });
    expect(store.written[rest]).toBe(index);
  });

  test('sends anew what a collection takes away under it', async () => {
    const { store, clock } = memory();
    const uploader = uploaderTo(store, clock);
    await uploader.upload({ ...(await layerFiles(base, 'taken', [1, 2, 3])), record });
    const [pack = ''] = packsOf(store.written);
    const index = `indexes/${pack.split('/')[2]}`;
    const files = await layerFiles(base, 'relying', [2, 3, 7]);
    // Between the check of the pack and the record of the layer.
    let isTaken = false;
    store.onChange = async (key) => {
      if (isTaken || !key.startsWith('packs/')) return;
      isTaken = true;
      await store.delete(index);
      await store.delete(pack);
    };
    const uploaded = await uploader.upload({ ...files, record });
    expect(isTaken).toBe(true);
    expect((await readAll(store, await openLayer(store, uploaded.layer))).equals(files.data)).toBe(true);
  });

  test('gives up when packs vanish again and again', async () => {
    const { store, clock } = memory();
    store.onChange = async (key) => {
      if (key.startsWith('indexes/')) await store.delete(`packs/${key.slice(8, 10)}/${key.slice(8)}`);
    };
    await expect(
      uploaderTo(store, clock).upload({ ...(await layerFiles(base, 'vanishing', [1, 2])), record }),
    ).rejects.toMatchObject({ code: 'blob_unavailable', details: { reason: 'packs_vanish' } });
  });

  test('sends again what does not fit into its memory of the store', async () => {
    const { store, clock } = memory();
    const chunks = [1, 2, 3, 4, 5, 6];
    const small = () => new LayerUploader({ store, clock, packBytes: 2 * CHUNK_BYTES, maxKnownChunks: 2 });
    const first = await small().upload({ ...(await layerFiles(base, 'forgotten', chunks)), record });
    const packs = packsOf(store.written);
    // Another layer of the same chunks: where those of a layer that is there lie, its own map says.
    const files = await layerFiles(base, 'forgotten-too', chunks);
    const second = await small().upload({ ...files, record });
    expect(second.layer).not.toBe(first.layer);
    expect(second.newBytes).toBeGreaterThan(0);
    expect(second.newBytes).toBeLessThan(first.newBytes);
    expect(packsOf(store.written)).toEqual(packs);
    expect((await readAll(store, await openLayer(store, second.layer))).equals(files.data)).toBe(true);
  });

  test('passes over an index that is none', async () => {
    const { store, clock } = memory();
    await store.put(`indexes/${sha256Name(Buffer.from('pack'))}`, Buffer.from('no index'));
    await store.put('indexes/other', Buffer.from('no index'));
    const files = await layerFiles(base, 'index', [1, 2]);
    const uploaded = await uploaderTo(store, clock).upload({ ...files, record });
    expect((await readAll(store, await openLayer(store, uploaded.layer))).equals(files.data)).toBe(true);
  });

  test('tells how far it is', async () => {
    const { store, clock } = memory();
    const seen: (readonly [number, number])[] = [];
    const files = await layerFiles(base, 'progress', [1, 2, 3, 4, 5, 6, 7, 0]);
    await uploaderTo(store, clock).upload({
      ...files,
      record,
      onProgress: (done, total) => void seen.push([done, total]),
    });
    expect(seen[0]).toEqual([0, 7 * CHUNK_BYTES]);
    expect(seen.at(-1)).toEqual([7 * CHUNK_BYTES, 7 * CHUNK_BYTES]);
  });

  test('makes the record from the digest, and takes no record that is too large', async () => {
    const { store, clock } = memory();
    const files = await layerFiles(base, 'record', [1]);
    const { layer } = await uploaderTo(store, clock).upload({ ...files, record: (digest) => Buffer.from(digest) });
    expect((await openLayer(store, layer)).record.toString()).toBe(layer);
    await expect(
      uploaderTo(store, clock).upload({ ...files, record: Buffer.alloc(MAX_RECORD_BYTES + 1) }),
    ).rejects.toMatchObject({ code: 'invalid_argument', details: { field: 'record' } });
  });

  test('takes no data that are not whole blocks, and stops when the files change', async () => {
    const { store, clock } = memory();
    const files = await layerFiles(base, 'blocks', [1, 2, 3]);
    await truncate(files.dataPath ?? '', BLOCK_BYTES + 1);
    await expect(uploaderTo(store, clock).upload({ ...files, record })).rejects.toMatchObject({
      code: 'invalid_argument',
    });
    const changing = await layerFiles(base, 'changing', [1, 2, 3]);
    // The record is made when the digests are known and nothing has been sent.
    const failure = uploaderTo(store, clock).upload({
      ...changing,
      record: () => {
        writeFileSync(changing.dataPath ?? '', Buffer.alloc(changing.data.length, 'other'));
        return record;
      },
    });
    await expect(failure).rejects.toMatchObject({ code: 'layer_corrupt' });
    expect(store.written).toEqual([]);
  });

  test('ends when the caller does not want it any more', async () => {
    const { store, clock } = memory();
    const controller = new AbortController();
    store.onChange = async () => controller.abort();
    const files = await layerFiles(base, 'aborted', [1, 2, 3]);
    const aborted = uploaderTo(store, clock).upload({ ...files, record, signal: controller.signal });
    await expect(aborted).rejects.toMatchObject({ code: 'cancelled' });
  });
});
