import { ManualClock, Scope } from '@dsec/kit';
import { afterEach, beforeEach, expect, test } from 'vitest';
import { EmbeddedStore } from './embedded-store.ts';
import { StoreView } from './store-view.ts';

let store: EmbeddedStore;
let scope: Scope;
let changes: (readonly [string | undefined, string | undefined])[];
beforeEach(() => {
  store = EmbeddedStore.open({ path: ':memory:', history: 5 });
  scope = new Scope({ clock: new ManualClock() });
  changes = [];
});
afterEach(async () => {
  await scope.close();
  await store.close();
});

const open = (): Promise<StoreView<string>> =>
  StoreView.open({
    store,
    prefix: 'p/',
    scope,
    parse: (value) => value,
    onChange: (current, previous) => void changes.push([current, previous]),
  });

test('holds what is stored and follows what changes', async () => {
  await store.put('p/a', '1');
  await store.put('q/a', 'other');
  const view = await open();
  expect(view.get('a')).toBe('1');
  await store.put('p/b/c', '2');
  await store.delete('p/a');
  await expect.poll(() => [...view.records()]).toEqual(['2']);
  expect(view.get('b/c')).toBe('2');
  expect(view.size).toBe(1);
  expect(changes).toEqual([
    ['1', undefined],
    ['2', undefined],
    [undefined, '1'],
  ]);
});

test('never goes back to an older write that comes in late', async () => {
  const view = await open();
  const first = await store.put('p/a', 'old');
  const second = await store.put('p/a', 'new');
  view.observe('a', second.ok ? second.revision : -1, 'new');
  const mark = await store.put('p/mark', 'seen');
  await expect.poll(() => view.get('mark')).toBe('seen');
  expect(view.get('a')).toBe('new');
  view.observe('a', first.ok ? first.revision : -1, 'old');
  expect(view.get('a')).toBe('new');
  expect(mark.ok).toBe(true);
});

test('stays without what was deleted here while older writes come in late', async () => {
  const view = await open();
  await store.put('p/a', 'old');
  const gone = await store.delete('p/a');
  view.observe('a', gone.ok ? gone.revision : -1, undefined);
  await store.put('p/mark', 'seen');
  await expect.poll(() => view.get('mark')).toBe('seen');
  expect(view.get('a')).toBeUndefined();
  expect(view.size).toBe(1);
  await store.put('p/a', 'again');
  await expect.poll(() => view.get('a')).toBe('again');
});

test('reads everything anew when it fell behind the history of the store', async () => {
  const view = await open();
  await store.put('p/gone', 'x');
  await expect.poll(() => view.size).toBe(1);
  await Promise.all([
    store.delete('p/gone'),
    ...Array.from({ length: 20 }, (_, index) => store.put(`p/${index}`, String(index))),
  ]);
  await expect.poll(() => view.size).toBe(20);
  expect(view.get('gone')).toBeUndefined();
});
