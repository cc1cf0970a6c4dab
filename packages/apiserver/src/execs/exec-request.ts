/** From the request of a client to the params of `exec.start`. */
import { PlatformError, type ExecRequest } from '@dsec/contract';
import type { Principal } from '@dsec/iam';
import { fingerprintOf } from '../fingerprint.ts';
import type { Services } from '../services.ts';

/** What a client sends along with the start of a command. */
export interface ExecStart {
  readonly params: object;
  /** All of stdin; then end of file. */
  readonly input: Buffer | undefined;
}

const BASE64 = /^(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$/;

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the body: ${field} ${reason}`, { details: { field, reason } });

export interface ExecIdentity {
  readonly sandboxId: string;
  readonly execId: string;
  readonly fingerprint: string | undefined;
}

const EXEC_ID_CHARS = 24;

/** The same idempotency key names the same exec, so that the sandbox itself knows a repeated request. */
export function execIdentity(
  { random, linkKey }: Services,
  principal: Principal,
  sandboxId: string,
  idempotencyKey: string | undefined,
  request: ExecRequest,
): ExecIdentity {
  if (idempotencyKey === undefined) return { sandboxId, execId: random.base36(EXEC_ID_CHARS), fingerprint: undefined };
  const execId = linkKey.nameOf([principal.keyId, sandboxId, idempotencyKey]);
  return { sandboxId, execId, fingerprint: fingerprintOf(request) };
}

/** @throws PlatformError `invalid_argument` for members that do not go together */
export function execStart(request: ExecRequest, { sandboxId, execId, fingerprint }: ExecIdentity): ExecStart {
  const { argv, shell, login, stdin, stdinBase64, detach: _detach, ...rest } = request;
  if ((argv === undefined) === (shell === undefined)) throw invalid('argv', 'or `shell` must be given, and not both');
  if (login !== undefined && shell === undefined) throw invalid('login', 'goes with `shell` only');
  if (stdin !== undefined && stdinBase64 !== undefined) throw invalid('stdinBase64', 'does not go with `stdin`');
  if (stdinBase64 !== undefined && !BASE64.test(stdinBase64)) throw invalid('stdinBase64', 'is not base64');
  const input = stdinBase64 === undefined ? undefined : Buffer.from(stdinBase64, 'base64');
  const program =
    argv === undefined ? { shell: { script: shell, ...(login === undefined ? {} : { login }) } } : { argv };
  return {
    params: {
      sandboxId,
      execId,
      ...(fingerprint === undefined ? {} : { fingerprint }),
      ...program,
      ...rest,
      env: rest.env ?? {},
      stdin: input === undefined ? (stdin ?? 'none') : 'open',
    },
    input,
  };
}
