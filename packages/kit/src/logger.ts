/** Structured logs: one JSON line per event on stderr, one canonical line per operation, secrets left out. */
import { writeSync } from 'node:fs';
import { PlatformError } from '@dsec/contract';
import { pino, type DestinationStream } from 'pino';
import type { Clock, Timer } from './clock.ts';
import { redact } from './redact.ts';

export type LogLevel = 'debug' | 'info' | 'warn' | 'error' | 'silent';
export type LogFields = Readonly<Record<string, unknown>>;

/** Writes events. `event` is a short dotted name; everything else is a field. */
export interface Logger {
  debug(event: string, fields?: LogFields): void;
  info(event: string, fields?: LogFields): void;
  warn(event: string, fields?: LogFields): void;
  /** `fields.error` is written with its chain of causes. */
  error(event: string, fields?: LogFields): void;
  /** A logger that adds `fields` to each line. */
  child(fields: LogFields): Logger;
}

export interface LoggerOptions {
  /** The process that writes. */
  readonly component: string;
  readonly level?: LogLevel;
  /** Default: stderr. */
  readonly destination?: DestinationStream;
  /**
   * With a clock, lines below `warn` may wait up to 50 ms and are written together: a process that serves many requests saves a system
   * call for each. Nothing is lost but by SIGKILL.
   */
  readonly clock?: Clock;
}

const BATCH_CHARS = 16_384;
const BATCH_MS = 50;

const MAX_CAUSES = 8;

/** An error with its causes, as fields. */
export function errorFields(error: unknown, depth = 0): unknown {
  if (!(error instanceof Error)) return redact(error);
  return {
    ...(PlatformError.is(error) ? { code: error.code, details: redact(error.details) } : { name: error.name }),
    message: error.message,
    ...('code' in error && !PlatformError.is(error) ? { code: error.code } : {}),
    stack: error.stack,
    ...(error.cause !== undefined && depth < MAX_CAUSES ? { cause: errorFields(error.cause, depth + 1) } : {}),
    ...(error instanceof AggregateError
      ? { errors: error.errors.slice(0, MAX_CAUSES).map((inner) => errorFields(inner, depth + 1)) }
      : {}),
  };
}

function prepare(fields: LogFields | undefined): Record<string, unknown> {
  if (fields === undefined) return {};
  const { error, ...rest } = fields;
  const prepared = redact(rest) as Record<string, unknown>;
  if (error !== undefined) prepared.error = errorFields(error);
  return prepared;
}

type PinoLike = Pick<ReturnType<typeof pino>, 'debug' | 'info' | 'warn' | 'error' | 'isLevelEnabled'> & {
  child(fields: object): PinoLike;
};

function wrap(target: PinoLike, flush: () => void): Logger {
  const at = (level: 'debug' | 'info' | 'warn' | 'error') => (event: string, fields?: LogFields) => {
    if (!target.isLevelEnabled(level)) return;
    target[level]({ event, ...prepare(fields) });
    if (level === 'warn' || level === 'error') flush();
  };
  return {
    debug: at('debug'),
    info: at('info'),
    warn: at('warn'),
    error: at('error'),
    child: (fields) => wrap(target.child(prepare(fields)), flush),
  };
}

export function createLogger(options: LoggerOptions): Logger {
  const { clock } = options;
  const batched = clock === undefined || options.destination !== undefined ? undefined : new BatchedStderr(clock);
  const destination = options.destination ?? batched ?? pino.destination({ fd: 2, sync: true });
  return wrap(
    pino(
      {
        level: options.level ?? 'info',
        base: { component: options.component },
        formatters: { level: (label) => ({ level: label }) },
      },
      destination,
    ),
    () => batched?.flush(),
  );
}

/**
 * Stderr, written to at most once in `BATCH_MS`. Whoever reads it may be gone, or read nothing: then lines are lost, and the process goes on, or
 * ends. (pino's own destination tries again for ever.)
 */
class BatchedStderr implements DestinationStream {
  readonly #clock: Clock;
  #lines: string[] = [];
  #chars = 0;
  #timer: Timer | undefined;

  constructor(clock: Clock) {
    this.#clock = clock;
    process.once('exit', () => this.flush());
  }

  write(line: string): void {
    this.#lines.push(line);
    this.#chars += line.length;
    if (this.#chars >= BATCH_CHARS) this.flush();
    else this.#timer ??= this.#clock.setTimer(BATCH_MS, () => this.flush());
  }

  flush(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    const text = this.#lines.join('');
    this.#lines = [];
    this.#chars = 0;
    if (text !== '') writeStderr(Buffer.from(text));
  }
}

const STDERR = 2;
/** How often, and how long in between, room is waited for in a pipe that is full. */
const FULL_TRIES = 100;
const FULL_PAUSE_MS = 10;
const pause = new Int32Array(new SharedArrayBuffer(4));

function writeStderr(bytes: Buffer): void {
  let tries = 0;
  for (let at = 0; at < bytes.length; ) {
    try {
      at += writeSync(STDERR, bytes, at);
      tries = 0;
    } catch (error) {
      const isFull = error instanceof Error && 'code' in error && error.code === 'EAGAIN';
      if (!isFull || ++tries > FULL_TRIES) return;
      Atomics.wait(pause, 0, 0, FULL_PAUSE_MS);
    }
  }
}

/** A logger that writes nothing. */
export const silentLogger: Logger = {
  debug: () => undefined,
  info: () => undefined,
  warn: () => undefined,
  error: () => undefined,
  child: () => silentLogger,
};

export interface LogRecord {
  readonly level: Exclude<LogLevel, 'silent'>;
  readonly event: string;
  readonly fields: LogFields;
}

/** Keeps what was logged, for tests. */
export class MemoryLogger implements Logger {
  readonly records: LogRecord[];
  readonly #fields: LogFields;

  constructor(records: LogRecord[] = [], fields: LogFields = {}) {
    this.records = records;
    this.#fields = fields;
  }

  debug(event: string, fields?: LogFields): void {
    this.#add('debug', event, fields);
  }

  info(event: string, fields?: LogFields): void {
    this.#add('info', event, fields);
  }

  warn(event: string, fields?: LogFields): void {
    this.#add('warn', event, fields);
  }

  error(event: string, fields?: LogFields): void {
    this.#add('error', event, fields);
  }

  child(fields: LogFields): Logger {
    return new MemoryLogger(this.records, { ...this.#fields, ...prepare(fields) });
  }

  #add(level: LogRecord['level'], event: string, fields: LogFields | undefined): void {
    this.records.push({ level, event, fields: { ...this.#fields, ...prepare(fields) } });
  }
}

export interface OperationOptions {
  readonly logger: Logger;
  readonly clock: Clock;
  readonly event: string;
  readonly fields?: LogFields;
}

/** Runs an operation and writes its one canonical line: event, outcome, durationMs and the given fields. */
export async function logOperation<T>(options: OperationOptions, operation: () => Promise<T>): Promise<T> {
  const { logger, clock, event } = options;
  const startedMs = clock.monotonicMs();
  const duration = (): number => Math.round((clock.monotonicMs() - startedMs) * 1000) / 1000;
  try {
    const result = await operation();
    logger.info(event, { ...options.fields, outcome: 'ok', durationMs: duration() });
    return result;
  } catch (error) {
    const outcome = PlatformError.is(error) ? error.code : 'internal';
    const fields = { ...options.fields, outcome, durationMs: duration(), error };
    if (outcome === 'internal') logger.error(event, fields);
    else logger.warn(event, fields);
    throw error;
  }
}
