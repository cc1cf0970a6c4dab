/** What every implementation of `ObjectStore` must do: its suite calls this. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { SeededRandom } from '@dsec/kit';
import { listAll, type ObjectStore, readObject } from './object-store.ts';

/** A store that is empty, and how to be rid of it. */
export interface OpenedStore extends AsyncDisposable {
  readonly store: ObjectStore;
}

/** Above what any store sends in one request in these suites. */
const LARGE_BYTES = 13 * 1024 * 1024;
const EVERYTHING = { maxBytes: 2 * LARGE_BYTES };

export function objectStoreConformance(name: string, open: () => Promise<OpenedStore>): void {
  describe(`ObjectStore: ${name}`, () => {
    let opened: OpenedStore;
    let store: ObjectStore;
    beforeEach(async () => {
      opened = await open();
      ({ store } = opened);
    });
    afterEach(() => opened[Symbol.asyncDispose]());

    /** Differs everywhere, from one megabyte to the next too. */
    const bytes = (count: number, seed = 1): Buffer => {
      const noise = new SeededRandom(seed).bytes(Math.min(count, 99_999));
      return Buffer.alloc(count, noise.length === 0 ? 0 : noise);
    };
    const keys = async (prefix: string): Promise<readonly string[]> => {
      const found: string[] = [];
      for await (const { key } of listAll(store, prefix)) found.push(key);
      return found;
    };

    test('returns what was put, whole and in part', async () => {
      const body = bytes(100_000);
      expect(await store.put('packs/ab/abc', body)).toBe('written');
      expect(await readObject(store, 'packs/ab/abc', EVERYTHING)).toEqual(body);
      const part = (offset: number, length: number) =>
        readObject(store, 'packs/ab/abc', { ...EVERYTHING, range: { offset, length } });
      expect(await part(0, 1)).toEqual(body.subarray(0, 1));
      expect(await part(70_000, 1000)).toEqual(body.subarray(70_000, 71_000));
      expect(await part(99_990, 1000)).toEqual(body.subarray(99_990));
      expect(await part(100_000, 10)).toHaveLength(0);
    });

    test('takes streams of any cut and length, and empty objects', async () => {
      const body = bytes(LARGE_BYTES);
      async function* pieces() {
        for (let at = 0; at < body.length; at += 700_001) yield body.subarray(at, at + 700_001);
      }
      await store.put('large', pieces());
      expect((await readObject(store, 'large', EVERYTHING))?.equals(body)).toBe(true);
      await store.put('large-bytes', body);
      expect((await readObject(store, 'large-bytes', EVERYTHING))?.equals(body)).toBe(true);
      await store.put('empty', new Uint8Array());
      await store.put('empty-stream', (async function* () {})());
      expect(await readObject(store, 'empty', EVERYTHING)).toHaveLength(0);
      expect(await store.head('empty-stream')).toMatchObject({ sizeBytes: 0 });
    });

    test('stops reading where the reader wants no more', async () => {
      await store.put('large', bytes(LARGE_BYTES));
      expect(await readObject(store, 'large', { maxBytes: 1000 })).toHaveLength(1001);
      await using unread = await store.get('large');
      expect(unread).toBeDefined();
    });

    test('says that there is no such object', async () => {
      expect(await store.get('none')).toBeUndefined();
      expect(await store.get('no/such/directory', { range: { offset: 5, length: 5 } })).toBeUndefined();
      expect(await store.head('none')).toBeUndefined();
      expect(await store.head('no/such/directory')).toBeUndefined();
      await store.delete('none');
      await store.delete('no/such/directory');
    });

    test('replaces, but leaves a content-addressed object of the same size alone', async () => {
      await store.put('a', bytes(1000, 1));
      expect(await store.put('a', bytes(1000, 2))).toBe('written');
      expect(await store.put('a', bytes(1000, 3), { ifAbsent: true })).toBe('present');
      expect(await readObject(store, 'a', EVERYTHING)).toEqual(bytes(1000, 2));
      // What a server lost half of in a crash is put anew.
      expect(await store.put('a', bytes(1001, 4), { ifAbsent: true })).toBe('written');
      expect(await readObject(store, 'a', EVERYTHING)).toEqual(bytes(1001, 4));
    });

    test('leaves the old object, or none, where a put fails', async () => {
      async function* failing() {
        yield bytes(LARGE_BYTES);
        throw new TypeError('the source broke');
      }
      await store.put('old', bytes(10));
      await expect(store.put('old', failing())).rejects.toThrow('the source broke');
      await expect(store.put('new', failing())).rejects.toThrow('the source broke');
      expect(await readObject(store, 'old', EVERYTHING)).toEqual(bytes(10));
      expect(await keys('')).toEqual(['old']);
    });

    test('lists by prefix, in the order of bytes, page by page', async () => {
      const all = ['a', 'a-b', 'a.d/x', 'a0', 'ab/c', 'ab/d/e', 'ab/d/f', 'ab/d0', 'ab0', 'b/A', 'b/_', 'b/a'];
      for (const key of all.toReversed()) await store.put(key, bytes(key.length));
      expect(await keys('')).toEqual(all.toSorted());
      expect(await keys('ab')).toEqual(['ab/c', 'ab/d/e', 'ab/d/f', 'ab/d0', 'ab0']);
      expect(await keys('ab/')).toEqual(['ab/c', 'ab/d/e', 'ab/d/f', 'ab/d0']);
      expect(await keys('ab/d/')).toEqual(['ab/d/e', 'ab/d/f']);
      expect(await keys('zz/')).toEqual([]);
      const paged: string[] = [];
      let cursor: string | undefined;
      do {
        const page = await store.list('', { limit: 5, cursor });
        expect(page.objects.length).toBeLessThanOrEqual(5);
        paged.push(...page.objects.map(({ key }) => key));
        ({ cursor } = page);
      } while (cursor !== undefined);
      expect(paged).toEqual(all.toSorted());
      expect((await store.list('b/')).objects.map(({ sizeBytes }) => sizeBytes)).toEqual([3, 3, 3]);
    });

    test('deletes', async () => {
      await store.put('a/b', bytes(1));
      await store.put('a/c', bytes(1));
      await store.delete('a/b');
      await store.delete('a/b');
      expect(await store.get('a/b')).toBeUndefined();
      expect(await keys('')).toEqual(['a/c']);
    });

    test('says the same moment of change in a head and in a listing, to the second', async () => {
      await store.put('a', bytes(1));
      const head = await store.head('a');
      const [listed] = (await store.list('')).objects;
      expect(Math.abs((head?.modifiedMs ?? 0) - (listed?.modifiedMs ?? 1e9))).toBeLessThanOrEqual(1000);
    });

    test('lets many put the same object at once', async () => {
      await Promise.all(Array.from({ length: 20 }, () => store.put('a/b/c', bytes(100_000), { ifAbsent: true })));
      expect(await readObject(store, 'a/b/c', EVERYTHING)).toEqual(bytes(100_000));
    });

    test.for([
      '',
      '/',
      '/a',
      'a/',
      'a//b',
      '.',
      '..',
      'a/../b',
      '.hidden',
      'a/.b',
      'a b',
      'a\0',
      'ä',
      'a\\b',
      'a/'.repeat(9) + 'a',
    ])('takes no key %j', async (key) => {
      const refused = { code: 'invalid_argument' };
      await expect(store.put(key, bytes(1))).rejects.toMatchObject(refused);
      await expect(store.get(key)).rejects.toMatchObject(refused);
      await expect(store.head(key)).rejects.toMatchObject(refused);
      await expect(store.delete(key)).rejects.toMatchObject(refused);
      if (key !== '' && !key.endsWith('a/')) await expect(store.list(key)).rejects.toMatchObject(refused);
    });

    test('takes no range that is none', async () => {
      await store.put('a', bytes(10));
      for (const range of [
        { offset: -1, length: 1 },
        { offset: 0, length: 0 },
        { offset: 0.5, length: 1 },
      ]) {
        await expect(store.get('a', { range })).rejects.toMatchObject({ code: 'invalid_argument' });
      }
    });

    test('ends when the caller does not want it any more', async () => {
      const signal = AbortSignal.abort();
      const cancelled = { code: 'cancelled' };
      await expect(store.put('a', bytes(1), { signal })).rejects.toMatchObject(cancelled);
      await expect(store.get('a', { signal })).rejects.toMatchObject(cancelled);
      const controller = new AbortController();
      async function* endless() {
        for (let count = 0; ; count++) {
          if (count === 3) controller.abort();
          yield bytes(1000);
        }
      }
      await expect(store.put('a', endless(), { signal: controller.signal })).rejects.toMatchObject(cancelled);
      expect(await keys('')).toEqual([]);
    });
  });
}
