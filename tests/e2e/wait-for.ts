import { SystemClock } from '@dsec/kit';

/** The clock of the suites. */
export const clock = new SystemClock();
const POLL_MS = 25;

/**
 * Waits until `look` gives something, and returns it. What it throws is looked at again until the time is up; then the error
 * says what was waited for, with the last failure as its cause.
 */
export async function waitFor<T>(
  what: string,
  look: () => T | Promise<T>,
  timeoutMs = 10_000,
): Promise<Exclude<T, undefined | false | null>> {
  const endMs = clock.monotonicMs() + timeoutMs;
  let cause: unknown;
  for (;;) {
    try {
      const found = await look();
      // Nothing is what these three stand for; what is left is what was looked for.
      if (found !== undefined && found !== false && found !== null)
        return found as Exclude<T, undefined | false | null>;
      cause = undefined;
    } catch (error) {
      cause = error;
    }
    if (clock.monotonicMs() >= endMs) throw new Error(`not within ${timeoutMs} ms: ${what}`, { cause });
    await clock.sleep(POLL_MS);
  }
}

/** What a promise is worth, and how long it took. */
export async function timed<T>(work: () => PromiseLike<T>): Promise<{ readonly value: T; readonly tookMs: number }> {
  const startedMs = clock.monotonicMs();
  const value = await work();
  return { value, tookMs: clock.monotonicMs() - startedMs };
}
