/** Waiting: abort, deadline, retry, queue, semaphore. */
import { PlatformError } from '@dsec/contract';
import { describe, expect, test } from 'vitest';
import { orAborted } from './abort.ts';
import { BoundedQueue } from './bounded-queue.ts';
import { ManualClock } from './clock.ts';
import { Deadline, withDeadline } from './deadline.ts';
import { SeededRandom } from './random.ts';
import { Backoff, retry } from './retry.ts';
import { Semaphore } from './semaphore.ts';

describe('Deadline', () => {
  test('aborts with timeout after its time and names the operation', async () => {
    const clock = new ManualClock();
    const waiting = withDeadline({ clock, what: 'the test', timeoutMs: 100 }, (signal) =>
      clock.sleep(1000, { signal }),
    ).catch((error: unknown) => error);
    await clock.advance(100);
    expect(await waiting).toMatchObject({ code: 'timeout', message: 'the test did not end within 100 ms' });
    expect(clock.pendingTimers).toBe(0);
  });

  test('aborts with cancelled when the caller does', () => {
    const controller = new AbortController();
    using deadline = new Deadline({ clock: new ManualClock(), what: 'x', signal: controller.signal, timeoutMs: 5 });
    deadline.check();
    controller.abort();
    expect(() => deadline.check()).toThrowError(expect.objectContaining({ code: 'cancelled' }));
  });

  test('leaves nothing behind', () => {
    const clock = new ManualClock();
    new Deadline({ clock, what: 'x', timeoutMs: 5 })[Symbol.dispose]();
    expect(clock.pendingTimers).toBe(0);
  });
});

test('orAborted gives up on a promise that goes on', async () => {
  const controller = new AbortController();
  const waiting = orAborted(new Promise(() => undefined), controller.signal);
  controller.abort();
  await expect(waiting).rejects.toMatchObject({ code: 'cancelled' });
  await expect(orAborted(Promise.resolve(1), new AbortController().signal)).resolves.toBe(1);
});

describe('retry', () => {
  const policy = { baseMs: 100, maxMs: 1000, attempts: 4, budgetMs: 10_000 };
  const unavailable = new PlatformError('unavailable', 'not yet');

  test('tries again after growing waits until it works', async () => {
    const clock = new ManualClock();
    const at: number[] = [];
    const running = retry({ ...policy, clock, random: new SeededRandom(1) }, (attempt) => {
      at.push(clock.monotonicMs());
      return attempt < 3 ? Promise.reject(unavailable) : Promise.resolve(attempt);
    });
    await clock.advance(5000);
    expect(await running).toBe(3);
    expect(at[1]).toBeGreaterThanOrEqual(50);
    expect(at[1]).toBeLessThanOrEqual(100);
    expect((at[2] ?? 0) - (at[1] ?? 0)).toBeGreaterThanOrEqual(100);
  });

  test.each([
    ['an error that is not retryable', { error: new PlatformError('invalid_argument', 'no'), options: {}, calls: 1 }],
    ['the last attempt', { error: unavailable, options: { attempts: 2 }, calls: 2 }],
    ['the end of the budget', { error: unavailable, options: { budgetMs: 10 }, calls: 1 }],
  ])('gives up after %s', async (_name, { error, options, calls }) => {
    const clock = new ManualClock();
    let count = 0;
    const running = retry({ ...policy, ...options, clock, random: new SeededRandom(1) }, () => {
      count++;
      return Promise.reject(error);
    });
    const outcome = running.catch((thrown: unknown) => thrown);
    await clock.advance(10_000);
    expect(await outcome).toBe(error);
    expect(count).toBe(calls);
  });

  test('starts over after a reset', () => {
    const backoff = new Backoff({ baseMs: 10, maxMs: 1e6 }, new SeededRandom(3));
    for (let i = 0; i < 50; i++) backoff.nextMs();
    expect(backoff.nextMs()).toBeLessThanOrEqual(1e6);
    backoff.reset();
    expect(backoff.nextMs()).toBeLessThanOrEqual(10);
  });
});

describe('BoundedQueue', () => {
  test('keeps the order and holds the producer back when it is full', async () => {
    const queue = new BoundedQueue<number>(2);
    const produced: number[] = [];
    const producing = (async () => {
      for (let i = 0; i < 5; i++) {
        await queue.push(i);
        produced.push(i);
      }
      queue.close();
    })();
    await new Promise((resolve) => setImmediate(resolve));
    expect(produced).toEqual([0, 1]);
    expect(queue.tryPush(9)).toBe(false);
    expect(await Array.fromAsync(queue)).toEqual([0, 1, 2, 3, 4]);
    await producing;
  });

  test('delivers what is inside, then the error it was closed with', async () => {
    const queue = new BoundedQueue<string>(2);
    queue.tryPush('a');
    queue.close(new PlatformError('connection_lost', 'gone'));
    expect(await queue.shift()).toBe('a');
    await expect(queue.shift()).rejects.toMatchObject({ code: 'connection_lost' });
    await expect(queue.push('b')).rejects.toMatchObject({ code: 'connection_lost' });
  });

  test('lets a waiting side go when its signal aborts', async () => {
    const queue = new BoundedQueue<number>(1);
    const taking = new AbortController();
    const taken = queue.shift(taking.signal);
    taking.abort();
    await expect(taken).rejects.toMatchObject({ code: 'cancelled' });
    queue.tryPush(1);
    const putting = new AbortController();
    const put = queue.push(2, putting.signal);
    putting.abort();
    await expect(put).rejects.toMatchObject({ code: 'cancelled' });
    expect(await queue.shift()).toBe(1);
    expect(queue.length).toBe(0);
  });
});

describe('Semaphore', () => {
  test('serves those who wait in their order and refuses beyond its bound', async () => {
    const semaphore = new Semaphore({ permits: 1, maxWaiting: 2 });
    const first = await semaphore.acquire();
    const order: string[] = [];
    const second = semaphore.acquire().then((permit) => (order.push('second'), permit));
    const third = semaphore.acquire().then((permit) => (order.push('third'), permit));
    await expect(semaphore.acquire()).rejects.toMatchObject({ code: 'too_many_requests' });
    first[Symbol.dispose]();
    first[Symbol.dispose]();
    (await second)[Symbol.dispose]();
    (await third)[Symbol.dispose]();
    expect(order).toEqual(['second', 'third']);
    expect(semaphore.free).toBe(1);
  });

  test('forgets a waiter whose signal aborts', async () => {
    const semaphore = new Semaphore({ permits: 1, maxWaiting: 5 });
    const held = await semaphore.acquire();
    const controller = new AbortController();
    const waiting = semaphore.acquire(controller.signal);
    controller.abort();
    await expect(waiting).rejects.toMatchObject({ code: 'cancelled' });
    expect(semaphore.waiting).toBe(0);
    held[Symbol.dispose]();
    expect(await semaphore.run(() => Promise.resolve(7))).toBe(7);
    expect(semaphore.free).toBe(1);
  });
});
