import { ManualClock } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { Lifetimes, type Lifetime } from './lifetimes.ts';

const setUp = (options: { readonly ttlMs?: number; readonly idleMs?: number } = {}) => {
  const clock = new ManualClock();
  const lifetimes = new Lifetimes(clock);
  const ends: { readonly reason: string; readonly atMs: number }[] = [];
  const startedMs = clock.now();
  const start = (): Lifetime =>
    lifetimes.start({
      ttlEndsAtMs: startedMs + (options.ttlMs ?? 100_000),
      idleMs: options.idleMs ?? 1000,
      onEnd: (reason) => ends.push({ reason, atMs: clock.now() - startedMs }),
    });
  return { clock, lifetimes, ends, start, startedMs };
};

describe('lifetimes', () => {
  it('ends an idle sandbox at its idle timeout and not before', async () => {
    const { clock, ends, start } = setUp();
    start().arm();
    await clock.advance(999);
    expect(ends).toEqual([]);
    await clock.advance(1);
    expect(ends).toEqual([{ reason: 'idle', atMs: 1000 }]);
  });

  it('never ends a busy sandbox for idleness, and counts anew from the end of what kept it busy', async () => {
    const { clock, ends, start } = setUp();
    const lifetime = start();
    lifetime.arm();
    lifetime.enter();
    lifetime.enter();
    expect(lifetime.idleEndsAtMs).toBeUndefined();
    await clock.advance(5000);
    lifetime.leave();
    await clock.advance(5000);
    lifetime.leave();
    await clock.advance(999);
    expect(ends).toEqual([]);
    await clock.advance(1);
    expect(ends).toEqual([{ reason: 'idle', atMs: 11_000 }]);
  });

  it('counts from the last activity', async () => {
    const { clock, ends, start } = setUp();
    const lifetime = start();
    lifetime.arm();
    for (let round = 0; round < 5; round++) {
      await clock.advance(900);
      lifetime.touch();
    }
    await clock.advance(1000);
    expect(ends).toEqual([{ reason: 'idle', atMs: 5500 }]);
  });

  it('ends a busy sandbox at its time to live', async () => {
    const { clock, ends, start } = setUp({ ttlMs: 3000 });
    const lifetime = start();
    lifetime.arm();
    lifetime.enter();
    await clock.advance(3000);
    expect(ends).toEqual([{ reason: 'ttl', atMs: 3000 }]);
  });

  it('lets the time to live alone count before the sandbox is armed', async () => {
    const { clock, ends, start } = setUp({ ttlMs: 3000 });
    start();
    await clock.advance(3000);
    expect(ends).toEqual([{ reason: 'ttl', atMs: 3000 }]);
  });

  it('follows a deadline that is moved, in both directions', async () => {
    const { clock, ends, start, startedMs } = setUp();
    const nearer = start();
    const farther = start();
    nearer.arm();
    farther.arm();
    nearer.change({ ttlEndsAtMs: startedMs + 100_000, idleMs: 100 });
    farther.change({ ttlEndsAtMs: startedMs + 100_000, idleMs: 4000 });
    await clock.advance(100);
    expect(ends).toEqual([{ reason: 'idle', atMs: 100 }]);
    farther.change({ ttlEndsAtMs: startedMs + 2000, idleMs: 4000 });
    await clock.advance(5000);
    expect(ends.slice(1)).toEqual([{ reason: 'ttl', atMs: 2000 }]);
  });

  it('does nothing more for one that was cancelled, and leaves no timer after disposal', async () => {
    const { clock, lifetimes, ends, start } = setUp();
    const lifetime = start();
    lifetime.arm();
    lifetime.cancel();
    start().arm();
    lifetimes[Symbol.dispose]();
    await clock.advance(10_000);
    expect(ends).toEqual([]);
    expect(clock.pendingTimers).toBe(0);
    expect(lifetimes.size).toBe(1);
  });

  it('sets one timer for many sandboxes and none for their activity', async () => {
    const { clock, start } = setUp();
    const all = Array.from({ length: 3200 }, start);
    for (const lifetime of all) lifetime.arm();
    expect(clock.pendingTimers).toBe(1);
    for (const lifetime of all) {
      lifetime.enter();
      lifetime.leave();
    }
    expect(clock.pendingTimers).toBe(1);
    await clock.advance(0);
  });

  it('agrees with a plain model, whatever happens in whatever order', async () => {
    const step = fc.oneof(
      fc.record({ do: fc.constant('advance' as const), ms: fc.integer({ min: 0, max: 700 }) }),
      fc.record({ do: fc.constantFrom('touch' as const, 'enter' as const, 'leave' as const) }),
    );
    await fc.assert(
      fc.asyncProperty(fc.array(step, { maxLength: 40 }), async (steps) => {
        const { clock, ends, start } = setUp({ ttlMs: 5000, idleMs: 1000 });
        const lifetime = start();
        lifetime.arm();
        let nowMs = 0;
        let lastMs = 0;
        let busy = 0;
        let expected: { readonly reason: string; readonly atMs: number } | undefined;
        for (const action of steps) {
          if (action.do === 'advance') {
            nowMs += action.ms;
            const idleMs = busy > 0 ? Infinity : lastMs + 1000;
            if (expected === undefined && Math.min(idleMs, 5000) <= nowMs) {
              expected = idleMs < 5000 ? { reason: 'idle', atMs: idleMs } : { reason: 'ttl', atMs: 5000 };
            }
            await clock.advance(action.ms);
          } else if (action.do === 'touch') {
            lastMs = nowMs;
            lifetime.touch();
          } else if (action.do === 'enter') {
            busy++;
            lifetime.enter();
          } else if (busy > 0) {
            busy--;
            lastMs = nowMs;
            lifetime.leave();
          }
          expect(ends).toEqual(expected === undefined ? [] : [expected]);
        }
      }),
      { numRuns: 100 },
    );
  });
});
