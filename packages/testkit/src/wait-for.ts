import { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';

const POLL_MS = 20;

/** Asks until the answer is neither false nor undefined; the last error of the question is the cause when it never is. */
export async function waitFor<T>(
  clock: Clock,
  what: string,
  ask: () => Promise<T | false | undefined> | T | false | undefined,
  timeoutMs = 10_000,
): Promise<T> {
  const endsMs = clock.monotonicMs() + timeoutMs;
  for (;;) {
    let cause: unknown;
    try {
      const answer = await ask();
      if (answer !== undefined && answer !== false) return answer;
    } catch (error) {
      cause = error;
    }
    if (clock.monotonicMs() > endsMs)
      throw new PlatformError('timeout', `${what}: not within ${timeoutMs} ms`, { cause });
    await clock.sleep(POLL_MS);
  }
}
