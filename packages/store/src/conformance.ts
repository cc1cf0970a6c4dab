/** What every implementation of `Store` must do: its suite calls this. */
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { MAX_VALUE_BYTES, type Entry, type Store, type StoreEvent, type WatchBatch } from './store.ts';

/** `open` makes an empty store. */
export function storeConformance(name: string, open: () => Promise<Store>): void {
  describe(`Store: ${name}`, () => {
    let store: Store;
    beforeEach(async () => {
      store = await open();
    });
    afterEach(() => store.close());

    const write = async (key: string, value: string): Promise<number> => {
      const result = await store.put(key, value);
      if (!result.ok) throw new Error('an unconditional write was refused');
      return result.revision;
    };
    const keysOf = (entries: readonly Entry[]): readonly string[] => entries.map(({ key }) => key);

    test('returns what was written, byte for byte', async () => {
      const value = '\u0000\u00e9\u{1f600}\n"';
      const revision = await write('a/b', value);
      expect(await store.get('a/b')).toEqual({ key: 'a/b', value, createRevision: revision, modRevision: revision });
      expect(await store.get('a')).toBeUndefined();
    });

    test('raises one revision for the whole store and keeps the revision of the creation', async () => {
      const first = await write('a', '1');
      const other = await write('b', '1');
      const second = await write('a', '2');
      expect([other, second]).toEqual([first + 1, first + 2]);
      expect(await store.get('a')).toMatchObject({ value: '2', createRevision: first, modRevision: second });
    });

    test('writes only at the demanded revision and tells the current entry otherwise', async () => {
      const created = await store.put('a', '1', { ifRevision: 0 });
      expect(created.ok).toBe(true);
      expect(await store.put('a', '2', { ifRevision: 0 })).toMatchObject({ ok: false, current: { value: '1' } });
      const revision = created.ok ? created.revision : -1;
      expect(await store.put('a', '2', { ifRevision: revision })).toMatchObject({ ok: true });
      expect(await store.put('a', '3', { ifRevision: revision })).toMatchObject({ ok: false, current: { value: '2' } });
      expect(await store.delete('a', { ifRevision: revision })).toMatchObject({ ok: false });
      expect(await store.put('none', '1', { ifRevision: 7 })).toEqual({ ok: false, current: undefined });
      expect(await store.get('a')).toMatchObject({ value: '2' });
    });

    test('lets exactly one of many racing writers win', async () => {
      const revision = await write('a', '0');
      const racing = Array.from({ length: 20 }, (_, index) => store.put('a', String(index), { ifRevision: revision }));
      expect((await Promise.all(racing)).filter(({ ok }) => ok)).toHaveLength(1);
    });

    test('deletes, and deleting nothing changes nothing', async () => {
      const revision = await write('a', '1');
      expect(await store.delete('b')).toEqual({ ok: true, revision });
      expect(await store.delete('a')).toEqual({ ok: true, revision: revision + 1 });
      expect(await store.get('a')).toBeUndefined();
      const again = await write('a', '2');
      expect(await store.get('a')).toMatchObject({ createRevision: again });
    });

    test('ranges over a prefix in the order of bytes, page by page', async () => {
      const keys = ['p/', 'p/10', 'p/2', 'p/a', 'p/a/b', 'p/~'];
      for (const key of [...keys.toReversed(), 'o', 'p', 'p0', 'q']) await write(key, key);
      const pages: string[][] = [];
      let cursor: string | undefined;
      do {
        const page = await store.range('p/', { limit: 2, cursor });
        pages.push([...keysOf(page.entries)]);
        cursor = page.cursor;
      } while (cursor !== undefined);
      expect(pages).toEqual([keys.slice(0, 2), keys.slice(2, 4), keys.slice(4)]);
      expect(keysOf((await store.range('')).entries)).toHaveLength(10);
      expect((await store.range('none/')).entries).toEqual([]);
    });

    test('does all of a transaction at one revision, or nothing', async () => {
      const revision = await write('a', '1');
      const operations = [
        { kind: 'put', key: 'b', value: '2' },
        { kind: 'delete', key: 'a' },
      ] as const;
      expect(await store.txn([{ key: 'a', revision: revision + 1 }], operations)).toEqual({ ok: false });
      expect(await store.get('b')).toBeUndefined();
      const conditions = [
        { key: 'a', revision },
        { key: 'b', revision: 0 },
      ];
      expect(await store.txn(conditions, operations)).toEqual({ ok: true, revision: revision + 1 });
      expect(await store.get('a')).toBeUndefined();
      expect(await store.get('b')).toMatchObject({ modRevision: revision + 1 });
    });

    test.each([
      ['an empty key', ''],
      ['a key with a space', 'a b'],
      ['a key beyond ASCII', '\u00e9'],
      ['a key that is too long', 'k'.repeat(513)],
    ])('refuses %s', async (_name, key) => {
      await expect(store.put(key, '')).rejects.toMatchObject({ code: 'invalid_argument' });
      await expect(store.get(key)).rejects.toMatchObject({ code: 'invalid_argument' });
    });

    test('refuses a value or a transaction beyond its bound, and a key named twice', async () => {
      await expect(store.put('a', 'x'.repeat(MAX_VALUE_BYTES + 1))).rejects.toMatchObject({ code: 'invalid_argument' });
      const twice = [
        { kind: 'put', key: 'a', value: '1' },
        { kind: 'delete', key: 'a' },
      ] as const;
      await expect(store.txn([], twice)).rejects.toMatchObject({ code: 'invalid_argument' });
      const many = Array.from({ length: 129 }, (_, index) => ({ kind: 'put', key: `k${index}`, value: '' }) as const);
      await expect(store.txn([], many)).rejects.toMatchObject({ code: 'invalid_argument' });
    });

    test('watches a prefix: each change once, in order, from the asked revision on', async () => {
      const controller = new AbortController();
      const first = await write('p/a', '1');
      await write('other', 'x');
      const events = collect(store.watch('p/', { fromRevision: first, signal: controller.signal }), 4, controller);
      await write('p/b', '2');
      await write('p/a', '3');
      await store.delete('p/b');
      expect((await events).map(show)).toEqual([
        `p/a=1@${first}`,
        `p/b=2@${first + 2}`,
        `p/a=3@${first + 3}`,
        `p/b gone@${first + 4}`,
      ]);
    });

    test('watches from the next revision when none is asked for', async () => {
      const controller = new AbortController();
      await write('p/a', '1');
      const iterator = store.watch('p/', { signal: controller.signal })[Symbol.asyncIterator]();
      const next = iterator.next();
      await write('p/b', '2');
      expect(await next).toMatchObject({ value: { events: [{ entry: { key: 'p/b' } }] } });
      controller.abort();
      expect(await iterator.next()).toMatchObject({ done: true });
    });

    test('delivers a transaction as a whole', async () => {
      const controller = new AbortController();
      const iterator = store.watch('p/', { signal: controller.signal })[Symbol.asyncIterator]();
      const next = iterator.next();
      await store.txn(
        [],
        [1, 2, 3].map((index) => ({ kind: 'put', key: `p/${index}`, value: '' }) as const),
      );
      expect(await next).toMatchObject({ value: { events: [{}, {}, {}] } });
      controller.abort();
    });

    test('misses nothing between a range and the watch that follows it', async () => {
      const controller = new AbortController();
      const writing = (async () => {
        for (let index = 0; index < 200; index++) await write(`p/${index}`, '');
      })();
      await write('p/x', '');
      const page = await store.range('p/');
      const seen = new Set(keysOf(page.entries));
      for await (const batch of store.watch('p/', { fromRevision: page.revision + 1, signal: controller.signal })) {
        if (batch.kind === 'events')
          for (const event of batch.events) if (event.kind === 'put') seen.add(event.entry.key);
        if (seen.size === 201) controller.abort();
      }
      await writing;
      expect(seen.size).toBe(201);
    });
  });
}

async function collect(
  batches: AsyncIterable<WatchBatch>,
  count: number,
  controller: AbortController,
): Promise<readonly StoreEvent[]> {
  const events: StoreEvent[] = [];
  for await (const batch of batches) {
    if (batch.kind === 'events') events.push(...batch.events);
    if (events.length >= count) controller.abort();
  }
  return events;
}

const show = (event: StoreEvent): string =>
  event.kind === 'put'
    ? `${event.entry.key}=${event.entry.value}@${event.entry.modRevision}`
    : `${event.key} gone@${event.revision}`;
