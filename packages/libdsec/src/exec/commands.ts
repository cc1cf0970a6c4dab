import type { ExecStatus, SessionInfo } from '@dsec/contract';
import { idSegment, segment, type Api } from '../http/api.ts';
import type { CallOptions } from '../http/deadline.ts';
import { parseExecList, parseExecStatus, parseSession, parseSessionList } from './exec-answers.ts';
import type { OutputOffsets } from './exec-follower.ts';
import {
  DEFAULT_MAX_OUTPUT_BYTES,
  execRequest,
  isInline,
  startRequest,
  type Command,
  type ExecOptions,
} from './exec-options.ts';
import { Exec } from './exec.ts';
import { LOGIN_SHELL, type PtyOptions } from './pty.ts';
import { Session, type SessionOptions } from './session.ts';

export interface AttachOptions {
  /** Output from these positions on, in bytes since the start; what the sandbox no longer holds comes as a gap. @default 0 */
  readonly offsets?: Partial<OutputOffsets>;
  /** False: only what it has written until now; the result then says by `status.state` whether it goes on. @default true */
  readonly follow?: boolean;
  /** Aborting it kills the command, as with `exec`. */
  readonly signal?: AbortSignal;
  /** As with `exec`. @default 16 MiB */
  readonly maxOutputBytes?: number;
}

/** The commands of one sandbox. */
export class Commands {
  readonly #api: Api;
  readonly #sandboxId: string;

  constructor(api: Api, sandboxId: string) {
    this.#api = api;
    this.#sandboxId = sandboxId;
  }

  start(command: Command, options: ExecOptions, sessionId?: string): Exec {
    const body = execRequest(command, options, sessionId);
    const { input } = options;
    const streamed = input === undefined || isInline(input) ? undefined : input;
    const idempotencyKey = options.idempotencyKey ?? this.#api.timing.uniqueKey();
    // What is sent along with the start is sent in one piece, which is what a request is for.
    const start = { sandboxId: this.#sandboxId, idempotencyKey, exec: body };
    return new Exec({
      api: this.#api,
      sandboxId: this.#sandboxId,
      origin: {
        start: startRequest(this.#sandboxId, body, idempotencyKey),
        command: body.stdinBase64 === undefined ? start : undefined,
      },
      maxOutputBytes: options.maxOutputBytes ?? DEFAULT_MAX_OUTPUT_BYTES,
      stdin: body.stdin ?? 'none',
      input: streamed,
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
  }

  startPty(options: PtyOptions): Exec {
    const { rows = 24, cols = 80, argv, ...rest } = options;
    const command: Command = argv === undefined ? { shell: LOGIN_SHELL } : { argv };
    const body = { ...execRequest(command, { ...rest, stdin: 'open' }), pty: { rows, cols } };
    return new Exec({
      api: this.#api,
      sandboxId: this.#sandboxId,
      origin: { start: startRequest(this.#sandboxId, body, options.idempotencyKey ?? this.#api.timing.uniqueKey()) },
      maxOutputBytes: options.maxOutputBytes ?? DEFAULT_MAX_OUTPUT_BYTES,
      stdin: 'open',
      timeoutMs: options.timeoutMs,
      signal: options.signal,
    });
  }

  async startDetached(command: Command, options: ExecOptions): Promise<ExecStatus> {
    const { signal, idempotencyKey, ...rest } = options;
    const body = { ...execRequest(command, rest), detach: true };
    return this.#api.json(
      startRequest(this.#sandboxId, body, idempotencyKey ?? this.#api.timing.uniqueKey()),
      parseExecStatus,
      { signal },
    );
  }

  attach(execId: string, options: AttachOptions): Exec {
    return new Exec({
      api: this.#api,
      sandboxId: this.#sandboxId,
      origin: {
        execId,
        offsets: { stdout: options.offsets?.stdout ?? 0, stderr: options.offsets?.stderr ?? 0 },
        follow: options.follow ?? true,
      },
      maxOutputBytes: options.maxOutputBytes ?? DEFAULT_MAX_OUTPUT_BYTES,
      stdin: 'open',
      signal: options.signal,
    });
  }

  async get(execId: string, options: CallOptions): Promise<ExecStatus> {
    const path = `/sandboxes/${segment(this.#sandboxId)}/execs/${idSegment(execId, 'execId')}`;
    return this.#api.json(
      { method: 'GET', path, what: `asking for command ${execId}`, repeatable: 'always' },
      parseExecStatus,
      options,
    );
  }

  async list(options: CallOptions): Promise<readonly ExecStatus[]> {
    const path = `/sandboxes/${segment(this.#sandboxId)}/execs`;
    const { execs } = await this.#api.json(
      { method: 'GET', path, what: `listing the commands of sandbox ${this.#sandboxId}`, repeatable: 'always' },
      parseExecList,
      options,
    );
    return execs;
  }

  async openSession(options: SessionOptions): Promise<Session> {
    const { env, cwd, user, ...call } = options;
    const opened = await this.#api.json(
      {
        method: 'POST',
        path: `/sandboxes/${segment(this.#sandboxId)}/sessions`,
        what: `opening a session in sandbox ${this.#sandboxId}`,
        json: {
          ...(env === undefined ? {} : { env }),
          ...(cwd === undefined ? {} : { cwd }),
          ...(user === undefined ? {} : { user }),
        },
        repeatable: 'unsent',
      },
      parseSession,
      call,
    );
    return new Session({
      api: this.#api,
      sandboxId: this.#sandboxId,
      sessionId: opened.sessionId,
      run: (script, execOptions) => this.start({ shell: script }, execOptions, opened.sessionId),
    });
  }

  async listSessions(options: CallOptions): Promise<readonly SessionInfo[]> {
    const path = `/sandboxes/${segment(this.#sandboxId)}/sessions`;
    const { sessions } = await this.#api.json(
      { method: 'GET', path, what: `listing the sessions of sandbox ${this.#sandboxId}`, repeatable: 'always' },
      parseSessionList,
      options,
    );
    return sessions;
  }
}
