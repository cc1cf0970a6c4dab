import type { OutputEvent } from './output-event.ts';

/** Output that waits for whoever iterates over a command; when it is full, the connection is not read. */
const QUEUE_BYTES = 1_048_576;
/** What an event takes beside its bytes: gaps have none, and a command may write one byte at a time. */
const EVENT_BYTES = 64;

const costOf = (event: OutputEvent): number => EVENT_BYTES + (event.kind === 'gap' ? 0 : event.data.length);

/** Events between the connection and an iterator: bounded in bytes, and closable from either side. */
export class EventQueue {
  #events: OutputEvent[] = [];
  #bytes = 0;
  #isOpen = true;
  #end: { readonly error: unknown } | 'done' | undefined;
  #wakeReader: (() => void) | undefined;
  #wakeWriter: (() => void) | undefined;

  push(event: OutputEvent): void {
    if (!this.#isOpen) return;
    this.#events.push(event);
    this.#bytes += costOf(event);
    this.#wake();
  }

  /** Resolves when there is room; undefined: there is. */
  ready(): Promise<void> | undefined {
    if (!this.#isOpen || this.#bytes < QUEUE_BYTES) return undefined;
    return new Promise((resolve) => {
      this.#wakeWriter = resolve;
    });
  }

  /** Nothing more comes: the command has ended, or following it failed. */
  finish(end: { readonly error: unknown } | 'done'): void {
    this.#end ??= end;
    this.#wake();
  }

  /** Nobody reads any more: what comes is not kept, and holds nothing back. */
  close(): void {
    this.#isOpen = false;
    this.#events = [];
    this.#bytes = 0;
    this.#wakeWriter?.();
    this.#wakeWriter = undefined;
  }

  async *read(): AsyncGenerator<OutputEvent, void, undefined> {
    try {
      for (;;) {
        const events = this.#events;
        this.#events = [];
        for (const event of events) {
          yield event;
          this.#bytes -= costOf(event);
          if (this.#bytes < QUEUE_BYTES) {
            this.#wakeWriter?.();
            this.#wakeWriter = undefined;
          }
        }
        if (this.#events.length > 0) continue;
        if (this.#end === 'done') return;
        if (this.#end !== undefined) throw this.#end.error;
        await new Promise<void>((resolve) => {
          this.#wakeReader = resolve;
        });
      }
    } finally {
      this.close();
    }
  }

  #wake(): void {
    this.#wakeReader?.();
    this.#wakeReader = undefined;
  }
}
