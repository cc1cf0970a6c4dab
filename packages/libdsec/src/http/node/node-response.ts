import { PlatformError } from '@dsec/contract';
import { Deferred } from '../../deferred.ts';
import type { Cancellation } from '../cancellation.ts';
import type { TransportResponse } from '../transport.ts';
import type { ResponseHead } from './response-reader.ts';

type Chunk = Uint8Array<ArrayBuffer>;
type Take = (chunk: Chunk) => Promise<void> | undefined;

/** Where the body of an answer comes from. */
export interface BodySource {
  pause(): void;
  resume(): void;
  destroy(reason: unknown): void;
}

/** An answer whose body is pushed in as it arrives, and held back while nobody takes it. */
export class NodeResponse implements TransportResponse {
  readonly status: number;
  readonly #head: ResponseHead;
  readonly #url: string;
  readonly #cancellation: Cancellation | undefined;
  /** Until the body is here to its end. */
  #source: BodySource | undefined;
  /** Came while nobody took it: at most what two reads brought. */
  #waiting: Chunk[] = [];
  #take: Take | undefined;
  /** Takes nothing before its last promise resolves. */
  #isTaking = false;
  #failure: Error | undefined;
  #over: Deferred<void> | undefined;

  constructor(head: ResponseHead, url: string, source: BodySource, cancellation: Cancellation | undefined) {
    this.status = head.status;
    this.#head = head;
    this.#url = url;
    this.#source = source;
    this.#cancellation = cancellation;
  }

  header(name: string): string | undefined {
    return this.#head.header(name.toLowerCase());
  }

  /** Its bytes are the receiver's. */
  onBody(chunk: Chunk): void {
    if (this.#take === undefined || this.#isTaking || this.#waiting.length > 0) {
      // A small answer is here before anybody takes it, and holding it back would only delay its end.
      if (this.#waiting.length > 0 || this.#isTaking) this.#source?.pause();
      this.#waiting.push(chunk);
      return;
    }
    this.#give(chunk);
    if (this.#isTaking) this.#source?.pause();
  }

  onEnd(): void {
    this.#source = undefined;
    this.#settle();
  }

  onFailure(error: Error): void {
    this.#source = undefined;
    this.#failure ??= error;
    // What came before is still taken.
    this.#settle();
  }

  pump(take: Take): Promise<void> {
    this.#take = take;
    this.#over = new Deferred<void>();
    this.#drain();
    return this.#over.promise;
  }

  async text(maxBytes: number): Promise<string> {
    const chunks: Chunk[] = [];
    let size = 0;
    await this.pump((chunk) => {
      size += chunk.length;
      if (size > maxBytes)
        throw new PlatformError('protocol_error', `the answer of ${this.#url} is larger than ${maxBytes} bytes`);
      chunks.push(chunk);
      return undefined;
    });
    return Buffer.concat(chunks).toString();
  }

  get body(): AsyncIterable<Chunk> {
    return this.#read();
  }

  cancel(): void {
    this.#source?.destroy(new PlatformError('cancelled', `the answer of ${this.#url} was given up`));
  }

  async *#read(): AsyncGenerator<Chunk, void, undefined> {
    let arrived: Deferred<Chunk | undefined> | undefined = new Deferred();
    let taken = new Deferred<void>();
    const pumped = this.pump((chunk) => {
      arrived?.resolve(chunk);
      return taken.promise;
    });
    pumped.then(
      () => arrived?.resolve(undefined),
      (error: unknown) => arrived?.reject(error),
    );
    try {
      for (;;) {
        const chunk = await arrived.promise;
        arrived = undefined;
        if (chunk === undefined) return;
        yield chunk;
        arrived = new Deferred();
        const before = taken;
        taken = new Deferred();
        before.resolve();
      }
    } finally {
      this.cancel();
      taken.resolve();
    }
  }

  #give(chunk: Chunk): void {
    let taken: Promise<void> | undefined;
    try {
      taken = this.#take?.(chunk);
    } catch (error) {
      this.#fail(error as Error);
      return;
    }
    if (taken === undefined) return;
    this.#isTaking = true;
    taken.then(
      () => {
        this.#isTaking = false;
        this.#drain();
      },
      (error: unknown) => {
        this.#isTaking = false;
        this.#fail(error as Error);
      },
    );
  }

  #drain(): void {
    while (!this.#isTaking) {
      const chunk = this.#waiting.shift();
      if (chunk === undefined) break;
      this.#give(chunk);
    }
    if (this.#isTaking) return;
    this.#source?.resume();
    this.#settle();
  }

  /** The receiver failed: nothing more is for it. */
  #fail(error: Error): void {
    this.#failure = error;
    this.#waiting = [];
    this.cancel();
    this.#source = undefined;
    this.#settle();
  }

  #settle(): void {
    if (this.#source !== undefined || this.#isTaking || this.#waiting.length > 0 || this.#over === undefined) return;
    if (this.#failure === undefined) this.#over.resolve();
    else this.#over.reject(this.#cancellation?.isCancelled === true ? this.#cancellation.reason : this.#failure);
  }
}
