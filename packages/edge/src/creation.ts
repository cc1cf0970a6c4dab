/**
 * A create under way, and those who wait for it: one caller, or several that came with the same idempotency key. When the last of them
 * loses interest, the create is cancelled.
 */
import type { SandboxInfo } from '@dsec/contract';
import { orAborted } from '@dsec/kit';

export class Creation {
  readonly #result = Promise.withResolvers<SandboxInfo>();
  readonly #onAbandoned: () => void;
  #interested = 0;
  #isSettled = false;

  constructor(onAbandoned: () => void) {
    this.#onAbandoned = onAbandoned;
    // A create that nobody waits for any more may fail unseen: its own log line tells of it.
    this.#result.promise.catch(() => undefined);
  }

  /**
   * Waits for its end.
   * @throws PlatformError why it failed, or the error of the signal
   */
  async join(signal?: AbortSignal): Promise<SandboxInfo> {
    this.#interested++;
    try {
      return await orAborted(this.#result.promise, signal);
    } finally {
      this.#interested--;
      if (this.#interested === 0 && !this.#isSettled) this.#onAbandoned();
    }
  }

  succeed(info: SandboxInfo): void {
    this.#isSettled = true;
    this.#result.resolve(info);
  }

  fail(error: Error): void {
    this.#isSettled = true;
    this.#result.reject(error);
  }
}
