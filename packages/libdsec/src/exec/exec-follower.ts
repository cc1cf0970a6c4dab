import { EXEC_STREAM_TYPE, KEEPALIVE_MS, PlatformError, type CommandStart, type ExecStatus } from '@dsec/contract';
import { Deferred } from '../deferred.ts';
import { Cancellation } from '../http/cancellation.ts';
import { segment, type Api, type ApiRequest } from '../http/api.ts';
import { isRepeatable, Retries } from '../http/retry.ts';
import { parseExecStatus } from './exec-answers.ts';
import { RecordParser, takeMessage, type RecordSink, type Started } from './record-parser.ts';
import { StallGuard } from './stall-guard.ts';

/** After this long without even a keepalive the connection is given up and another one made. */
const STALL_MS = 3 * KEEPALIVE_MS;

/** Position in the output of a command, in bytes since its start. */
export interface OutputOffsets {
  readonly stdout: number;
  readonly stderr: number;
}

/** Where to follow a command from: it is started, or it runs, or has run, already. */
export type ExecOrigin =
  /** `command` is the same for a connection of many commands, where it can go over one. */
  | { readonly start: ApiRequest; readonly command?: CommandStart | undefined }
  | { readonly execId: string; readonly offsets: OutputOffsets; readonly follow: boolean };

/** Who takes the output. */
export interface FollowSink {
  onStarted(started: { readonly execId: string; readonly pid: number }): void;
  /** A connection follows the command, the first one or another. */
  onAttached(clientId: string | undefined): void;
  onData(channel: 1 | 2, data: Uint8Array<ArrayBuffer>): void;
  onGap(channel: 1 | 2, from: number, to: number): void;
  /** Resolves when more may come; undefined: at once. */
  ready(): Promise<void> | undefined;
}

/**
 * Follows one command to its end, over as many connections as that takes.
 *
 * I1. Every byte of the output is passed on at most once, in order; what the sandbox no longer holds is passed on as a gap.
 * I2. The command is started at most once: until its id is known, the same request is sent again with the same
 *     idempotency key; afterwards only its output is asked for, from where it broke off.
 * I3. The end is only ever what an exit record says. A connection that ends without one has broken.
 */
export class ExecFollower implements RecordSink {
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #start: ApiRequest | undefined;
  readonly #command: CommandStart | undefined;
  readonly #sink: FollowSink;
  readonly #follow: boolean;
  #execId: string | undefined;
  #offsets: [stdout: number, stderr: number];
  #exit: ExecStatus | undefined;
  #hasProgressed = false;

  /** Either `start` is the request that starts the command, or `execId` one that runs or has run. */
  constructor(api: Api, sandboxId: string, from: ExecOrigin, sink: FollowSink) {
    this.#api = api;
    this.#sandboxId = sandboxId;
    this.#sink = sink;
    this.#start = 'start' in from ? from.start : undefined;
    this.#command = 'start' in from ? from.command : undefined;
    this.#execId = 'execId' in from ? from.execId : undefined;
    this.#follow = 'start' in from || from.follow;
    this.#offsets = 'execId' in from ? [from.offsets.stdout, from.offsets.stderr] : [0, 0];
  }

