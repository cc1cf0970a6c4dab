import type { Timing } from '../../platform/timing.ts';
import type { CommandRequest, CommandSink, RunningCommand } from '../transport.ts';
import { CommandConnection, type CommandConnectionOwner, type Ending } from './command-connection.ts';
import type { Origin } from './origin.ts';

/** A connection that broke, or did not come up, is made again no sooner than this after it was begun. */
const RETRY_MS = 1000;

/**
 * The one connection of many commands to one server. It is opened when the first command asks for it, and nobody waits: until it is there, while it
 * is full, and for ever where the server or something before it speaks only HTTP, commands go the other way.
 */
export class CommandLine implements CommandConnectionOwner {
  readonly #origin: Origin;
  readonly #timing: Timing;
  #connection: CommandConnection | undefined;
  #isRefused = false;
  #isClosed = false;
  #openedMs = -Infinity;

  constructor(origin: Origin, timing: Timing) {
    this.#origin = origin;
    this.#timing = timing;
  }

  /** Undefined: not now. */
  start(request: CommandRequest, sink: CommandSink): RunningCommand | undefined {
    if (this.#connection?.isReady === true) return this.#connection.start(request, sink);
    if (this.#connection === undefined && !this.#isRefused && !this.#isClosed) this.#open(request);
    return undefined;
  }

  close(reason: unknown): void {
    this.#isClosed = true;
    this.#connection?.destroy(reason);
  }

  onEnded(connection: CommandConnection, ending: Ending): void {
    if (this.#connection === connection) this.#connection = undefined;
    if (ending === 'refused') this.#isRefused = true;
  }

  #open({ url, authorization }: CommandRequest): void {
    const nowMs = this.#timing.monotonicMs();
    if (nowMs - this.#openedMs < RETRY_MS) return;
    this.#openedMs = nowMs;
    const path = url.slice(this.#origin.url.length);
    this.#connection = new CommandConnection(this.#origin, path, authorization, this.#timing, this);
  }
}
