import {
  BehaviourReportSchema,
  PlatformError,
  UsageSchema,
  type BehaviourReport,
  type ExecStatus,
  type Packed,
  type SandboxInfo,
  type SessionInfo,
  type Usage,
} from '@dsec/contract';
import { Type } from 'typebox';
import { Commands, type AttachOptions } from './exec/commands.ts';
import type { ExecOptions } from './exec/exec-options.ts';
import type { Exec } from './exec/exec.ts';
import { Pty, type PtyOptions } from './exec/pty.ts';
import type { Session, SessionOptions } from './exec/session.ts';
import { readableOf } from './files/byte-streams.ts';
import { Files } from './files/files.ts';
import { segment, type Api } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { parserOf } from './http/schema.ts';
import { packSandbox, type PackOptions } from './pack.ts';
import type { Platform } from './platform/platform.ts';
import { Ports } from './ports.ts';
import { parseSandbox } from './sandbox-answers.ts';
import { SandboxPolicy } from './sandbox-policy.ts';

const parseUsage = parserOf<typeof UsageSchema, Usage>(UsageSchema, 'usage of a sandbox');
const parseBehaviour = parserOf<typeof BehaviourReportSchema, BehaviourReport>(
  BehaviourReportSchema,
  'report of behaviour',
);
const ProcessesSchema = Type.Object({
  processes: Type.Array(
    Type.Object({
      pid: Type.Integer(),
      ppid: Type.Integer(),
      uid: Type.Integer(),
      command: Type.String(),
      startedAtMs: Type.Number(),
      rssBytes: Type.Integer(),
    }),
  ),
});
const parseProcesses = parserOf(ProcessesSchema, 'list of processes');

/** One process inside a sandbox. */
export interface SandboxProcess {
  readonly pid: number;
  readonly ppid: number;
  readonly uid: number;
  readonly command: string;
  readonly startedAtMs: number;
  readonly rssBytes: number;
}

/** When a sandbox ends by itself. */
export interface TtlOptions extends CallOptions {
  /** Never brings the end nearer: for several users of one sandbox. @default false */
  readonly extendOnly?: boolean;
}

/**
 * A sandbox. It outlives this handle and this process until it is stopped, idle for too long, or at its TTL. With
 * `await using` it is stopped at the end of the block, unless `keep()` was called.
 *
 * @example
 * ```ts
 * await using sandbox = await client.runContainer({ containerImage: 'debian' });
 * const { exitCode, stdout } = await sandbox.runShell('echo hello | tr a-z A-Z');
 * console.log(exitCode, stdout); // 0 HELLO
 * ```
 */
export class Sandbox implements AsyncDisposable {
  readonly sandboxId: string;
  /** What it was when this handle was made; `info()` asks for what it is now. */
  readonly initialInfo: SandboxInfo;
  /** Files and directories. */
  readonly files: Files;
  /** Services that listen inside. */
  readonly ports: Ports;
  /** What it may reach, and what its processes may do. */
  readonly policy: SandboxPolicy;
  readonly #api: Api;
  readonly #commands: Commands;
  #isKept = false;

  /** @internal Made by `client.runContainer` and `client.getSandbox`. */
  constructor(api: Api, info: SandboxInfo, platform: Platform) {
    this.sandboxId = info.sandboxId;
    this.initialInfo = info;
    this.#api = api;
    this.#commands = new Commands(api, info.sandboxId);
    this.files = new Files(api, info.sandboxId, platform);
    this.ports = new Ports(api, info.sandboxId, platform);
    this.policy = new SandboxPolicy(api, info.sandboxId);
  }

  /**
   * Runs a script by the bash of the sandbox, or its sh. Await it for the result, or use it as `exec`'s. Each call stands alone:
   * `cd` and variables do not carry over (see `session`).
   *
   * @example
   * ```ts
   * const result = await sandbox.runShell('cd /etc && wc -l < passwd', { timeoutMs: 10_000 });
   * if (result.exitCode !== 0) throw new Error(result.stderr);
   * ```
   */
  runShell(script: string, options: ExecOptions = {}): Exec {
    return this.#commands.start({ shell: script }, options);
  }

