/**
 * A command over a WebSocket. Binary frames carry its stdin and its output (of a plain command stdout and stderr, as a terminal would show
 * them). Text frames carry JSON: from the client `{"resize":{"rows","cols"}}` and `{"eof":true}`; from here `{"started"}`, `{"gap"}`, and at the end
 * `{"exit"}` or `{"error"}`.
 */
import { KEEPALIVE_MS, PlatformError, ResizeSchema, type ExecStreamMessage } from '@dsec/contract';
import { compileSchema, type Clock, type Timer } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import { Type } from 'typebox';
import type { RawData, WebSocket } from 'ws';
import { asPlatformError } from '../http/error-reply.ts';
import type { Services } from '../services.ts';
import { followExec, type Started } from './exec-events.ts';

const closed = { additionalProperties: false } as const;
const ClientMessageSchema = Type.Union([
  Type.Object({ resize: ResizeSchema }, closed),
  Type.Object({ eof: Type.Literal(true) }, closed),
]);
const parser = compileSchema(ClientMessageSchema);

/** Output that may wait for a slow client before the command is held back. */
const MAX_BUFFERED_BYTES = 256 * 1024;
const CLOSE_OK = 1000;
const CLOSE_REFUSED = 1008;

export interface ExecSocketOptions {
  readonly sandboxId: string;
  readonly execId: string;
  readonly started: Started;
}

/** Joins a WebSocket with the stream of `exec.attach` until either ends; the command goes on. */
export async function joinExecSocket(
  services: Services,
  socket: WebSocket,
  stream: WireStream,
  options: ExecSocketOptions,
): Promise<void> {
  const { started } = options;
  const input = new SocketInput(services, socket, stream, options);
  using _ping = new Pinger(socket, services.clock);
  socket.on('close', () => stream.reset());
  socket.on('error', () => socket.terminate());
  socket.on('message', (data, isBinary) => input.take(data, isBinary));
  const send = (message: ExecStreamMessage): void => socket.send(JSON.stringify(message));
  send({ started: { execId: started.execId, pid: started.pid } });
  try {
    const status = await followExec(stream, {
      output: (_channel, bytes) => sendBytes(socket, bytes),
      gap: (gap) => {
        send({ gap });
        return undefined;
      },
    });
    send({ exit: status });
    socket.close(CLOSE_OK);
  } catch (thrown) {
    const error = asPlatformError(thrown);
    stream.reset(error);
    if (socket.readyState === socket.OPEN) send({ error: error.toWire() });
    socket.close(CLOSE_OK);
  } finally {
    input.end();
  }
}

function sendBytes(socket: WebSocket, bytes: Buffer): Promise<void> | undefined {
  if (socket.bufferedAmount < MAX_BUFFERED_BYTES) {
    socket.send(bytes);
    return undefined;
  }
  return new Promise((resolve, reject) => {
    socket.send(bytes, (error) => {
      if (error === undefined || error === null) resolve();
      else reject(error);
    });
  });
}

/** What comes from the client, in its order. */
class SocketInput {
  readonly #services: Services;
  readonly #socket: WebSocket;
  readonly #attached: WireStream;
  readonly #options: ExecSocketOptions;
  /** Of a plain command, opened with its first byte; a pty takes its input by the stream that shows it. */
  #stdin: WireStream | undefined;
  #last: Promise<void> = Promise.resolve();
  #isOver = false;

  constructor(services: Services, socket: WebSocket, attached: WireStream, options: ExecSocketOptions) {
    this.#services = services;
    this.#socket = socket;
    this.#attached = attached;
    this.#options = options;
  }

  get #isPty(): boolean {
    return this.#options.started.clientId !== undefined;
  }

  take(data: RawData, isBinary: boolean): void {
    // What is not yet taken holds the client back.
    this.#socket.pause();
    this.#last = this.#last.then(async () => {
      try {
        const bytes = Buffer.isBuffer(data) ? data : Buffer.concat(Array.isArray(data) ? data : [Buffer.from(data)]);
        if (!this.#isOver) await (isBinary ? this.#write(bytes) : this.#obey(bytes.toString('utf8')));
      } catch (error) {
        this.#refuse(asPlatformError(error));
      }
      this.#socket.resume();
    });
  }

  /** The command has ended, or its client is gone: input that was not closed stays open. */
  end(): void {
    this.#isOver = true;
    this.#stdin?.reset();
  }

  async #write(bytes: Buffer): Promise<void> {
    const stream = this.#isPty ? this.#attached : await this.#openStdin();
    try {
      await stream.write(bytes);
    } catch {
      // The outcome of the stream says why, and is told once.
    }
  }

  async #openStdin(): Promise<WireStream> {
    const { sandboxId, execId } = this.#options;
    if (this.#stdin !== undefined) return this.#stdin;
    this.#stdin = await this.#services.edge.open('exec.stdin', { sandboxId, execId });
    // It may have ended while the stream was opened; one that stays open would keep the sandbox busy.
    if (this.#isOver) this.#stdin.reset();
    this.#stdin.result.catch((error: unknown) => this.#refuse(asPlatformError(error)));
    return this.#stdin;
  }

  async #obey(text: string): Promise<void> {
    const { sandboxId, execId, started } = this.#options;
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch (cause) {
      throw new PlatformError('invalid_argument', 'the text frame is not JSON', { details: { field: '' }, cause });
    }
    const message = parser.parse(value, { what: 'the text frame' });
    if ('resize' in message) {
      const client = started.clientId === undefined ? {} : { clientId: started.clientId };
      await this.#services.edge.call('exec.resize', { sandboxId, execId, ...message.resize, ...client });
      return;
    }
    if (this.#isPty) {
      this.#attached.end();
      return;
    }
    (await this.#openStdin()).end();
  }

  #refuse(error: PlatformError): void {
    if (this.#socket.readyState !== this.#socket.OPEN || error.code === 'cancelled') return;
    this.#socket.send(JSON.stringify({ error: error.toWire() }));
    // A command that ends while it is written to still has its exit to tell.
    if (error.code === 'invalid_argument') this.#socket.close(CLOSE_REFUSED);
  }
}

/** Keeps a silent connection alive, and ends one whose other side is gone. */
class Pinger implements Disposable {
  readonly #socket: WebSocket;
  readonly #clock: Clock;
  #timer: Timer | undefined;
  #isAnswered = true;

  constructor(socket: WebSocket, clock: Clock) {
    this.#socket = socket;
    this.#clock = clock;
    socket.on('pong', () => {
      this.#isAnswered = true;
    });
    this.#arm();
  }

  #arm(): void {
    this.#timer = this.#clock.setTimer(KEEPALIVE_MS, () => {
      if (!this.#isAnswered) {
        this.#socket.terminate();
        return;
      }
      this.#isAnswered = false;
      this.#socket.ping();
      this.#arm();
    });
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel();
  }
}
