import { EXEC_STREAM_TYPE, PlatformError, type ExecRequest } from '@dsec/contract';
import { segment, type ApiRequest } from '../http/api.ts';
import { base64Of } from '../http/base64.ts';
import type { ByteSource } from '../http/byte-source.ts';

/** How a command is run. */
export interface ExecOptions {
  /** Added to the environment of the sandbox. Values are passed byte for byte; keys are names (`[A-Za-z_][A-Za-z0-9_.-]*`). */
  readonly env?: Readonly<Record<string, string>>;
  /** Working directory. @default that of the sandbox */
  readonly cwd?: string;
  /** A name, a uid, `uid:gid` or `name:group`. @default that of the sandbox */
  readonly user?: string;
  /** `none`: end of file at once. `open`: write by `exec.stdin`, and end it. @default 'none' */
  readonly stdin?: 'none' | 'open';
  /** All of stdin, then end of file; instead of `stdin`. */
  readonly input?: ByteSource;
  /**
   * The command and all that it started are killed after this many milliseconds (1 to 604,800,000); the result then says
   * `isTimedOut`. Kept by the sandbox, also when this client is gone. @default none
   */
  readonly timeoutMs?: number;
  /** Aborting it kills the command and all that it started; the exec then rejects with `cancelled`. See `Exec.detach`. */
  readonly signal?: AbortSignal;
  /** Most bytes of each stream in the result; the first quarter and the newest rest are kept. @default 16 MiB */
  readonly maxOutputBytes?: number;
  /** Most bytes of each stream that the sandbox keeps for whoever attaches later (4 KiB to 16 MiB). @default 1 MiB */
  readonly outputLimitBytes?: number;
  /** A label of your own, up to 256 characters; lists show it. */
  readonly tag?: string;
  /**
   * Of scripts: run by a login shell, which reads /etc/profile; that of most distributions sets PATH anew, so that the one of the environment is
   * gone. @default false
   */
  readonly login?: boolean;
  /** The same key for the same command in the same sandbox runs it once. @default a fresh one */
  readonly idempotencyKey?: string;
}

export const DEFAULT_MAX_OUTPUT_BYTES = 16 * 1024 * 1024;
/** More input than this is streamed after the start instead of sent with it. */
const INLINE_INPUT_BYTES = 1_048_576;

/** What is run: a program with its arguments and no shell, or a script for the shell. */
export type Command = { readonly argv: readonly string[] } | { readonly shell: string };

/** The body of the request that starts a command. */
export function execRequest(command: Command, options: ExecOptions, sessionId?: string): ExecRequest {
  if (options.input !== undefined && options.stdin !== undefined) {
    throw new PlatformError('invalid_argument', 'give either `input` or `stdin`', { details: { field: 'stdin' } });
  }
  const { env, cwd, user, timeoutMs, outputLimitBytes, tag, login } = options;
  return {
    ...('argv' in command ? { argv: [...command.argv] } : { shell: command.shell }),
    ...(env === undefined ? {} : { env: { ...env } }),
    ...(cwd === undefined ? {} : { cwd }),
    ...(user === undefined ? {} : { user }),
    ...(timeoutMs === undefined ? {} : { timeoutMs }),
    ...(outputLimitBytes === undefined ? {} : { outputLimitBytes }),
    ...(tag === undefined ? {} : { tag }),
    ...(login === undefined ? {} : { login }),
    ...(sessionId === undefined ? {} : { sessionId }),
    ...stdinOf(options),
  };
}

function stdinOf({ input, stdin }: ExecOptions): Pick<ExecRequest, 'stdin' | 'stdinBase64'> {
  if (input === undefined) return stdin === undefined ? {} : { stdin };
  return isInline(input) ? { stdinBase64: base64Of(input) } : { stdin: 'open' };
}

/** Whether input travels in the request that starts the command. */
export function isInline(input: ByteSource): input is string | Uint8Array<ArrayBuffer> {
  // A character of a string is at most three bytes of UTF-8.
  if (typeof input === 'string') return input.length * 3 <= INLINE_INPUT_BYTES;
  return input instanceof Uint8Array && input.length <= INLINE_INPUT_BYTES;
}

/** The request that starts a command and streams its output. */
export function startRequest(sandboxId: string, body: ExecRequest, idempotencyKey: string): ApiRequest {
  return {
    method: 'POST',
    path: `/sandboxes/${segment(sandboxId)}/execs`,
    what: `running a command in sandbox ${sandboxId}`,
    headers: { 'idempotency-key': idempotencyKey, ...(body.detach === true ? {} : { accept: EXEC_STREAM_TYPE }) },
    json: body,
    repeatable: 'always',
  };
}
