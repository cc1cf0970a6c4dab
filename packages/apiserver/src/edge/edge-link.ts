/**
 * The connections to the edge. One is kept; more are opened when it carries many streams, and closed again when they are idle. While the edge
 * is away a request waits a little, since a restart takes about a second; it was not sent yet, so that waiting is safe for every request. What was
 * sent when a connection breaks ends with `connection_lost`: only its caller knows whether to ask again.
 */
import { PlatformError, StrangerOperationSchema, type StrangerOperation } from '@dsec/contract';
import {
  Backoff,
  compileSchema,
  orAborted,
  withDeadline,
  type Clock,
  type Logger,
  type Network,
  type Random,
  type Scope,
} from '@dsec/kit';
import { WireClient, type WireStream } from '@dsec/native-link';

export interface EdgeLinkOptions {
  readonly network: Network;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  /** Owns the connections. */
  readonly scope: Scope;
  readonly socket: string;
  /** How long a request waits for an edge that is away. Default 5,000. */
  readonly patienceMs?: number;
  /** Each connection begins with it, so that the edge knows it from that of a stranger. Default: none does. */
  readonly proof?: string | undefined;
  /** Told of what strangers ask the edge for; with `proof` only. */
  readonly onStranger?: (operation: StrangerOperation) => void;
}

const DEFAULT_PATIENCE_MS = 5000;
const RECONNECT = { baseMs: 10, maxMs: 250 } as const;
/** Another connection is opened when the one with the fewest has this many streams. */
const GROW_AT_STREAMS = 700;
const MAX_CONNECTIONS = 16;
/** Requests that may wait for the edge. */
const MAX_WAITING = 2048;
const IDLE_CHECK_MS = 30_000;

const strangerParser = compileSchema(StrangerOperationSchema);

export interface EdgeCallOptions {
  readonly signal?: AbortSignal | undefined;
}

/** Opens streams to the edge. */
export class EdgeLink {
  readonly #options: EdgeLinkOptions;
  readonly #patienceMs: number;
  readonly #clients: WireClient[] = [];
  #growing: Promise<void> | undefined;
  #waiting = 0;
  /** Settles when a connection comes up. */
  #up = Promise.withResolvers<undefined>();

  private constructor(options: EdgeLinkOptions) {
    this.#options = options;
    this.#patienceMs = options.patienceMs ?? DEFAULT_PATIENCE_MS;
  }

