import { expect, test } from 'vitest';
import { ManualClock } from './clock.ts';
import { Scope } from './scope.ts';

test('releases in reverse order, all of it even when one step fails', async () => {
  const order: string[] = [];
  const scope = new Scope({ clock: new ManualClock() });
  scope.defer('first', () => void order.push('first'));
  scope.defer('broken', () => {
    throw new Error('broken');
  });
  scope.own('third', { [Symbol.dispose]: () => void order.push('third') });
  await expect(scope.close()).rejects.toThrow('closing left something behind');
  expect(order).toEqual(['third', 'first']);
});

test('waits for its loops, whose signal aborts first', async () => {
  const scope = new Scope({ clock: new ManualClock() });
  let isOver = false;
  scope.run('loop', async (signal) => {
    await new Promise((resolve) => signal.addEventListener('abort', resolve, { once: true }));
    isOver = true;
  });
  await scope.close();
  expect(isOver).toBe(true);
});

test('does not wait longer than the bound for one step', async () => {
  const clock = new ManualClock();
  const scope = new Scope({ clock, stepTimeoutMs: 50 });
  let isReleased = false;
  scope.defer('last', () => {
    isReleased = true;
  });
  scope.defer('stuck', () => new Promise(() => undefined));
  const closing = scope.close().catch((error: unknown) => error);
  await clock.advance(50);
  expect(await closing).toMatchObject({ errors: [{ code: 'timeout' }] });
  expect(isReleased).toBe(true);
  expect(clock.pendingTimers).toBe(0);
});

test('reports a loop that fails while the scope is open, and takes nothing once it closes', async () => {
  const failures: string[] = [];
  const scope = new Scope({ clock: new ManualClock(), onFailure: (name) => void failures.push(name) });
  scope.run('bad', () => Promise.reject(new Error('bad')));
  await expect.poll(() => failures).toEqual(['bad']);
  await scope.close();
  await scope.close();
  expect(() => scope.defer('late', () => undefined)).toThrow('comes too late');
});
