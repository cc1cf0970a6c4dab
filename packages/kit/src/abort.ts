/** The error of an aborted signal. */
import { PlatformError } from '@dsec/contract';

/**
 * The PlatformError that an aborted signal stands for: its own reason when that is one (a deadline's `timeout`), else `cancelled`.
 */
export function abortError(signal: AbortSignal): PlatformError {
  const reason: unknown = signal.reason;
  if (PlatformError.is(reason)) return reason;
  return new PlatformError('cancelled', 'the operation was cancelled', { cause: reason });
}

/** @throws PlatformError when the signal is aborted */
export function throwIfAborted(signal: AbortSignal | undefined): void {
  if (signal?.aborted === true) throw abortError(signal);
}

/**
 * `promise`, or the signal's error if that comes first. What `promise` does later is ignored, so it must not own anything that needs release.
 */
export function orAborted<T>(promise: Promise<T>, signal: AbortSignal | undefined): Promise<T> {
  if (signal === undefined) return promise;
  if (signal.aborted) {
    promise.catch(() => undefined);
    return Promise.reject(abortError(signal));
  }
  return new Promise<T>((resolve, reject) => {
    const onAbort = (): void => reject(abortError(signal));
    signal.addEventListener('abort', onAbort, { once: true });
    promise.then(
      (value) => {
        signal.removeEventListener('abort', onAbort);
        resolve(value);
      },
      (error: unknown) => {
        signal.removeEventListener('abort', onAbort);
        reject(
          error instanceof Error
            ? error
            : new PlatformError('internal', 'something that is no error was thrown', { cause: error }),
        );
      },
    );
  });
}
