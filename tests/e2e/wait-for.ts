import { SystemClock } from '@dsec/kit';
import { type Found, waitFor as waitForBy } from '@dsec/testkit';

/** The clock of the suites. */
export const clock = new SystemClock();

/** Waits by the clock of the suites until `look` gives something, and returns it. */
export const waitFor = <T>(what: string, look: () => T | Promise<T>, timeoutMs?: number): Promise<Found<T>> =>
  waitForBy(clock, what, look, timeoutMs);

/** What a promise is worth, and how long it took. */
export async function timed<T>(work: () => PromiseLike<T>): Promise<{ readonly value: T; readonly tookMs: number }> {
  const startedMs = clock.monotonicMs();
  const value = await work();
  return { value, tookMs: clock.monotonicMs() - startedMs };
}
