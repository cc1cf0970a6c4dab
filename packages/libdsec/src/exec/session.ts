import { PlatformError, type ErrorCode } from '@dsec/contract';
import { segment, type Api } from '../http/api.ts';
import type { CallOptions } from '../http/deadline.ts';
import type { ExecOptions } from './exec-options.ts';
import type { Exec } from './exec.ts';

/** What says that a session is gone, alone or with its sandbox. */
const GONE: ReadonlySet<ErrorCode> = new Set([
  'session_not_found',
  'sandbox_ended',
  'sandbox_failed',
  'sandbox_not_found',
]);

/** How a session is opened. */
export interface SessionOptions extends CallOptions {
  /** Added to the environment of the sandbox. */
  readonly env?: Readonly<Record<string, string>>;
  /** @default that of the sandbox */
  readonly cwd?: string;
  /** @default that of the sandbox */
  readonly user?: string;
}

/** What one call in a session may say; env, cwd and user are the session's own. */
export type SessionRunOptions = Omit<ExecOptions, 'env' | 'cwd' | 'user' | 'login'>;

/**
 * A lasting shell: working directory, variables, functions and background jobs carry over from one call to the next.
 * Calls in one session run one after another; open several sessions for work side by side.
 */
export class Session implements AsyncDisposable {
  readonly sessionId: string;
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #run: (script: string, options: ExecOptions) => Exec;

  /** @internal Made by `sandbox.session`. */
  constructor(options: {
    readonly api: Api;
    readonly sandboxId: string;
    readonly sessionId: string;
    readonly run: (script: string, options: ExecOptions) => Exec;
  }) {
    this.sessionId = options.sessionId;
    this.#api = options.api;
    this.#sandboxId = options.sandboxId;
    this.#run = options.run;
  }

  /**
   * Runs a script in the shell of the session. Await or iterate, as with `sandbox.exec`. A script that ends the shell (`exit 3`)
   * has that as its result, and ends the session.
   * @throws PlatformError (when awaited) `session_not_found`, `session_lost`
   */
  run(script: string, options: SessionRunOptions = {}): Exec {
    return this.#run(script, options);
  }

  /** Ends the shell and everything that it started. A session that is gone already is no error. */
  async close(options: CallOptions = {}): Promise<void> {
    try {
      await this.#api.done(
        {
          method: 'DELETE',
          path: `/sandboxes/${segment(this.#sandboxId)}/sessions/${segment(this.sessionId)}`,
          what: `closing session ${this.sessionId}`,
          repeatable: 'always',
        },
        options,
      );
    } catch (error) {
      if (!PlatformError.is(error) || !GONE.has(error.code)) throw error;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.close();
  }
}
