import { PlatformError } from '@dsec/contract';
import { Deferred } from '../../deferred.ts';
import type { Timing } from '../../platform/timing.ts';
import type { CommandRequest, CommandSink, RunningCommand, TransportRequest } from '../transport.ts';
import { CommandLine } from './command-line.ts';
import { Connection, type ConnectionOwner } from './connection.ts';
import type { NodeResponse } from './node-response.ts';
import type { Origin } from './origin.ts';

/**
 * Most connections to one server. Each running command holds one, so this bounds the commands that one client can
 * follow at once; further requests wait.
 */
const MAX_CONNECTIONS = 4096;
/** Connections that are kept open without use. */
const MAX_IDLE_CONNECTIONS = 256;

/** The connections to one server. */
export class ConnectionPool implements ConnectionOwner {
  readonly #origin: Origin;
  readonly #timing: Timing;
  readonly #all = new Set<Connection>();
  /** The one used last is used next, so that those which are too many grow old. */
  readonly #idle: Connection[] = [];
  readonly #waiting = new Set<() => void>();
  readonly #commands: CommandLine;
  #isClosed = false;

  constructor(origin: Origin, timing: Timing) {
    this.#origin = origin;
    this.#timing = timing;
    this.#commands = new CommandLine(origin, timing);
  }

  startCommand(request: CommandRequest, sink: CommandSink): RunningCommand | undefined {
    return this.#commands.start(request, sink);
  }

  send(request: TransportRequest): Promise<NodeResponse> {
    const connection = this.#take();
    return connection === undefined ? this.#sendLater(request) : connection.send(request);
  }

  /** Breaks all connections, and those who wait for one. */
  close(): void {
    this.#isClosed = true;
    for (const connection of this.#all) connection.destroy(clientClosed());
    this.#commands.close(clientClosed());
    for (const wake of this.#waiting) wake();
  }

  onIdle(connection: Connection): void {
    if (this.#isClosed || this.#idle.length >= MAX_IDLE_CONNECTIONS) {
      connection.destroy(undefined);
      return;
    }
    this.#idle.push(connection);
    connection.rest();
    this.#wakeOne();
  }

  onClosed(connection: Connection): void {
    this.#all.delete(connection);
    const at = this.#idle.indexOf(connection);
    if (at >= 0) this.#idle.splice(at, 1);
    this.#wakeOne();
  }

  #take(): Connection | undefined {
    if (this.#isClosed) throw clientClosed();
    for (let kept = this.#idle.pop(); kept !== undefined; kept = this.#idle.pop()) {
      if (kept.isFresh) return kept;
      kept.destroy(undefined);
    }
    if (this.#all.size >= MAX_CONNECTIONS) return undefined;
    const connection = new Connection(this.#origin, this.#timing, this);
    this.#all.add(connection);
    return connection;
  }

  async #sendLater(request: TransportRequest): Promise<NodeResponse> {
    const { cancellation } = request;
    for (;;) {
      const turn = new Deferred<void>();
      const wake = (): void => turn.resolve();
      this.#waiting.add(wake);
      const stopListening = cancellation?.onCancel(wake);
      try {
        await turn.promise;
      } finally {
        this.#waiting.delete(wake);
        stopListening?.();
      }
      if (cancellation?.isCancelled === true) {
        // The turn may have been given to this one.
        this.#wakeOne();
        throw cancellation.reason as Error;
      }
      const connection = this.#take();
      if (connection !== undefined) return await connection.send(request);
    }
  }

  #wakeOne(): void {
    const [first] = this.#waiting;
    if (first === undefined) return;
    this.#waiting.delete(first);
    first();
  }
}

const clientClosed = (): PlatformError => new PlatformError('cancelled', 'the client was closed');
