/** A stream of the edge as a socket: DATA both ways, END each way. */
import { Duplex } from 'node:stream';
import { PlatformError } from '@dsec/contract';
import type { WireStream } from '@dsec/native-link';

type Callback = (error?: Error | null) => void;

const asError = (error: unknown): Error =>
  error instanceof Error
    ? error
    : new PlatformError('internal', 'something that is no error was thrown', { cause: error });

export class WireDuplex extends Duplex {
  readonly #stream: WireStream;
  #isReading = false;

  constructor(stream: WireStream) {
    super({ allowHalfOpen: true });
    this.#stream = stream;
  }

  override _read(): void {
    if (this.#isReading) return;
    this.#isReading = true;
    void this.#readOn();
  }

  override _write(chunk: Buffer, _encoding: BufferEncoding, callback: Callback): void {
    void this.#writeOn(chunk, callback);
  }

  override _final(callback: Callback): void {
    this.#stream.end();
    callback();
  }

  override _destroy(error: Error | null, callback: Callback): void {
    this.#stream.reset();
    callback(error);
  }

  async #writeOn(chunk: Buffer, callback: Callback): Promise<void> {
    let failure: Error | undefined;
    try {
      await this.#stream.write(chunk);
    } catch (error) {
      failure = asError(error);
    }
    callback(failure);
  }

  /** Takes items until nobody wants more. */
  async #readOn(): Promise<void> {
    try {
      for (;;) {
        const item = await this.#stream.next();
        if (item.done === true || item.value.type === 'end') {
          this.push(null);
          if (item.done === true) return;
          continue;
        }
        if (item.value.type !== 'data')
          throw new PlatformError('protocol_error', 'the port sent something that is no data');
        if (!this.push(item.value.bytes)) break;
      }
    } catch (error) {
      if (!this.destroyed) this.destroy(asError(error));
      return;
    }
    this.#isReading = false;
  }
}
