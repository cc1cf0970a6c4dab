import { PlatformError } from '@dsec/contract';
import { Backoff, Process, type Argv, type Clock, type Exit, type Logger, type Random } from '@dsec/kit';
import { copyToLog } from './rotating-log.ts';

/** Waits between restarts of a daemon that keeps dying. */
const RESTART = { baseMs: 100, maxMs: 10_000 } as const;
/** One that lived this long starts anew with short waits. */
const STEADY_MS = 30_000;
/** A daemon that is told to end is killed after this long. */
const STOP_MS = 10_000;
/** What a daemon that died has written is waited for this long: a child of it may hold its stderr. */
const LAST_WORDS_MS = 1000;
/** Kept of what a daemon said last, for the error when it does not start. */
const TAIL_CHARS = 4000;

export interface DaemonOptions {
  readonly name: string;
  readonly argv: Argv;
  readonly env: Readonly<Record<string, string>>;
  readonly logFile: string;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  /** Resolves when the process that has just been started does its work; rejects when `signal` is aborted. */
  readonly isReady: (signal: AbortSignal) => Promise<void>;
  /** It has been started anew and is ready. */
  readonly onRestarted: (pid: number) => Promise<void>;
}

/** One daemon, which is started again whenever it dies, until it is stopped. */
export class Daemon implements AsyncDisposable {
  readonly #options: DaemonOptions;
  readonly #stopping = new AbortController();
  #process: Process | undefined;
  #tail = '';
  #copied: Promise<void> = Promise.resolve();
  #watching: Promise<void> = Promise.resolve();

  private constructor(options: DaemonOptions) {
    this.#options = options;
  }

  /** Resolves when it is ready for the first time. @throws PlatformError `host_unsuitable` with what it said, when it ends before that */
  static async start(options: DaemonOptions): Promise<Daemon> {
    const daemon = new Daemon(options);
    try {
      const first = await daemon.#launch();
      await daemon.#untilReady(first);
      daemon.#watching = daemon.#watch(first);
      return daemon;
    } catch (error) {
      await daemon[Symbol.asyncDispose]();
      throw error;
    }
  }

  get pid(): number {
    return this.#process?.pid ?? 0;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stopping.abort();
    await this.#process?.stop();
    await this.#watching;
    await this.#lastWords();
    // A child of it that goes on must not keep this process.
    await this.#process?.abandon();
  }

  /** Waits for what it has written, as long as that may take. */
  async #lastWords(): Promise<void> {
    const waiting = new AbortController();
    const late = this.#options.clock.sleep(LAST_WORDS_MS, { signal: waiting.signal }).catch(() => undefined);
    await Promise.race([this.#copied, late]);
    waiting.abort();
  }

  async #launch(): Promise<Process> {
    const { argv, env, clock, logFile } = this.#options;
    const process = await Process.start(argv, {
      clock,
      env,
      stdin: 'pipe',
      stdout: 'ignore',
      stderr: 'pipe',
      killAfterMs: STOP_MS,
    });
    this.#process = process;
    this.#tail = '';
    const onChunk = (chunk: Buffer): void => {
      this.#tail = (this.#tail + chunk.toString()).slice(-TAIL_CHARS);
    };
    const onLost = (error: unknown): void =>
      this.#options.logger.error('daemon.log', { name: this.#options.name, error });
    this.#copied = copyToLog(process.stderr, logFile, { onChunk, onLost }).catch(onLost);
    return process;
  }

  async #untilReady(process: Process): Promise<void> {
    const { name, isReady } = this.#options;
    const waiting = new AbortController();
    const onStop = (): void => waiting.abort();
    this.#stopping.signal.addEventListener('abort', onStop, { once: true });
    const died = process.exited.then(async (exit) => {
      // Its last words may still be on their way.
      await this.#lastWords();
      throw this.#startFailure(exit);
    });
    // It is the other side of the race that reports, when it comes first.
    died.catch(() => undefined);
    try {
      await Promise.race([isReady(waiting.signal), died]);
    } catch (error) {
      if (PlatformError.is(error) && error.code === 'timeout') {
        throw new PlatformError('host_unsuitable', `the ${name} did not become ready in time`, {
          details: { missing: name, output: this.#tail },
          cause: error,
        });
      }
      throw error;
    } finally {
      waiting.abort();
      this.#stopping.signal.removeEventListener('abort', onStop);
    }
  }

  #startFailure(exit: Exit): PlatformError {
    const { name } = this.#options;
    const how =
      exit.exitCode === undefined
        ? `was ended by ${exit.signal ?? 'a signal'}`
        : `ended with exit code ${exit.exitCode}`;
    return new PlatformError('host_unsuitable', `the ${name} ${how} before it was ready`, {
      details: { missing: name, output: this.#tail },
    });
  }

  async #watch(first: Process): Promise<void> {
    const { name, clock, logger, random, onRestarted } = this.#options;
    const backoff = new Backoff(RESTART, random);
    let process = first;
    let startedMs = clock.monotonicMs();
    while (!this.#stopping.signal.aborted) {
      const exit = await process.exited;
      if (this.#stopping.signal.aborted) return;
      logger.warn('daemon.died', { name, ...exit });
      if (clock.monotonicMs() - startedMs > STEADY_MS) backoff.reset();
      try {
        await clock.sleep(backoff.nextMs(), { signal: this.#stopping.signal });
        startedMs = clock.monotonicMs();
        process = await this.#launch();
        await this.#untilReady(process);
        logger.info('daemon.restarted', { name, pid: process.pid });
        // It does its work all the same when nobody can be told, as on a full disk.
        await onRestarted(process.pid).catch((error: unknown) => logger.error('daemon.untold', { name, error }));
      } catch (error) {
        if (this.#stopping.signal.aborted) return;
        logger.error('daemon.restart', { name, error });
        await process.stop();
      }
    }
  }
}
