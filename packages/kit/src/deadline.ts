/** One signal out of a caller's signal and a time limit. */
import { PlatformError } from '@dsec/contract';
import { abortError } from './abort.ts';
import type { Clock } from './clock.ts';

export interface DeadlineOptions {
  readonly clock: Clock;
  /** What the time limit is for, for the message: "creating sandbox s…". */
  readonly what: string;
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
}

/** A signal that ends with the caller's signal or after the time limit. Dispose it when the operation is over. */
export class Deadline implements Disposable {
  readonly signal: AbortSignal;
  readonly #release: () => void;

  constructor(options: DeadlineOptions) {
    const controller = new AbortController();
    this.signal = controller.signal;
    const outer = options.signal;
    const onAbort = (): void => {
      if (outer !== undefined) controller.abort(abortError(outer));
    };
    if (outer?.aborted === true) onAbort();
    else outer?.addEventListener('abort', onAbort, { once: true });
    const { timeoutMs } = options;
    const timer =
      timeoutMs === undefined || controller.signal.aborted
        ? undefined
        : options.clock.setTimer(timeoutMs, () => {
            controller.abort(
              new PlatformError('timeout', `${options.what} did not end within ${timeoutMs} ms`, {
                details: { timeoutMs },
              }),
            );
          });
    this.#release = () => {
      timer?.cancel();
      outer?.removeEventListener('abort', onAbort);
    };
  }

  /** @throws PlatformError `timeout` or `cancelled` when it is over */
  check(): void {
    if (this.signal.aborted) throw abortError(this.signal);
  }

  [Symbol.dispose](): void {
    this.#release();
  }
}

/** Runs `operation` under a deadline; it must heed the signal. */
export async function withDeadline<T>(
  options: DeadlineOptions,
  operation: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  using deadline = new Deadline(options);
  deadline.check();
  return await operation(deadline.signal);
}
