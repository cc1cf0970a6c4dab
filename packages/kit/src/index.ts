export { abortError, orAborted, throwIfAborted } from './abort.ts';
export { BoundedQueue } from './bounded-queue.ts';
export { ManualClock, SystemClock, type Clock, type SleepOptions, type Timer } from './clock.ts';
export { envVariable, loadConfig, printableConfig, type ConfigOptions } from './config.ts';
export type { DatagramOptions, DatagramSocket, OnDatagram, Peer } from './datagrams.ts';
export { askedToEnd, daemonConfig, exitOnFault } from './daemon.ts';
export { Deadline, withDeadline, type DeadlineOptions } from './deadline.ts';
export { syncDirectory, writeDurably, type DurableOptions } from './durable.ts';
export {
  createLogger,
  errorFields,
  logOperation,
  MemoryLogger,
  silentLogger,
  type LogFields,
  type Logger,
  type LoggerOptions,
  type LogLevel,
  type LogRecord,
} from './logger.ts';
export { mountPoints } from './mounts.ts';
export {
  connectionPair,
  MemoryNetwork,
  SystemNetwork,
  type Connection,
  type ConnectOptions,
  type Listener,
  type Network,
  type OnConnection,
} from './network.ts';
export { dropPrivileges, type Identity } from './privileges.ts';
export { SeededRandom, SystemRandom, type Random } from './random.ts';
export { redact } from './redact.ts';
export { Backoff, retry, type BackoffPolicy, type RetryOptions } from './retry.ts';
export { compileSchema, type ParseOptions, type Parser } from './schema.ts';
export { Scope, type ScopeOptions } from './scope.ts';
export { Semaphore, type SemaphoreOptions } from './semaphore.ts';
export {
  Process,
  run,
  type Argv,
  type DaemonOptions,
  type Exit,
  type ProcessOptions,
  type RunOptions,
  type RunResult,
} from './spawn.ts';
