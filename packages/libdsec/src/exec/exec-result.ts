import type { ExecStatus } from '@dsec/contract';
import type { OutputRecord } from './output-record.ts';

/** A command that has ended. */
export class ExecResult {
  /** What the sandbox says of it: times, counts, why it ended. */
  readonly status: ExecStatus;
  readonly #records: { readonly stdout: OutputRecord; readonly stderr: OutputRecord };

  constructor(status: ExecStatus, records: { readonly stdout: OutputRecord; readonly stderr: OutputRecord }) {
    this.status = status;
    this.#records = records;
  }

  get execId(): string {
    return this.status.execId;
  }

  /** The exit code; 128 + the signal when a signal ended it, as a shell has it. */
  get exitCode(): number {
    return this.status.exitCode ?? 128 + (this.status.signal ?? 0);
  }

  /** The signal that ended it (its number on Linux); undefined when it exited. */
  get signal(): number | undefined {
    return this.status.signal;
  }

  /** `timeoutMs` ended it. */
  get isTimedOut(): boolean {
    return this.status.timedOut;
  }

  /** The memory limit of the sandbox ended it, or a process of it. */
  get isOomKilled(): boolean {
    return this.status.oomKilled;
  }

  /** From start to end in the sandbox, milliseconds. */
  get durationMs(): number {
    return this.status.durationMs ?? 0;
  }

  /** What it wrote, as UTF-8; what is not UTF-8 shows as U+FFFD. See `stdoutDropped`. */
  get stdout(): string {
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.#records.stdout.bytes());
  }

  get stderr(): string {
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(this.#records.stderr.bytes());
  }

  /** What it wrote, byte for byte. */
  get stdoutBytes(): Uint8Array<ArrayBuffer> {
    return this.#records.stdout.bytes();
  }

  get stderrBytes(): Uint8Array<ArrayBuffer> {
    return this.#records.stderr.bytes();
  }

  /** Bytes in the middle of the output that are not in `stdout`: more was written than `maxOutputBytes`, or than the sandbox holds. */
  get stdoutDropped(): number {
    return this.#records.stdout.droppedBytes;
  }

  get stderrDropped(): number {
    return this.#records.stderr.droppedBytes;
  }
}
