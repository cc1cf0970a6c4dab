import { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';

const POLL_MS = 20;

/** What was waited for: anything but these three, which stand for nothing. */
export type Found<T> = Exclude<T, undefined | false | null>;

/** Looks until there is something, and returns it; what the last look threw is the cause of the error when there never is. */
export async function waitFor<T>(
  clock: Clock,
  what: string,
  look: () => T | Promise<T>,
  timeoutMs = 10_000,
): Promise<Found<T>> {
  const endsMs = clock.monotonicMs() + timeoutMs;
  for (;;) {
    let cause: unknown;
    try {
      const found = await look();
      if (found !== undefined && found !== false && found !== null) return found as Found<T>;
    } catch (error) {
      cause = error;
    }
    if (clock.monotonicMs() > endsMs)
      throw new PlatformError('timeout', `${what}: not within ${timeoutMs} ms`, { cause });
    await clock.sleep(POLL_MS);
  }
}
