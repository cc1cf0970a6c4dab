/** One piece of what a command wrote. */
export type OutputEvent =
  | { readonly kind: 'stdout' | 'stderr'; readonly data: Uint8Array<ArrayBuffer> }
  /** Bytes `fromByte` up to `toByte` of the stream were written, but are no longer held: the reader was too slow. */
  | { readonly kind: 'gap'; readonly stream: 'stdout' | 'stderr'; readonly fromByte: number; readonly toByte: number };

export const streamOfChannel = (channel: 1 | 2): 'stdout' | 'stderr' => (channel === 1 ? 'stdout' : 'stderr');

/** One line of what a command wrote, without its line end. */
export interface OutputLine {
  readonly stream: 'stdout' | 'stderr';
  readonly line: string;
}

/** A longer line is handed out in parts. */
const MAX_LINE_CHARS = 1_048_576;

/** Lines of both streams, in the order in which they became whole; what is not UTF-8 shows as U+FFFD. */
export async function* linesOf(events: AsyncIterable<OutputEvent>): AsyncGenerator<OutputLine, void, undefined> {
  const open = { stdout: new LineAssembler(), stderr: new LineAssembler() };
  for await (const event of events) {
    if (event.kind === 'gap') continue;
    for (const line of open[event.kind].push(event.data)) yield { stream: event.kind, line };
  }
  for (const stream of ['stdout', 'stderr'] as const) {
    const line = open[stream].end();
    if (line !== undefined) yield { stream, line };
  }
}

/** Cuts one stream into lines. */
class LineAssembler {
  readonly #decoder = new TextDecoder('utf-8', { ignoreBOM: true });
  #rest = '';

  *push(data: Uint8Array): Generator<string, void, undefined> {
    // Only what is new is searched: a long line may come a byte at a time.
    const text = this.#decoder.decode(data, { stream: true });
    let at = 0;
    for (;;) {
      const end = text.indexOf('\n', at);
      if (end === -1) break;
      const line = this.#rest + text.slice(at, end);
      this.#rest = '';
      yield line.endsWith('\r') ? line.slice(0, -1) : line;
      at = end + 1;
    }
    this.#rest += text.slice(at);
    if (this.#rest.length > MAX_LINE_CHARS) {
      yield this.#rest;
      this.#rest = '';
    }
  }

  end(): string | undefined {
    const line = this.#rest + this.#decoder.decode();
    this.#rest = '';
    return line === '' ? undefined : line;
  }
}
