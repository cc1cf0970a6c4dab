/**
 * Tells those who wait to stop, and why: what AbortController does, inside the SDK, where each call has several and the
 * platform's own cost more than the rest of a small request.
 */
export class Cancellation {
  #reason: unknown;
  #isCancelled = false;
  #listeners: (() => void)[] | undefined;

  get isCancelled(): boolean {
    return this.#isCancelled;
  }

  get reason(): unknown {
    return this.#reason;
  }

  /** The first reason counts. */
  cancel(reason: unknown): void {
    if (this.#isCancelled) return;
    this.#isCancelled = true;
    this.#reason = reason;
    const listeners = this.#listeners ?? [];
    this.#listeners = undefined;
    for (const listener of listeners) listener();
  }

  /** Calls `listener` once, at once when it is cancelled already. Returns how to take the listener back. */
  onCancel(listener: () => void): () => void {
    if (this.#isCancelled) {
      listener();
      return () => undefined;
    }
    const listeners = (this.#listeners ??= []);
    listeners.push(listener);
    return () => {
      const at = listeners.indexOf(listener);
      if (at !== -1) listeners.splice(at, 1);
    };
  }

  throwIfCancelled(): void {
    if (this.#isCancelled) throw this.#reason;
  }

  /** The same for whoever knows only the platform's own. */
  toAbortSignal(): AbortSignal {
    const controller = new AbortController();
    this.onCancel(() => controller.abort(this.#reason));
    return controller.signal;
  }
}

/** Calls `listener` when the caller's signal is aborted, at once when it is already. Returns how to take it back. */
export function onAbort(signal: AbortSignal | undefined, listener: () => void): () => void {
  if (signal === undefined) return () => undefined;
  if (signal.aborted) {
    listener();
    return () => undefined;
  }
  signal.addEventListener('abort', listener, { once: true });
  return () => signal.removeEventListener('abort', listener);
}
