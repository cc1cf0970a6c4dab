import { describe, expect, test } from 'vitest';
import { ManualClock, SystemClock } from './clock.ts';

describe('ManualClock', () => {
  test('fires timers in the order in which they are due, each at its own moment', async () => {
    const clock = new ManualClock(1000);
    const fired: string[] = [];
    clock.setTimer(20, () => fired.push(`b@${clock.now()}`));
    clock.setTimer(10, () => fired.push(`a@${clock.now()}`));
    clock.setTimer(20, () => fired.push(`c@${clock.now()}`));
    await clock.advance(25);
    expect(fired).toEqual(['a@1010', 'b@1020', 'c@1020']);
    expect(clock.now()).toBe(1025);
    expect(clock.pendingTimers).toBe(0);
  });

  test('fires what a timer set while time moved on', async () => {
    const clock = new ManualClock();
    let ticks = 0;
    const tick = (): void => {
      ticks++;
      clock.setTimer(10, tick);
    };
    clock.setTimer(10, tick);
    await clock.advance(35);
    expect(ticks).toBe(3);
    expect(clock.nextTimerMs).toBe(5);
  });

  test('does not fire a cancelled timer', async () => {
    const clock = new ManualClock();
    let isFired = false;
    clock.setTimer(5, () => (isFired = true)).cancel();
    await clock.advance(10);
    expect(isFired).toBe(false);
  });

  test('ends a sleep with the error of its signal and leaves no timer', async () => {
    const clock = new ManualClock();
    const controller = new AbortController();
    const sleeping = clock.sleep(1000, { signal: controller.signal });
    controller.abort();
    await expect(sleeping).rejects.toMatchObject({ code: 'cancelled' });
    expect(clock.pendingTimers).toBe(0);
    await expect(clock.sleep(1, { signal: controller.signal })).rejects.toMatchObject({ code: 'cancelled' });
  });
});

describe('SystemClock', () => {
  test('does not fire a timer of more than 25 days at once', async () => {
    const clock = new SystemClock();
    let isFired = false;
    const timer = clock.setTimer(2 ** 31, () => (isFired = true));
    await clock.sleep(10);
    timer.cancel();
    expect(isFired).toBe(false);
  });
});