  /**
   * Runs a program with its arguments, without a shell. Await the handle for the result, iterate over it for the output.
   *
   * @example
   * ```ts
   * const exec = sandbox.exec(['sh', '-c', 'for i in 1 2 3; do echo line $i; done']);
   * for await (const { stream, line } of exec.lines()) console.log(stream, line);
   * console.log((await exec).exitCode);
   * ```
   */
  exec(argv: readonly string[], options: ExecOptions = {}): Exec {
    return this.#commands.start({ argv }, options);
  }

  /** Starts a program and leaves it running, whatever becomes of this client. `attach` follows it. Resolves when it runs. */
  execDetached(
    argv: readonly string[],
    options: Omit<ExecOptions, 'maxOutputBytes'> & CallOptions = {},
  ): Promise<ExecStatus> {
    return this.#commands.startDetached({ argv }, options);
  }

  /**
   * Follows a command that runs, or has ended not long ago (the newest 256 are kept), from any point of its output.
   * @throws PlatformError (when awaited) `exec_not_found`
   */
  attach(execId: string, options: AttachOptions = {}): Exec {
    return this.#commands.attach(execId, options);
  }

  /** State of one command. @throws PlatformError `exec_not_found` */
  execStatus(execId: string, options: CallOptions = {}): Promise<ExecStatus> {
    return this.#commands.get(execId, options);
  }

  /** The commands that run, and those that ended not long ago. */
  execs(options: CallOptions = {}): Promise<readonly ExecStatus[]> {
    return this.#commands.list(options);
  }

  /**
   * Opens a lasting shell.
   *
   * @example
   * ```ts
   * await using session = await sandbox.session({ cwd: '/tmp' });
   * await session.run('export NAME=world');
   * console.log((await session.run('echo "hello $NAME from $PWD"')).stdout); // hello world from /tmp
   * ```
   */
  session(options: SessionOptions = {}): Promise<Session> {
    return this.#commands.openSession(options);
  }

  /** The sessions that are open. */
  sessions(options: CallOptions = {}): Promise<readonly SessionInfo[]> {
    return this.#commands.listSessions(options);
  }

  /** Opens a terminal: of `argv`, or of a login shell. */
  async pty(options: PtyOptions = {}): Promise<Pty> {
    const exec = this.#commands.startPty(options);
    await exec.started();
    return new Pty(exec);
  }

  /** Follows a terminal that was left running. */
  attachPty(execId: string, options: AttachOptions = {}): Pty {
    return new Pty(this.#commands.attach(execId, options));
  }

  /** What it is now. */
  async info(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#api.json(
      { method: 'GET', path: this.#path(''), what: `asking for sandbox ${this.sandboxId}`, repeatable: 'always' },
      parseSandbox,
      options,
    );
  }

  /** What it uses now. */
  async usage(options: CallOptions = {}): Promise<Usage> {
    return this.#api.json(
      {
        method: 'GET',
        path: this.#path('/usage'),
        what: `asking for the usage of sandbox ${this.sandboxId}`,
        repeatable: 'always',
      },
      parseUsage,
      options,
    );
  }

  /** What it tried since its creation that was denied, and which tripwires it touched. Of one that has ended, too. @throws PlatformError `sandbox_not_found` */
  async behaviour(options: CallOptions = {}): Promise<BehaviourReport> {
    const what = `asking for the behaviour of sandbox ${this.sandboxId}`;
    return this.#api.json(
      { method: 'GET', path: this.#path('/behaviour'), what, repeatable: 'always' },
      parseBehaviour,
      options,
    );
  }

