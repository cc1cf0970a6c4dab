/** The owner of background loops and of what must be released: closed in reverse order, each step bounded in time. */
import { PlatformError } from '@dsec/contract';
import type { Clock } from './clock.ts';

export interface ScopeOptions {
  readonly clock: Clock;
  /** Most time that one step of closing may take before the next begins. Default 10,000. */
  readonly stepTimeoutMs?: number;
  /** A background loop failed although the scope is open. The scope stays open; the owner decides. */
  readonly onFailure?: (name: string, error: unknown) => void;
}

const DEFAULT_STEP_TIMEOUT_MS = 10_000;

type Release = () => void | PromiseLike<void>;

/** Owns background work and resources. */
export class Scope implements AsyncDisposable {
  readonly #clock: Clock;
  readonly #stepTimeoutMs: number;
  readonly #onFailure: (name: string, error: unknown) => void;
  readonly #controller = new AbortController();
  readonly #steps: { readonly name: string; readonly release: Release }[] = [];
  #closing: Promise<void> | undefined;

  constructor(options: ScopeOptions) {
    this.#clock = options.clock;
    this.#stepTimeoutMs = options.stepTimeoutMs ?? DEFAULT_STEP_TIMEOUT_MS;
    this.#onFailure = options.onFailure ?? (() => undefined);
  }

  /** Aborts when the scope begins to close. */
  get signal(): AbortSignal {
    return this.#controller.signal;
  }

  get isClosing(): boolean {
    return this.#closing !== undefined;
  }

  /** Registers a release; releases run in reverse order. */
  defer(name: string, release: Release): void {
    if (this.#closing !== undefined)
      throw new PlatformError('cancelled', `the scope is closing: ${name} comes too late`);
    this.#steps.push({ name, release });
  }

  /** Takes ownership of a disposable and gives it back. */
  own<T extends AsyncDisposable | Disposable>(name: string, resource: T): T {
    this.defer(name, () =>
      Symbol.asyncDispose in resource ? resource[Symbol.asyncDispose]() : resource[Symbol.dispose](),
    );
    return resource;
  }

  /**
   * Runs a background loop that ends when its signal aborts. Closing waits for it. A failure while the scope is open goes to `onFailure`.
   */
  run(name: string, loop: (signal: AbortSignal) => Promise<void>): void {
    const running = (async () => {
      try {
        await loop(this.signal);
      } catch (error) {
        if (!this.signal.aborted) this.#onFailure(name, error);
      }
    })();
    this.defer(name, () => running);
  }

  /**
   * Releases everything, whatever fails on the way. Idempotent.
   * @throws AggregateError with every failure, after the last step
   */
  close(): Promise<void> {
    this.#closing ??= this.#close();
    return this.#closing;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  async #close(): Promise<void> {
    this.#controller.abort(new PlatformError('cancelled', 'the process is shutting down'));
    const failures: unknown[] = [];
    for (const step of this.#steps.toReversed()) {
      try {
        await this.#bounded(step.name, step.release);
      } catch (error) {
        failures.push(error);
      }
    }
    this.#steps.length = 0;
    if (failures.length > 0) throw new AggregateError(failures, 'closing left something behind');
  }

  async #bounded(name: string, release: Release): Promise<void> {
    const { promise, resolve, reject } = Promise.withResolvers<undefined>();
    const timer = this.#clock.setTimer(this.#stepTimeoutMs, () => {
      reject(new PlatformError('timeout', `${name} was not released within ${this.#stepTimeoutMs} ms`));
    });
    try {
      await Promise.race([Promise.resolve(release()), promise]);
    } finally {
      timer.cancel();
      resolve(undefined);
    }
  }
}
