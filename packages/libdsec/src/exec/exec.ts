import { PlatformError } from '@dsec/contract';
import { segment, type Api } from '../http/api.ts';
import { Cancellation, onAbort } from '../http/cancellation.ts';
import { cancelled, Deadline, type CallOptions } from '../http/deadline.ts';
import type { ByteSource } from '../http/byte-source.ts';
import { Deferred } from '../deferred.ts';
import { EventQueue } from './event-queue.ts';
import { ExecFollower, type ExecOrigin, type FollowSink, type OutputOffsets } from './exec-follower.ts';
import { ExecResult } from './exec-result.ts';
import { ExecStdin } from './exec-stdin.ts';
import { parseDelivered } from './exec-answers.ts';
import { linesOf, streamOfChannel, type OutputEvent, type OutputLine } from './output-event.ts';
import { OutputRecord } from './output-record.ts';
import { signalNumber, type Signal } from './signals.ts';

/** The sandbox ends a command at its time; a client that hears nothing this long after it stops waiting. */
const TIMEOUT_GRACE_MS = 30_000;
/** An aborted command is killed before the exec rejects; that may take so long. */
const ABORT_KILL_MS = 10_000;

export interface ExecSettings {
  readonly api: Api;
  readonly sandboxId: string;
  readonly origin: ExecOrigin;
  readonly maxOutputBytes: number;
  readonly stdin: 'none' | 'open';
  /** Streamed to stdin after the start. */
  readonly input?: ByteSource | undefined;
  readonly timeoutMs?: number | undefined;
  readonly signal?: AbortSignal | undefined;
}

/**
 * A command in a sandbox. Await it for its result, or iterate over it for its output as it comes, or both, the iteration first.
 *
 * It runs from the moment of the call. When the connection breaks, the SDK attaches again and goes on where it was: nothing is
 * lost, doubled or run twice. Only when the retry budget is spent does it reject with `connection_lost`; the command then
 * still runs, and `sandbox.attach` finds it.
 *
 * An exit code other than 0 is a result, not an error. It rejects with `command_not_found`, `command_not_executable`,
 * `cwd_not_found`, `user_not_found`, `argv_too_long`, `pids_exhausted`, `sandbox_ended`, `sandbox_failed`, `cancelled`,
 * `connection_lost`, and what every call may (see the error table).
 */
export class Exec implements PromiseLike<ExecResult>, AsyncIterable<OutputEvent> {
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #stdin: ExecStdin | undefined;
  readonly #queue = new EventQueue();
  readonly #records: { readonly stdout: OutputRecord; readonly stderr: OutputRecord };
  readonly #follower: ExecFollower;
  readonly #following = new Cancellation();
  readonly #started = new Deferred<{ readonly execId: string; readonly pid: number }>();
  readonly #outcome: Promise<ExecResult>;
  #size: { readonly rows: number; readonly cols: number } | undefined;
  #clientId: string | undefined;
  #isIterated = false;
  #isOver = false;

