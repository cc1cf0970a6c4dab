/**
 * The one place that starts processes: argv only, never a shell; the environment is what the caller gives and nothing more; ending goes
 * SIGTERM, then SIGKILL; what a failed program said last is in the error.
 */
import { spawn as spawnChild, type ChildProcess, type StdioOptions } from 'node:child_process';
import type { Readable, Writable } from 'node:stream';
import { finished } from 'node:stream/promises';
import { PlatformError, type ErrorCode } from '@dsec/contract';
import { abortError, throwIfAborted } from './abort.ts';
import type { Clock } from './clock.ts';

/** Program and arguments. */
export type Argv = readonly [string, ...string[]];

export interface Exit {
  /** Undefined when a signal ended it. */
  readonly exitCode: number | undefined;
  readonly signal: NodeJS.Signals | undefined;
}

export interface ProcessOptions {
  readonly clock: Clock;
  /** The whole environment of the program; default empty. */
  readonly env?: Readonly<Record<string, string>>;
  readonly cwd?: string;
  readonly uid?: number;
  readonly gid?: number;
  /** Time from SIGTERM to SIGKILL. Default 5,000. */
  readonly killAfterMs?: number;
}

const DEFAULT_KILL_AFTER_MS = 5000;
/** What is kept of the end of stderr. */
const STDERR_TAIL_BYTES = 4096;
const DEFAULT_MAX_STDOUT_BYTES = 16 * 1024 * 1024;

export interface DaemonOptions extends ProcessOptions {
  /** `pipe` (default) keeps the write end open until `stop`: a daemon of ours ends when its stdin closes. */
  readonly stdin?: 'pipe' | 'ignore';
  /** `ignore` (default), `pipe`, the own stdout, or a descriptor. */
  readonly stdout?: 'pipe' | 'ignore' | 'inherit' | number;
  /** `tail` (default) keeps the end for the error; also `pipe`, the own stderr, or a descriptor. */
  readonly stderr?: 'tail' | 'pipe' | 'inherit' | 'ignore' | number;
  /** Descriptors that the program gets as 3, 4, … */
  readonly extraFds?: readonly number[];
}

/** A running program. Disposing it stops it. */
export class Process implements AsyncDisposable {
  readonly pid: number;
  readonly exited: Promise<Exit>;
  readonly #child: ChildProcess;
  readonly #clock: Clock;
  readonly #killAfterMs: number;
  readonly #tail: Tail | undefined;
  #isOver = false;

  private constructor(child: ChildProcess, pid: number, options: ProcessOptions, tail: Tail | undefined) {
    this.#child = child;
    this.pid = pid;
    this.#clock = options.clock;
    this.#killAfterMs = options.killAfterMs ?? DEFAULT_KILL_AFTER_MS;
    this.#tail = tail;
    this.exited = new Promise((resolve) => {
      child.once('exit', (code, signal) => {
        this.#isOver = true;
        resolve({ exitCode: code ?? undefined, signal: signal ?? undefined });
      });
    });
  }

  /** @throws PlatformError `command_not_found` or `command_not_executable` when the program cannot be started */
  static async start(argv: Argv, options: DaemonOptions): Promise<Process> {
    const { stderr = 'tail', stdout = 'ignore', stdin = 'pipe' } = options;
    const stdio: StdioOptions = [stdin, stdout, stderr === 'tail' ? 'pipe' : stderr, ...(options.extraFds ?? [])];
    const [program, ...args] = argv;
    const child = spawnChild(program, args, {
      stdio,
      env: { ...options.env },
      shell: false,
      ...(options.cwd === undefined ? {} : { cwd: options.cwd }),
      ...(options.uid === undefined ? {} : { uid: options.uid }),
      ...(options.gid === undefined ? {} : { gid: options.gid }),
    });
    const tail = stderr === 'tail' && child.stderr !== null ? new Tail(child.stderr, STDERR_TAIL_BYTES) : undefined;
    // The program may end before it has read its input; its exit tells more than EPIPE.
    child.stdin?.on('error', () => undefined);
    const { pid } = child;
    if (pid === undefined) throw await spawnFailure(child, program);
    child.on('error', () => undefined);
    return new Process(child, pid, options, tail);
  }

  get stdin(): Writable {
    return this.#stream(this.#child.stdin, 'stdin');
  }

  get stdout(): Readable {
    return this.#stream(this.#child.stdout, 'stdout');
  }

  get stderr(): Readable {
    return this.#stream(this.#child.stderr, 'stderr');
  }

  get isRunning(): boolean {
    return !this.#isOver;
  }

  /** The end of what it wrote on stderr, when that is kept. */
  get stderrTail(): string {
    return this.#tail?.text ?? '';
  }

  /** False when it has ended. */
  signal(signal: NodeJS.Signals): boolean {
    return !this.#isOver && this.#child.kill(signal);
  }

  /** Leaves it to itself: this process may end before it. */
  release(): void {
    this.#child.unref();
  }