  /** What runs in it; at most 4,096 processes. */
  async processes(options: CallOptions = {}): Promise<readonly SandboxProcess[]> {
    const path = this.#path('/processes');
    const { processes } = await this.#api.json(
      { method: 'GET', path, what: `listing the processes of sandbox ${this.sandboxId}`, repeatable: 'always' },
      parseProcesses,
      options,
    );
    return processes;
  }

  /**
   * What it has written since its creation, as it was at one moment: the sandbox stands still while that is fixed, for milliseconds on a volume with
   * snapshots. A tar archive with the marks of overlayfs: a character device 0:0 says that a name is gone, the attribute
   * `trusted.overlay.opaque` that a directory shows nothing of the layers below. Owners are those inside. It can be read once; one that
   * breaks off throws, so what ended is whole. `timeoutMs` is until the first bytes.
   *
   * @throws PlatformError `permission_denied` for the key of no builder; `sandbox_ended`, `sandbox_not_ready`; `too_many_requests` beyond four at once
   * on a node; `archive_unsafe` for files that no archive takes
   */
  async changes(options: CallOptions = {}): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
    const what = `reading the changes of sandbox ${this.sandboxId}`;
    const request = { method: 'GET', path: this.#path('/changes'), what, repeatable: 'unsent' } as const;
    const response = await this.#api.call(request, options, (answer) => Promise.resolve(answer));
    return readableOf(response, what, options.signal);
  }

  /**
   * pack_diff: makes what this sandbox has written into a layer with a name. It stands still for a moment and goes on; what it writes later is not in
   * the layer. Shell histories, caches, logs and other residue are left out (`scrub`), the rest is held to packing rules (`limits`, `allow`), and the
   * written layer is read again to prove that nothing is in it that was left out.
   *
   * - `kind: 'workspace'` (default): a new version of the workspace that it stands on, or its first. Create from it with `workspace`.
   * - `kind: 'toolkit'`: a layer for above any workspace. Create from it with `toolkits`.
   * - `kind: 'environment'`: all that it stands on, with the changes above. Create from it with `containerImage`.
   *
   * A name that is taken by one of the same kind is given to the new one. Only keys of builders may pack: never that of an agent at run time.
   *
   * @returns what was named (null after a dry run), what the rules found, and how long the sandbox stood still
   * @throws PlatformError `permission_denied`, `invalid_argument` (a path that is not absolute, a name that is taken by another kind), `pack_refused` with
   * the rules that failed, `sandbox_ended`, `sandbox_not_ready`, `archive_unsafe` for files that no layer takes, `disk_full`, `too_many_requests`
   *
   * @example
   * ```ts
   * const { report } = await sandbox.packDiff({ name: 'task-17:2', dryRun: true });
   * for (const { rule, level, message } of report.checks) console.log(level, rule, message);
   * await sandbox.packDiff({ name: 'task-17:2', paths: ['/project'], scrub: { omit: ['/project/.env'] } });
   * ```
   */
  packDiff(options: PackOptions): Promise<Packed> {
    return packSandbox(this.#api, this.sandboxId, options);
  }

  /** Stops it `seconds` from now, whatever it does (1 to 604,800). */
  async setTtl(seconds: number, options: TtlOptions = {}): Promise<SandboxInfo> {
    return this.#patch({ ttlSeconds: seconds }, options);
  }

  /** Stops it after `seconds` without activity (1 to 604,800). */
  async setIdleTimeout(seconds: number, options: TtlOptions = {}): Promise<SandboxInfo> {
    return this.#patch({ ttlRunningStopSeconds: seconds }, options);
  }

  /** Stops it. Resolves when nothing of it is left; stopping it twice is no error. */
  async stop(options: CallOptions = {}): Promise<SandboxInfo> {
    return this.#api.json(
      { method: 'DELETE', path: this.#path(''), what: `stopping sandbox ${this.sandboxId}`, repeatable: 'always' },
      parseSandbox,
      options,
    );
  }

  /** It is to outlive the block of its `await using`. */
  keep(): this {
    this.#isKept = true;
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    if (this.#isKept) return;
    try {
      await this.stop();
    } catch (error) {
      // It is gone, which is what was wanted.
      if (!PlatformError.is(error) || (error.code !== 'sandbox_not_found' && error.code !== 'sandbox_ended'))
        throw error;
    }
  }

  async #patch(
    patch: { readonly ttlSeconds?: number; readonly ttlRunningStopSeconds?: number },
    options: TtlOptions,
  ): Promise<SandboxInfo> {
    const { extendOnly, ...call } = options;
    const json = { ...patch, ...(extendOnly === undefined ? {} : { extendOnly }) };
    return this.#api.json(
      {
        method: 'PATCH',
        path: this.#path(''),
        what: `changing the TTL of sandbox ${this.sandboxId}`,
        json,
        repeatable: 'always',
      },
      parseSandbox,
      call,
    );
  }

  #path(route: string): string {
    return `/sandboxes/${segment(this.sandboxId)}${route}`;
  }
}