  /** What was received and passed on so far. */
  get offsets(): OutputOffsets {
    return { stdout: this.#offsets[0], stderr: this.#offsets[1] };
  }

  /** Follows until the exit record. */
  async run(cancellation: Cancellation): Promise<ExecStatus> {
    const retries = new Retries(this.#api.timing, this.#api.retry);
    for (;;) {
      this.#hasProgressed = false;
      try {
        return await (this.#overCommandConnection(cancellation) ?? this.#connection(cancellation));
      } catch (error) {
        if (!isRepeatable(error, 'always')) throw error;
        if (error.code === 'server_unreachable' && !this.#api.hasAnswered) throw error;
        if (this.#hasProgressed) retries.reset();
        if (!(await retries.next(cancellation))) throw error;
      }
    }
  }

  async #connection(cancellation: Cancellation): Promise<ExecStatus> {
    const attempt = new Cancellation();
    const stopListening = cancellation.onCancel(() => attempt.cancel(cancellation.reason));
    using guard = new StallGuard(this.#api.timing, STALL_MS, () => {
      attempt.cancel(new PlatformError('connection_lost', `nothing came from the server for ${STALL_MS} ms`));
    });
    try {
      cancellation.throwIfCancelled();
      guard.waiting();
      const response = await this.#api.send(this.#request(), attempt);
      const parser = new RecordParser(this);
      await response.pump((chunk) => {
        guard.arrived();
        parser.push(chunk);
        const room = this.#sink.ready();
        if (room !== undefined) return room.then(() => guard.waiting());
        guard.waiting();
        return undefined;
      });
      // Read to its end, the connection can carry the next request.
      if (this.#exit !== undefined) return this.#exit;
      throw new PlatformError('connection_lost', 'the stream of the command ended before the command did');
    } catch (error) {
      if (this.#exit !== undefined && !cancellation.isCancelled) return this.#exit;
      throw error;
    } finally {
      stopListening();
    }
  }

  /** Over the connection that carries many; undefined when that is not there, or the command was started already. */
  #overCommandConnection(cancellation: Cancellation): Promise<ExecStatus> | undefined {
    if (this.#command === undefined || this.#execId !== undefined || cancellation.isCancelled) return undefined;
    const end = new Deferred<ExecStatus>();
    const running = this.#api.startCommand(this.#command, {
      onData: (channel, data) => {
        if (channel !== 1 && channel !== 2)
          throw new PlatformError('protocol_error', `the stream of a command has output of channel ${channel}`);
        this.onData(channel, data);
      },
      onMessage: (message) => takeMessage(message, this),
      ready: () => this.#sink.ready(),
      onEnd: (result) => {
        this.onExit(parseExecStatus(result));
        if (this.#exit !== undefined) end.resolve(this.#exit);
      },
      onFailure: (error) => end.reject(error),
    });
    if (running === undefined) return undefined;
    const stopListening = cancellation.onCancel(() => {
      running.reset();
      end.reject(cancellation.reason);
    });
    return end.promise.finally(stopListening);
  }

  #request(): ApiRequest {
    if (this.#execId === undefined && this.#start !== undefined) return this.#start;
    const execId = this.#execId ?? '';
    return {
      method: 'GET',
      path: `/sandboxes/${segment(this.#sandboxId)}/execs/${segment(execId)}/output`,
      what: `following command ${execId} of sandbox ${this.#sandboxId}`,
      query: { stdoutFrom: this.#offsets[0], stderrFrom: this.#offsets[1], follow: this.#follow },
      headers: { accept: EXEC_STREAM_TYPE },
      repeatable: 'always',
    };
  }

  onStarted({ clientId, ...started }: Started): void {
    // Every new attachment says this; only the first time is it news.
    const isFirst = this.#execId === undefined;
    if (isFirst) this.#hasProgressed = true;
    this.#execId = started.execId;
    if (isFirst || this.#start === undefined) this.#sink.onStarted(started);
    this.#sink.onAttached(clientId);
  }

  onData(channel: 1 | 2, data: Uint8Array<ArrayBuffer>): void {
    this.#hasProgressed = true;
    this.#offsets[channel - 1] = (this.#offsets[channel - 1] ?? 0) + data.length;
    this.#sink.onData(channel, data);
  }

  onGap(channel: 1 | 2, from: number, to: number): void {
    const at = this.#offsets[channel - 1] ?? 0;
    if (from > at || to <= at || !Number.isSafeInteger(to)) {
      throw new PlatformError('protocol_error', `a gap from ${from} to ${to} in output that stands at ${at}`);
    }
    this.#offsets[channel - 1] = to;
    this.#sink.onGap(channel, at, to);
  }

  onExit(status: ExecStatus): void {
    if (this.#follow && status.state !== 'exited') {
      throw new PlatformError(
        'protocol_error',
        `the stream of command ${status.execId} ended with a state that is no end`,
      );
    }
    this.#exit = status;
  }

  onError(error: PlatformError): void {
    throw error;
  }
}