  /** @internal Made by `sandbox.exec`, `sandbox.runShell`, `sandbox.attach` and sessions. */
  constructor(settings: ExecSettings) {
    this.#api = settings.api;
    this.#sandboxId = settings.sandboxId;
    this.#records = {
      stdout: new OutputRecord(settings.maxOutputBytes),
      stderr: new OutputRecord(settings.maxOutputBytes),
    };
    this.#follower = new ExecFollower(settings.api, settings.sandboxId, settings.origin, this.#sink());
    this.#stdin =
      settings.stdin === 'open'
        ? new ExecStdin(settings.api, settings.sandboxId, async () => (await this.#started.promise).execId)
        : undefined;
    this.#outcome = this.#run(settings);
    // A failure is told to whoever awaits or iterates; a handle that nobody asks must not end the process.
    this.#outcome.catch(() => undefined);
    this.#started.promise.catch(() => undefined);
  }

  /** Resolves when the program runs: its id, for `sandbox.attach`, and its pid inside the sandbox. */
  started(): Promise<{ readonly execId: string; readonly pid: number }> {
    return this.#started.promise;
  }

  /** How much of the output this handle has received. */
  get offsets(): OutputOffsets {
    return this.#follower.offsets;
  }

  /** @throws PlatformError `stdin_closed` when the command was not started with `stdin: 'open'` */
  get stdin(): ExecStdin {
    if (this.#stdin === undefined)
      throw new PlatformError('stdin_closed', 'the command was started without `stdin: "open"`');
    return this.#stdin;
  }

  /**
   * Sends a signal to the command and all that it started. Resolves to whether there was anything to send it to: false when
   * the command has ended.
   */
  async kill(
    signal: Signal = 'SIGKILL',
    options: CallOptions & { /** The first process only. @default false */ readonly only?: 'first' } = {},
  ): Promise<boolean> {
    const number = signalNumber(signal);
    const { execId } = await this.#started.promise;
    const answer = await this.#api.json(
      {
        method: 'POST',
        path: `${this.#path(execId)}/signal`,
        what: `sending signal ${number} to command ${execId}`,
        json: { signal: number, tree: options.only !== 'first' },
        repeatable: 'unsent',
      },
      parseDelivered,
      options,
    );
    return answer.delivered;
  }

  /**
   * Changes the size of the terminal of a command that has one, as far as this client is concerned: the terminal is as small as
   * its smallest client. Holds until this client leaves, also over connections that break.
   */
  async resize(size: { readonly rows: number; readonly cols: number }, options: CallOptions = {}): Promise<void> {
    const { execId } = await this.#started.promise;
    const { rows, cols } = size;
    this.#size = { rows, cols };
    try {
      await this.#tellSize(execId, options);
    } catch (error) {
      // Its connection has just broken: the next one tells the size.
      if (!PlatformError.is(error) || error.details['field'] !== 'clientId') throw error;
    }
  }

  /**
   * Stops following and leaves the command running. What it returns is what `sandbox.attach` needs to go on from here;
   * whoever awaits this handle gets `cancelled`.
   */
  async detach(): Promise<{ readonly execId: string; readonly pid: number; readonly offsets: OutputOffsets }> {
    const started = await this.#started.promise;
    this.#following.cancel(new PlatformError('cancelled', `command ${started.execId} was detached`));
    await this.#outcome.catch(() => undefined);
    return { ...started, offsets: this.offsets };
  }

  /** The output by lines, of both streams. Instead of iterating over the handle itself. */
  lines(): AsyncGenerator<OutputLine, void, undefined> {
    return linesOf(this);
  }

  [Symbol.asyncIterator](): AsyncGenerator<OutputEvent, void, undefined> {
    if (this.#isIterated)
      throw new PlatformError('invalid_argument', 'the output of a command can be iterated over once');
    this.#isIterated = true;
    return this.#queue.read();
  }

  then<A = ExecResult, B = never>(
    onFulfilled?: ((result: ExecResult) => A | PromiseLike<A>) | null,
    onRejected?: ((error: unknown) => B | PromiseLike<B>) | null,
  ): Promise<A | B> {
    if (!this.#isIterated) this.#queue.close();
    return this.#outcome.then(onFulfilled, onRejected);
  }

  async #run(settings: ExecSettings): Promise<ExecResult> {
    const { timeoutMs, signal, input } = settings;
    using patience = timeoutMs === undefined ? undefined : this.#patience(timeoutMs);
    patience?.onCancel(() => this.#following.cancel(patience.reason));
    let stopListening: (() => void) | undefined;
    try {
      if (signal?.aborted === true) throw cancelled(this.#name, signal.reason);
      stopListening = onAbort(signal, () => void this.#cancel(signal?.reason));
      if (input !== undefined) void this.#feed(input);
      const status = await this.#follower.run(this.#following);
      // The killed command's end may be known before the kill is: whoever aborted it does not take that for its result.
      if (isAborted(signal)) throw cancelled(this.#name, signal?.reason);
      // The exit record of a command that ended at once may be the first that is heard of it.
      this.#started.resolve({ execId: status.execId, pid: status.pid });
      this.#queue.finish('done');
      return new ExecResult(status, this.#records);
    } catch (error) {
      this.#started.reject(error);
      this.#queue.finish({ error });
      throw error;
    } finally {
      this.#isOver = true;
      stopListening?.();
    }
  }

  /** Kills what runs, as far as that can be done in time, then gives up. */
  async #cancel(reason: unknown): Promise<void> {
    let failure = reason;
    try {
      using patience = new Deadline(this.#api.timing, 'killing the aborted command', {}, ABORT_KILL_MS);
      const gaveUp = new Promise<never>((_resolve, reject) => {
        patience.onCancel(() => reject(patience.reason as Error));
      });
      await Promise.race([this.kill('SIGKILL', { timeoutMs: ABORT_KILL_MS }), gaveUp]);
    } catch (error) {
      failure = error;
    }
    this.#following.cancel(cancelled(this.#name, failure));
  }

  async #feed(input: ByteSource): Promise<void> {
    try {
      await this.#stdin?.end(input);
    } catch (error) {
      // A command may end, or close its stdin, before it has read everything: that is its business.
      if (this.#isOver || (PlatformError.is(error) && error.code === 'stdin_closed')) return;
      this.#following.cancel(error);
    }
  }

  #sink(): FollowSink {
    return {
      onStarted: (started) => this.#started.resolve(started),
      onAttached: (clientId) => {
        this.#clientId = clientId;
        // A new connection is a new client, of no size yet. When this fails the connection has broken, and the next one tells it.
        if (this.#size !== undefined)
          void this.#started.promise.then(({ execId }) => this.#tellSize(execId, {})).catch(() => undefined);
      },
      onData: (channel, data) => {
        const kind = streamOfChannel(channel);
        this.#records[kind].append(data);
        this.#queue.push({ kind, data });
      },
      onGap: (channel, fromByte, toByte) => {
        const stream = streamOfChannel(channel);
        this.#records[stream].skip(toByte - fromByte);
        this.#queue.push({ kind: 'gap', stream, fromByte, toByte });
      },
      ready: () => this.#queue.ready(),
    };
  }

  get #name(): string {
    return `the command in sandbox ${this.#sandboxId}`;
  }

  #patience(timeoutMs: number): Deadline {
    return new Deadline(this.#api.timing, this.#name, {}, timeoutMs + TIMEOUT_GRACE_MS);
  }

  async #tellSize(execId: string, options: CallOptions): Promise<void> {
    const clientId = this.#clientId;
    const json = { ...this.#size, ...(clientId === undefined ? {} : { clientId }) };
    const what = `resizing command ${execId}`;
    await this.#api.done(
      { method: 'POST', path: `${this.#path(execId)}/resize`, what, json, repeatable: 'always' },
      options,
    );
  }

  #path(execId: string): string {
    return `/sandboxes/${segment(this.#sandboxId)}/execs/${segment(execId)}`;
  }
}

/** A call, because the compiler takes a property that was false for one that stays so. */
const isAborted = (signal: AbortSignal | undefined): boolean => signal?.aborted === true;
