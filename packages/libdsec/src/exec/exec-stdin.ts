import { PlatformError } from '@dsec/contract';
import { segment, type Api } from '../http/api.ts';
import type { CallOptions } from '../http/deadline.ts';
import { asBytes, type ByteSource } from '../http/byte-source.ts';

/** Writes to the stdin of a command that was started with `stdin: 'open'`. */
export class ExecStdin {
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #execId: () => Promise<string>;
  /** Writes go one after another, in the order in which they were asked for. */
  #last: Promise<void> = Promise.resolve();
  #isEnded = false;

  constructor(api: Api, sandboxId: string, execId: () => Promise<string>) {
    this.#api = api;
    this.#sandboxId = sandboxId;
    this.#execId = execId;
  }

  /**
   * Writes; resolves when the sandbox has taken all of it. Not repeated when the connection breaks on the way, because
   * bytes could arrive twice.
   * @throws PlatformError `stdin_closed`, `connection_lost`, `exec_not_found`
   */
  write(data: ByteSource, options: CallOptions = {}): Promise<void> {
    return this.#send(data, false, options);
  }

  /** Writes `data`, when given, and closes: the command reads end of file. */
  end(data: ByteSource = '', options: CallOptions = {}): Promise<void> {
    return this.#send(data, true, options);
  }

  #send(data: ByteSource, isLast: boolean, options: CallOptions): Promise<void> {
    if (this.#isEnded) {
      return Promise.reject(new PlatformError('stdin_closed', 'the stdin of the command was closed before'));
    }
    this.#isEnded = isLast;
    const sent = this.#last.then(async () => {
      const execId = await this.#execId();
      const bytes = asBytes(data);
      await this.#api.done(
        {
          method: 'PUT',
          path: `/sandboxes/${segment(this.#sandboxId)}/execs/${segment(execId)}/stdin`,
          what: `writing to the stdin of command ${execId}`,
          query: { close: isLast },
          bytes,
          repeatable: 'unsent',
        },
        options,
        // A command may take its time to read.
        Infinity,
      );
    });
    // The next write waits for this one, but its failure belongs to whoever awaits this one.
    this.#last = sent.catch(() => undefined);
    return sent;
  }
}
