import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { run, SystemClock } from '@dsec/kit';
import { afterAll, beforeAll, expect, test } from 'vitest';
import { storeConformance } from './conformance.ts';
import { EmbeddedStore } from './embedded-store.ts';

let directory: string;
let count = 0;
beforeAll(async () => {
  directory = await mkdtemp(join(tmpdir(), 'store-'));
});
afterAll(() => rm(directory, { recursive: true }));

const newPath = (): string => join(directory, `${count++}.db`);

storeConformance('EmbeddedStore', () => Promise.resolve(EmbeddedStore.open({ path: newPath() })));

test('keeps everything, the revision too, when it is opened again', async () => {
  const path = newPath();
  const first = EmbeddedStore.open({ path });
  await first.put('a', '1');
  const before = await first.put('b', '2');
  await first.close();
  await using second = EmbeddedStore.open({ path });
  expect(await second.get('a')).toMatchObject({ value: '1' });
  expect(await second.put('c', '3')).toEqual({ ok: true, revision: before.ok ? before.revision + 1 : -1 });
});

test('keeps what it acknowledged when its process is killed', async () => {
  const path = newPath();
  const module = JSON.stringify(new URL('./embedded-store.ts', import.meta.url).href);
  const script = `
    const { EmbeddedStore } = await import(${module});
    const store = EmbeddedStore.open({ path: ${JSON.stringify(path)} });
    for (let i = 0; i < 50; i++) await store.put('k' + i, 'v');
    process.kill(process.pid, 'SIGKILL');`;
  const argv = [process.execPath, '--input-type=module', '-e', script] as const;
  await expect(run(argv, { clock: new SystemClock() })).rejects.toMatchObject({ details: { signal: 'SIGKILL' } });
  await using store = EmbeddedStore.open({ path });
  expect((await store.range('k')).entries).toHaveLength(50);
});

test('belongs to one process at a time', async () => {
  const path = newPath();
  await using _store = EmbeddedStore.open({ path });
  expect(() => EmbeddedStore.open({ path })).toThrowError(expect.objectContaining({ code: 'already_running' }));
});

test('tells a watcher that fell too far behind to range anew, then goes on', async () => {
  await using store = EmbeddedStore.open({ path: newPath(), history: 10 });
  for (let index = 0; index < 30; index++) await store.put('a', String(index));
  const controller = new AbortController();
  const iterator = store.watch('', { fromRevision: 5, signal: controller.signal });
  expect(await iterator.next()).toEqual({ done: false, value: { kind: 'compacted', revision: 30 } });
  const next = iterator.next();
  await store.put('a', 'new');
  expect(await next).toMatchObject({ value: { events: [{ entry: { value: 'new' } }] } });
  controller.abort();
});

test('ends its watches and refuses work when it is closed', async () => {
  const store = EmbeddedStore.open({ path: newPath() });
  const next = store.watch('', { signal: new AbortController().signal }).next();
  await store.close();
  await store.close();
  expect(await next).toMatchObject({ done: true });
  await expect(store.get('a')).rejects.toMatchObject({ code: 'unavailable' });
});
