import type { ExecResult } from './exec-result.ts';
import type { Exec } from './exec.ts';
import type { CallOptions } from '../http/deadline.ts';
import type { ExecOptions } from './exec-options.ts';
import type { Signal } from './signals.ts';

/** How a terminal is opened. */
export interface PtyOptions extends Omit<ExecOptions, 'stdin' | 'input' | 'login'> {
  /** @default 24 */
  readonly rows?: number;
  /** @default 80 */
  readonly cols?: number;
  /** What runs in it. @default a login shell */
  readonly argv?: readonly string[];
}

/** What a terminal runs when it is told nothing: the best shell that the environment has. */
export const LOGIN_SHELL = 'if [ -x /bin/bash ]; then exec /bin/bash -l; else exec /bin/sh -l; fi';

/**
 * A terminal in a sandbox. Iterate over it for what appears on it; await `exited` for how it ended. As with every command, a
 * connection that breaks is made again and nothing of the output is lost.
 */
export class Pty implements AsyncIterable<Uint8Array<ArrayBuffer>>, AsyncDisposable {
  readonly #exec: Exec;
  #waiting: Uint8Array<ArrayBuffer>[] = [];
  #writing: Promise<void> | undefined;

  /** @internal Made by `sandbox.pty`. */
  constructor(exec: Exec) {
    this.#exec = exec;
  }

  /** Resolves when the program runs; its id serves to attach to the terminal again. */
  started(): Promise<{ readonly execId: string; readonly pid: number }> {
    return this.#exec.started();
  }

  /** Resolves when what runs in the terminal has ended. Rejects as an exec does. */
  exited(): Promise<ExecResult> {
    return Promise.resolve(this.#exec);
  }

  /** Types. Resolves when the terminal has taken it. What is typed while an earlier part is on its way goes together. */
  write(data: string | Uint8Array<ArrayBuffer>): Promise<void> {
    this.#waiting.push(typeof data === 'string' ? new TextEncoder().encode(data) : data);
    this.#writing ??= this.#flush().finally(() => {
      this.#writing = undefined;
    });
    return this.#writing;
  }

  async resize(size: { readonly rows: number; readonly cols: number }, options: CallOptions = {}): Promise<void> {
    await this.#exec.resize(size, options);
  }

  /** As `Exec.kill`. @default 'SIGHUP', what closing a terminal sends */
  async kill(signal: Signal = 'SIGHUP', options: CallOptions = {}): Promise<boolean> {
    return this.#exec.kill(signal, options);
  }

  /** Leaves it running; attach again by `sandbox.attachPty(execId)`. */
  async detach(): Promise<{ readonly execId: string }> {
    return this.#exec.detach();
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array<ArrayBuffer>, void, undefined> {
    for await (const event of this.#exec) if (event.kind !== 'gap') yield event.data;
  }

  /** Kills what runs in it. */
  async [Symbol.asyncDispose](): Promise<void> {
    await this.#exec.kill('SIGKILL');
  }

  async #flush(): Promise<void> {
    // On its own turn, so that what is typed at once goes at once.
    await Promise.resolve();
    while (this.#waiting.length > 0) {
      const parts = this.#waiting;
      this.#waiting = [];
      await this.#exec.stdin.write(joinBytes(parts));
    }
  }
}

function joinBytes(parts: readonly Uint8Array<ArrayBuffer>[]): Uint8Array<ArrayBuffer> {
  const whole = new Uint8Array(parts.reduce((size, part) => size + part.length, 0));
  let at = 0;
  for (const part of parts) {
    whole.set(part, at);
    at += part.length;
  }
  return whole;
}