  /** Connects in the background, again and again. */
  static open(options: EdgeLinkOptions): EdgeLink {
    const link = new EdgeLink(options);
    options.scope.defer('connections to the edge', async () => {
      await Promise.all(link.#clients.map((client) => client.close()));
    });
    options.scope.run('connection to the edge', (signal) => link.#keepConnected(signal));
    options.scope.run('idle connections to the edge', (signal) => link.#closeIdle(signal));
    return link;
  }

  get isConnected(): boolean {
    return this.#clients.length > 0;
  }

  /**
   * Opens a stream, at once when that is possible.
   * @throws PlatformError `unavailable` when the edge stays away; `too_many_streams`
   */
  open(method: string, params: object, options: EdgeCallOptions = {}): WireStream | Promise<WireStream> {
    const client = this.#leastBusy();
    if (client === undefined || client.liveStreams >= GROW_AT_STREAMS) return this.#openLater(method, params, options);
    return client.open(method, params, options);
  }

  /** A call with one answer. */
  async call(method: string, params: object, options: EdgeCallOptions = {}): Promise<unknown> {
    const stream = this.open(method, params, options);
    return stream instanceof Promise ? await (await stream).result : await stream.result;
  }

  async #openLater(method: string, params: object, options: EdgeCallOptions): Promise<WireStream> {
    const { signal } = options;
    if (this.#waiting >= MAX_WAITING) throw new PlatformError('unavailable', 'too many requests wait for the edge');
    this.#waiting++;
    try {
      if (!this.isConnected) await this.#waitUntilUp(signal);
      for (;;) {
        const client = this.#leastBusy();
        if (client === undefined) throw edgeAway();
        // At the greatest number of connections, each refuses what it cannot carry.
        if (client.liveStreams < GROW_AT_STREAMS || this.#clients.length >= MAX_CONNECTIONS) {
          return client.open(method, params, options);
        }
        this.#growing ??= this.#grow();
        await orAborted(this.#growing, signal);
      }
    } finally {
      this.#waiting--;
    }
  }

  async #waitUntilUp(signal: AbortSignal | undefined): Promise<void> {
    const { clock } = this.#options;
    try {
      await withDeadline({ clock, what: 'waiting for the edge', signal, timeoutMs: this.#patienceMs }, (inner) =>
        orAborted(this.#up.promise, inner),
      );
    } catch (error) {
      if (PlatformError.is(error) && error.code === 'timeout') throw edgeAway();
      throw error;
    }
  }

  #leastBusy(): WireClient | undefined {
    let best = this.#clients[0];
    for (const client of this.#clients) {
      if (best === undefined || client.liveStreams < best.liveStreams) best = client;
    }
    return best;
  }

  async #grow(): Promise<void> {
    try {
      await this.#connect(this.#options.scope.signal);
    } finally {
      this.#growing = undefined;
    }
  }

  async #connect(signal: AbortSignal | undefined): Promise<WireClient> {
    const { network, clock, socket } = this.#options;
    const connection = await network.connectUnix(socket, { signal });
    const client: WireClient = WireClient.connect(connection, {
      role: 'apiserver',
      clock,
      onClose: () => {
        this.#forget(client);
      },
    });
    this.#prove(client);
    this.#clients.push(client);
    this.#up.resolve(undefined);
    return client;
  }

  /** Before anything else on the connection; what comes next need not wait for the answer. */
  #prove(client: WireClient): void {
    const { proof, logger } = this.#options;
    if (proof === undefined) return;
    client.call('edge.prove', { secret: proof }).catch((error: unknown) => {
      if (!client.isClosed) logger.error('edge.prove', { outcome: 'failed', error });
    });
  }

  /** Hears of strangers as long as the connection lives. */
  async #hear(client: WireClient): Promise<void> {
    const { proof, onStranger, logger } = this.#options;
    if (proof === undefined || onStranger === undefined) return;
    try {
      for await (const item of client.open('edge.strangers', {})) {
        if (item.type === 'message')
          onStranger(strangerParser.parse(item.value, { what: 'a stranger', code: 'protocol_error' }));
      }
    } catch (error) {
      if (!client.isClosed) logger.error('edge.strangers', { outcome: 'failed', error });
    }
  }

  #forget(client: WireClient): void {
    const index = this.#clients.indexOf(client);
    if (index >= 0) this.#clients.splice(index, 1);
    if (this.#clients.length === 0) this.#up = Promise.withResolvers();
  }

  async #keepConnected(signal: AbortSignal): Promise<void> {
    const { clock, random, logger } = this.#options;
    const backoff = new Backoff(RECONNECT, random);
    let isAway = false;
    while (!signal.aborted) {
      try {
        const client = await this.#connect(signal);
        backoff.reset();
        logger.info('edge.connected');
        isAway = false;
        void this.#hear(client);
        await orAborted(client.closed, signal);
        logger.warn('edge.lost', { error: client.error });
      } catch (error) {
        if (signal.aborted) break;
        if (!isAway) logger.warn('edge.away', { error });
        isAway = true;
      }
      await clock.sleep(backoff.nextMs(), { signal });
    }
  }

  async #closeIdle(signal: AbortSignal): Promise<void> {
    for (;;) {
      await this.#options.clock.sleep(IDLE_CHECK_MS, { signal });
      const idle = this.#clients.slice(1).filter((client) => client.liveStreams === 0);
      await Promise.all(idle.map((client) => client.close()));
    }
  }
}

const edgeAway = (): PlatformError =>
  new PlatformError('unavailable', 'the edge does not answer; it may be restarting');