  /** Closes stdin and sends SIGTERM, then, when that does not help in time, SIGKILL. Resolves when it has ended. Idempotent. */
  async stop(): Promise<Exit> {
    if (!this.#isOver) {
      this.#child.stdin?.destroy();
      this.signal('SIGTERM');
      const timer = this.#clock.setTimer(this.#killAfterMs, () => this.signal('SIGKILL'));
      await this.exited;
      timer.cancel();
    }
    return await this.exited;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  /** Resolves when the pipes of the program are at their end too. A background child of it may hold them open. */
  async drained(): Promise<void> {
    for (const stream of [this.#child.stdout, this.#child.stderr]) {
      if (stream === null || stream.closed) continue;
      try {
        await finished(stream, { writable: false });
      } catch {
        // A broken pipe is at its end as well; the exit of the program says whether it failed.
      }
    }
  }

  /** Stops it and lets go of its pipes, whoever still holds their other ends. */
  async abandon(): Promise<void> {
    await this.stop();
    this.#child.stdout?.destroy();
    this.#child.stderr?.destroy();
  }

  #stream<T>(stream: T | null, name: string): T {
    if (stream === null) throw new PlatformError('internal', `the ${name} of this process is no pipe`);
    return stream;
  }
}

async function spawnFailure(child: ChildProcess, program: string): Promise<PlatformError> {
  const cause = await new Promise<Error>((resolve) => child.once('error', resolve));
  const errno = 'code' in cause ? cause.code : undefined;
  const code: ErrorCode =
    errno === 'ENOENT' ? 'command_not_found' : errno === 'EACCES' ? 'command_not_executable' : 'internal';
  return new PlatformError(code, 'the program could not be started', { details: { program }, cause });
}

/** The last bytes of a stream. */
class Tail {
  readonly #limitBytes: number;
  #bytes: Buffer = Buffer.alloc(0);

  constructor(stream: Readable, limitBytes: number) {
    this.#limitBytes = limitBytes;
    stream.on('data', (chunk: Buffer) => {
      this.#bytes = Buffer.concat([this.#bytes, chunk]).subarray(-this.#limitBytes);
    });
    stream.on('error', () => undefined);
  }

  get text(): string {
    return this.#bytes.toString('utf8');
  }
}

export interface RunOptions extends ProcessOptions {
  readonly signal?: AbortSignal | undefined;
  readonly timeoutMs?: number | undefined;
  /** What it reads on stdin; default nothing. */
  readonly stdin?: Uint8Array | string | Readable;
  /** Consumes stdout while the program runs instead of keeping it; a failure stops the program. */
  readonly onStdout?: (stdout: Readable) => Promise<void>;
  /** Most bytes kept of stdout; more is an error. Default 16 MiB. */
  readonly maxStdoutBytes?: number;
  /** Exit codes that are no failure. Default only 0. */
  readonly okExitCodes?: readonly number[];
  /** Code of the error for a failed program. Default `internal`. */
  readonly errorCode?: ErrorCode;
}

export interface RunResult {
  readonly exitCode: number;
  /** Empty with `onStdout`. */
  readonly stdout: Buffer;
  readonly stderrTail: string;
}

/**
 * Runs a program to its end.
 * @throws PlatformError `errorCode` with `details` program, exitCode or signal, and stderr (its end); `timeout`; `cancelled`
 */
export async function run(argv: Argv, options: RunOptions): Promise<RunResult> {
  const { signal, timeoutMs, clock } = options;
  throwIfAborted(signal);
  const process = await Process.start(argv, { ...options, stdin: 'pipe', stdout: 'pipe', stderr: 'tail' });
  const failures: unknown[] = [];
  const fail = (error: unknown): void => {
    failures.push(error);
    void process.abandon();
  };
  const onAbort = (): void => {
    if (signal !== undefined) fail(abortError(signal));
  };
  signal?.addEventListener('abort', onAbort, { once: true });
  // It may have aborted while the program was being started.
  if (signal?.aborted === true) onAbort();
  const timer =
    timeoutMs === undefined
      ? undefined
      : clock.setTimer(timeoutMs, () =>
          fail(
            new PlatformError('timeout', `${argv[0]} did not end within ${timeoutMs} ms`, {
              details: { program: argv[0], timeoutMs },
            }),
          ),
        );
  try {
    feed(process.stdin, options.stdin, fail);
    const consume =
      options.onStdout ??
      ((stdout: Readable) => capture(stdout, argv[0], options.maxStdoutBytes ?? DEFAULT_MAX_STDOUT_BYTES));
    const consumed = Promise.resolve(consume(process.stdout)).catch((error: unknown) => {
      fail(error);
      return undefined;
    });
    const [exit, stdout] = await Promise.all([process.exited, consumed, process.drained()]);
    if (failures.length > 0) throw failures[0];
    const isOk = exit.exitCode !== undefined && (options.okExitCodes ?? [0]).includes(exit.exitCode);
    if (!isOk || exit.exitCode === undefined)
      throw exitFailure(argv[0], exit, process.stderrTail, options.errorCode ?? 'internal');
    return {
      exitCode: exit.exitCode,
      stdout: Buffer.isBuffer(stdout) ? stdout : Buffer.alloc(0),
      stderrTail: process.stderrTail,
    };
  } finally {
    timer?.cancel();
    signal?.removeEventListener('abort', onAbort);
  }
}

function feed(stdin: Writable, input: RunOptions['stdin'], fail: (error: unknown) => void): void {
  if (input === undefined || typeof input === 'string' || input instanceof Uint8Array) {
    stdin.end(input);
    return;
  }
  input.once('error', fail);
  stdin.once('close', () => input.destroy());
  input.pipe(stdin);
}

async function capture(stdout: Readable, program: string, maxBytes: number): Promise<Buffer> {
  const chunks: Buffer[] = [];
  let size = 0;
  for await (const chunk of stdout as AsyncIterable<Buffer>) {
    size += chunk.length;
    if (size > maxBytes)
      throw new PlatformError('internal', `${program} wrote more than ${maxBytes} bytes`, { details: { program } });
    chunks.push(chunk);
  }
  return Buffer.concat(chunks);
}

function exitFailure(program: string, exit: Exit, stderr: string, code: ErrorCode): PlatformError {
  const how =
    exit.exitCode === undefined ? `was ended by ${exit.signal ?? 'a signal'}` : `ended with exit code ${exit.exitCode}`;
  return new PlatformError(code, `${program} ${how}`, {
    details: { program, exitCode: exit.exitCode ?? null, signal: exit.signal ?? null, stderr },
  });
}
