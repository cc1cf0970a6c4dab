/** Messages of one form that come as things happen, until the stream is reset. */
import { PlatformError } from '@dsec/contract';

import type { WireStream } from './wire/stream-api.ts';

export class MessageStream<T> implements AsyncIterableIterator<T, undefined> {
  readonly #stream: WireStream;
  readonly #parse: (value: object, method: string) => T;

  /** `parse` throws PlatformError `protocol_error` for what does not have the form. */
  constructor(stream: WireStream, parse: (value: object, method: string) => T) {
    this.#stream = stream;
    this.#parse = parse;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  async next(): Promise<IteratorResult<T, undefined>> {
    const { done, value } = await this.#stream.next();
    if (done === true) return { done: true, value: undefined };
    try {
      if (value.type !== 'message')
        throw new PlatformError('protocol_error', `${this.#stream.method} sends messages alone.`);
      return { done: false, value: this.#parse(value.value, this.#stream.method) };
    } catch (error) {
      if (PlatformError.is(error)) this.#stream.reset(error);
      throw error;
    }
  }

  /** Idempotent. */
  reset(): void {
    this.#stream.reset();
  }
}
