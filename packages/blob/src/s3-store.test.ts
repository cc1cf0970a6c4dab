import { PlatformError } from '@dsec/contract';
import { ManualClock, SeededRandom, SystemClock, SystemRandom } from '@dsec/kit';
import { waitFor } from '@dsec/testkit';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { listAll, readObject } from './object-store.ts';
import { objectStoreConformance } from './object-store-conformance.ts';
import type { S3StoreOptions } from './s3-store.ts';
import { S3Store } from './s3-store.ts';
import { BUCKET, S3Server } from './s3-server.fixture.ts';

const clock = new SystemClock();
const MIB = 1024 * 1024;

const storeOf = (server: S3Server, options: Partial<S3StoreOptions> = {}): S3Store =>
  new S3Store({
    endpoint: server.endpoint,
    bucket: BUCKET,
    ...server.account,
    clock,
    random: new SystemRandom(),
    partBytes: 5 * MIB,
    ...options,
  });

objectStoreConformance('S3', async () => {
  const server = await S3Server.start(clock);
  return { store: storeOf(server), [Symbol.asyncDispose]: () => server[Symbol.asyncDispose]() };
});

describe('S3Store', () => {
  let server: S3Server;
  beforeEach(async () => {
    server = await S3Server.start(clock);
  });
  afterEach(() => server[Symbol.asyncDispose]());

  const unavailable = (reason: string) => ({ code: 'blob_unavailable', details: { store: BUCKET, reason } });
  const failureOf = async (promise: Promise<unknown>): Promise<PlatformError> => {
    try {
      await promise;
    } catch (error) {
      if (PlatformError.is(error)) return error;
      throw error;
    }
    throw new Error('it did not fail');
  };

  test.for([{ secretAccessKey: 'wrong' }, { accessKeyId: 'AKIAWRONG' }])(
    'says that the credentials are wrong, and does not try them again: %j',
    async (wrong) => {
      const store = storeOf(server, wrong);
      await expect(store.get('a')).rejects.toMatchObject(unavailable('credentials'));
      await expect(store.head('a')).rejects.toMatchObject(unavailable('credentials'));
      await expect(store.put('a', Buffer.from('a'))).rejects.toMatchObject(unavailable('credentials'));
      expect(server.requests).toHaveLength(3);
    },
  );

  test('says that its clock is wrong', async () => {
    const store = storeOf(server, { clock: new ManualClock(0) });
    await expect(store.get('a')).rejects.toMatchObject(unavailable('clock'));
  });

  test('says that there is no such bucket', async () => {
    const store = storeOf(server, { bucket: 'other', name: BUCKET });
    await expect(store.get('a')).rejects.toMatchObject(unavailable('bucket'));
    await expect(store.list('')).rejects.toMatchObject(unavailable('bucket'));
    await expect(store.put('a', Buffer.from('a'))).rejects.toMatchObject(unavailable('bucket'));
  });

  test('says that the server has no room, and leaves no parts behind', async () => {
    server.capacityBytes = 6 * MIB;
    const store = storeOf(server);
    await store.put('small', Buffer.alloc(2 * MIB));
    const full = { code: 'blob_full', details: { store: BUCKET, reason: 'XMinioStorageFull' } };
    await expect(store.put('large', Buffer.alloc(12 * MIB))).rejects.toMatchObject(full);
    await expect(store.put('medium', Buffer.alloc(5 * MIB))).rejects.toMatchObject(full);
    expect(server.uploads.size).toBe(0);
    expect([...server.objects.keys()]).toEqual(['small']);
  });

  test('does not take an upload for done that the server could not put together', async () => {
    const store = storeOf(server, { partBytes: MIB });
    await expect(store.put('a', Buffer.alloc(3 * MIB))).rejects.toMatchObject(unavailable('InvalidPart'));
    expect(server.uploads.size).toBe(0);
  });

  /** A server on a stepped clock: the store waits only as long as the test says. */
  async function stepped(body: (store: S3Store, steps: ManualClock, server: S3Server) => Promise<void>): Promise<void> {
    const steps = new ManualClock();
    await using own = await S3Server.start(steps);
    own.objects.set('a', { bytes: Buffer.from('abcdef'), modifiedMs: steps.now() });
    await body(storeOf(own, { clock: steps, random: new SeededRandom(1) }), steps, own);
  }
  /** Until the store waits for its next try (a timer beside the watch of a running request). */
  const untilWaiting = (own: S3Server, requests: number, steps: ManualClock): Promise<unknown> =>
    waitFor(clock, 'the store waits', () => own.requests.length === requests && steps.pendingTimers === 1);

  test('leaves a busy server alone for as long as it asks', async () => {
    await stepped(async (store, steps, own) => {
      own.faults.push({ status: 503, code: 'SlowDown', headers: { 'retry-after': '7' } });
      own.faults.push({ status: 429, headers: { 'retry-after': new Date(steps.now() + 16_000).toUTCString() } });
      const reading = readObject(store, 'a', { maxBytes: 10 });
      await untilWaiting(own, 1, steps);
      expect(steps.nextTimerMs).toBe(7000);
      await steps.advance(7000);
      await untilWaiting(own, 2, steps);
      expect(steps.nextTimerMs).toBeGreaterThan(8000);
      expect(steps.nextTimerMs).toBeLessThanOrEqual(9000);
      await steps.advance(9000);
      expect(await reading).toEqual(Buffer.from('abcdef'));
    });
  });

  test('gives up at once when the server wants to be left alone for longer than there is time', async () => {
    await stepped(async (store, _steps, own) => {
      own.faults.push({ status: 503, code: 'SlowDown', headers: { 'retry-after': '3600' } });
      await expect(store.get('a')).rejects.toMatchObject(unavailable('slow_down'));
      expect(own.requests).toHaveLength(1);
    });
  });

  test('tries a failing server five times, longer and longer apart', async () => {
    await stepped(async (store, steps, own) => {
      for (let count = 0; count < 9; count++) own.faults.push({ status: 500 });
      const failing = failureOf(store.get('a'));
      for (const ceilingMs of [200, 400, 800, 1600]) {
        await waitFor(clock, 'the store waits', () => {
          const waitMs = steps.nextTimerMs ?? 0;
          return steps.pendingTimers === 1 && waitMs >= ceilingMs / 2 && waitMs <= ceilingMs;
        });
        await steps.advance(ceilingMs);
      }
      expect(await failing).toMatchObject(unavailable('InternalError'));
      expect(own.requests).toHaveLength(5);
    });
  });

  test('takes a silent server for one that does not answer', async () => {
    await stepped(async (store, steps, own) => {
      own.faults.push({ status: 0, isSilent: true });
      const reading = readObject(store, 'a', { maxBytes: 10 });
      await waitFor(clock, 'the request', () => own.requests.length === 1);
      await steps.advance(30_000);
      await waitFor(clock, 'the next try', async () => {
        await steps.advance(200);
        return own.requests.length > 1;
      });
      expect(await reading).toEqual(Buffer.from('abcdef'));
    });
  });

  test('goes on reading where a connection broke', async () => {
    const body = new SeededRandom(1).bytes(3 * MIB);
    server.objects.set('a', { bytes: body, modifiedMs: 0 });
    server.faults.push({ status: 0, cutAtBytes: 200_000 }, { status: 0, cutAtBytes: 500_000 });
    const store = storeOf(server);
    expect((await readObject(store, 'a', { maxBytes: 4 * MIB }))?.equals(body)).toBe(true);
    server.faults.push({ status: 0, cutAtBytes: 100_000 });
    const range = { offset: MIB, length: MIB };
    const part = await readObject(store, 'a', { maxBytes: MIB, range });
    expect(part?.equals(body.subarray(MIB, 2 * MIB))).toBe(true);
  });

  test('says that nobody listens', async () => {
    const gone = await S3Server.start(clock);
    const store = storeOf(gone, { attempts: 2 });
    await gone[Symbol.asyncDispose]();
    await expect(store.get('a')).rejects.toMatchObject(unavailable('network'));
  });

  test('aborts uploads that were killed, once they are old', async () => {
    server.uploads.set('one', { key: 'packs/a', startedMs: 1000, parts: new Map() });
    server.uploads.set('two', { key: 'packs/b', startedMs: 2000, parts: new Map() });
    expect(await storeOf(server).removeUnfinished(1500)).toBe(1);
    expect([...server.uploads.keys()]).toEqual(['two']);
  });

  test('passes over what lies in the bucket under names that are no keys', async () => {
    for (const key of ['a', 'b & c', 'd/', 'e']) server.objects.set(key, { bytes: Buffer.alloc(1), modifiedMs: 0 });
    const keys: string[] = [];
    for await (const { key } of listAll(storeOf(server), '')) keys.push(key);
    expect(keys).toEqual(['a', 'e']);
    expect((await storeOf(server).list('', { limit: 2 })).cursor).toBe('b & c');
  });
});
