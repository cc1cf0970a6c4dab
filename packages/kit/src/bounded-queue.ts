/** A queue of bounded length between one producer and one consumer. */
import { PlatformError } from '@dsec/contract';
import { abortError } from './abort.ts';

/** Wakes whoever waits. */
type Waiter = () => void;

/** Holds at most `capacity` items; `push` waits for room, `tryPush` refuses. Iterating takes items until the queue is closed. */
export class BoundedQueue<T> implements AsyncIterable<T> {
  readonly #capacity: number;
  readonly #items: T[] = [];
  readonly #putters: Waiter[] = [];
  #taker: Waiter | undefined;
  #closed = false;
  #error: Error | undefined;

  constructor(capacity: number) {
    if (!Number.isInteger(capacity) || capacity < 1)
      throw new PlatformError('internal', 'a queue needs a capacity of at least 1');
    this.#capacity = capacity;
  }

  get length(): number {
    return this.#items.length;
  }

  /** False when the queue is full or closed. */
  tryPush(item: T): boolean {
    if (this.#closed || this.#items.length >= this.#capacity) return false;
    this.#items.push(item);
    this.#wakeTaker();
    return true;
  }

  /**
   * Waits for room.
   * @throws PlatformError `cancelled` when the queue is closed or the signal aborts
   */
  async push(item: T, signal?: AbortSignal): Promise<void> {
    while (!this.tryPush(item)) {
      if (this.#closed) throw this.#error ?? new PlatformError('cancelled', 'the queue is closed');
      await this.#wait(
        (waiter) => void this.#putters.push(waiter),
        (waiter) => this.#forget(waiter),
        signal,
      );
    }
  }

  /** No more items; those inside are still delivered, then `error` if one is given. Idempotent. */
  close(error?: Error): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#error = error;
    this.#wakeTaker();
    for (const putter of this.#putters.splice(0)) putter();
  }

  /** The next item; undefined when the queue is closed and empty. One consumer at a time. */
  async shift(signal?: AbortSignal): Promise<T | undefined> {
    while (this.#items.length === 0) {
      if (this.#closed) {
        if (this.#error !== undefined) throw this.#error;
        return undefined;
      }
      if (this.#taker !== undefined) throw new PlatformError('internal', 'a queue has one consumer');
      await this.#wait(
        (waiter) => {
          this.#taker = waiter;
        },
        () => {
          this.#taker = undefined;
        },
        signal,
      );
    }
    const item = this.#items.shift();
    this.#putters.shift()?.();
    return item;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for (;;) {
      const item = await this.shift();
      if (item === undefined) return;
      yield item;
    }
  }

  #wakeTaker(): void {
    const taker = this.#taker;
    this.#taker = undefined;
    taker?.();
  }

  #forget(waiter: Waiter): void {
    const index = this.#putters.indexOf(waiter);
    if (index >= 0) this.#putters.splice(index, 1);
  }

  #wait(
    register: (waiter: Waiter) => void,
    forget: (waiter: Waiter) => void,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    if (signal?.aborted === true) return Promise.reject(abortError(signal));
    return new Promise((resolve, reject) => {
      const onAbort = (): void => {
        forget(waiter);
        if (signal !== undefined) reject(abortError(signal));
      };
      const waiter: Waiter = () => {
        signal?.removeEventListener('abort', onAbort);
        resolve();
      };
      signal?.addEventListener('abort', onAbort, { once: true });
      register(waiter);
    });
  }
}
