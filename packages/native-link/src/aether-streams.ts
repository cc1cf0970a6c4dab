/** The streams of aether as their users see them: typed items, checked one by one. */
import { type ExecStatus, type FileEntry, PlatformError } from '@dsec/contract';

import { aetherAnswer, type ExecStarted, type OutputGap, type WatchMessage } from './aether-answers.ts';
import type { Answer } from './answer.ts';
import type { WireItem, WireStream } from './wire/stream-api.ts';

const unexpected = (method: string, what: string): PlatformError =>
  new PlatformError('protocol_error', `${method}: ${what} is not what the protocol has there.`);

/** What a stream and its owner have in common: the stream ends when something in it is wrong. */
abstract class CheckedStream<T> implements AsyncIterableIterator<T, undefined> {
  protected readonly stream: WireStream;

  constructor(stream: WireStream) {
    this.stream = stream;
  }

  [Symbol.asyncIterator](): this {
    return this;
  }

  /** The next item; throws the error that ended the stream. */
  async next(): Promise<IteratorResult<T, undefined>> {
    for (;;) {
      const { done, value } = await this.stream.next();
      if (done === true) {
        this.atEnd();
        return { done: true, value: undefined };
      }
      const item = this.guard(() => this.convert(value));
      if (item !== undefined) return { done: false, value: item };
    }
  }

  /** Loses interest. Idempotent. */
  reset(): void {
    this.stream.reset();
  }

  /** The item for what came in; undefined when it is nothing for the owner. */
  protected abstract convert(item: WireItem): T | undefined;

  protected atEnd(): void {
    // Most streams have nothing more to check.
  }

  protected guard<R>(check: () => R): R {
    try {
      return check();
    } catch (error) {
      if (PlatformError.is(error)) this.stream.reset(error);
      throw error;
    }
  }
}

export type ExecItem =
  | ({ readonly type: 'started' } & ExecStarted)
  | { readonly type: 'output'; readonly channel: 1 | 2; readonly bytes: Buffer }
  | ({ readonly type: 'gap' } & OutputGap);

/** A command that runs: its output as it comes, its stdin where that is open. */
export class ExecStream extends CheckedStream<ExecItem> {
  readonly execId: string;

  constructor(stream: WireStream, execId: string) {
    super(stream);
    this.execId = execId;
  }

  /** How it ended; rejects with the error that ended the stream. Output that came before waits to be iterated. */
  get result(): Promise<ExecStatus> {
    return this.stream.result.then((value) => {
      const status = aetherAnswer.exec(value, this.stream.method);
      if (status.execId !== this.execId) throw unexpected(this.stream.method, 'the status of another exec');
      return status;
    });
  }

  /** Sends bytes to stdin. */
  write(bytes: Uint8Array): Promise<void> {
    return this.stream.write(bytes);
  }

  /** Closes stdin. */
  end(): void {
    this.stream.end();
  }

  protected override convert(item: WireItem): ExecItem | undefined {
    const { method } = this.stream;
    switch (item.type) {
      case 'data':
        if (item.channel !== 1 && item.channel !== 2) throw unexpected(method, `channel ${item.channel}`);
        return { type: 'output', channel: item.channel, bytes: item.bytes };
      case 'message':
        if ('gap' in item.value) return { type: 'gap', ...aetherAnswer.gap(item.value, method).gap };
        return { type: 'started', ...this.#started(item) };
      case 'end':
        return undefined;
    }
  }

  #started(item: Extract<WireItem, { type: 'message' }>): ExecStarted {
    const { method } = this.stream;
    const { started } = aetherAnswer.started(item.value, method);
    if (started.execId !== this.execId) throw unexpected(method, 'the start of another exec');
    return started;
  }
}

/** Bytes that come out of a sandbox, and the result behind them. */
export class Download<R> extends CheckedStream<Buffer> {
  readonly #answer: Answer<R>;
  #bytes = 0;

  constructor(stream: WireStream, check: Answer<R>) {
    super(stream);
    this.#answer = check;
  }

  /** Bytes that were taken so far. */
  get bytesTaken(): number {
    return this.#bytes;
  }

  get result(): Promise<R> {
    return this.stream.result.then((value) => this.#answer(value, this.stream.method));
  }

  protected override convert(item: WireItem): Buffer | undefined {
    if (item.type === 'end') return undefined;
    if (item.type !== 'data') throw unexpected(this.stream.method, 'a message');
    this.#bytes += item.bytes.length;
    return item.bytes;
  }
}

/** A file that is read: what it is, then its bytes. */
export class FileReading extends Download<{ readonly bytes: number }> {
  readonly entry: FileEntry;

  constructor(stream: WireStream, entry: FileEntry) {
    super(stream, aetherAnswer.bytes);
    this.entry = entry;
  }

  static async begin(stream: WireStream): Promise<FileReading> {
    const { value } = await stream.next();
    try {
      if (value?.type !== 'message') throw unexpected(stream.method, 'anything before the entry');
      return new FileReading(stream, aetherAnswer.entryMessage(value.value, stream.method).entry);
    } catch (error) {
      if (PlatformError.is(error)) stream.reset(error);
      throw error;
    }
  }

  /** Reads to the end, and makes sure that nothing is missing. */
  override async next(): Promise<IteratorResult<Buffer, undefined>> {
    const next = await super.next();
    if (next.done === true && (await this.result).bytes !== this.bytesTaken) {
      throw unexpected(this.stream.method, 'another number of bytes');
    }
    return next;
  }
}

/** Bytes that go into a sandbox. */
export class Upload<R> {
  readonly #stream: WireStream;
  readonly #answer: Answer<R>;

  constructor(stream: WireStream, check: Answer<R>) {
    this.#stream = stream;
    this.#answer = check;
  }

  write(bytes: Uint8Array): Promise<void> {
    return this.#stream.write(bytes);
  }

  end(): void {
    this.#stream.end();
  }

  reset(): void {
    this.#stream.reset();
  }

  get result(): Promise<R> {
    return this.#stream.result.then((value) => this.#answer(value, this.#stream.method));
  }
}

/** A listing in batches. */
export class FileListing extends CheckedStream<readonly FileEntry[]> {
  get result(): Promise<{ readonly count: number; readonly truncated: boolean }> {
    return this.stream.result.then((value) => aetherAnswer.listed(value, this.stream.method));
  }

  protected override convert(item: WireItem): readonly FileEntry[] | undefined {
    if (item.type === 'end') return undefined;
    if (item.type !== 'message') throw unexpected(this.stream.method, 'data');
    return aetherAnswer.entriesMessage(item.value, this.stream.method).entries;
  }
}

/** What happens to files, until it is reset. */
export class FileWatch extends CheckedStream<WatchMessage> {
  protected override convert(item: WireItem): WatchMessage | undefined {
    if (item.type === 'end') return undefined;
    if (item.type !== 'message') throw unexpected(this.stream.method, 'data');
    return aetherAnswer.watch(item.value, this.stream.method);
  }
}
