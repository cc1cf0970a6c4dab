import {
  COMMAND_CONNECTION_PATH,
  execStreamKind,
  type ExecStatus,
  type ExecStreamMessage,
  type SandboxInfo,
} from '@dsec/contract';
import http from 'node:http';
import type { AddressInfo } from 'node:net';
import type { Duplex } from 'node:stream';

const COMMANDS = `/v1${COMMAND_CONNECTION_PATH}`;

/** One request as it came, and the ways to answer it. */
export class Exchange {
  readonly method: string;
  readonly path: string;
  readonly query: URLSearchParams;
  readonly headers: http.IncomingHttpHeaders;
  readonly body: Buffer;
  readonly response: http.ServerResponse;

  constructor(request: http.IncomingMessage, body: Buffer, response: http.ServerResponse) {
    const url = new URL(request.url ?? '/', 'http://server');
    this.method = request.method ?? '';
    this.path = url.pathname;
    this.query = url.searchParams;
    this.headers = request.headers;
    this.body = body;
    this.response = response;
  }

  get json(): unknown {
    return JSON.parse(this.body.toString()) as unknown;
  }

  answer(value: unknown, status = 200): void {
    this.response.writeHead(status, { 'content-type': 'application/json' }).end(JSON.stringify(value));
  }

  fail(status: number, code: string): void {
    const error = {
      code,
      message: `scripted ${code}`,
      details: {},
      retryable: false,
      infrastructure: false,
      fix: '',
      requestId: 'r1',
    };
    this.answer({ error }, status);
  }

  /** Sends parts of an exec stream, without ending it. */
  send(...records: readonly Uint8Array[]): void {
    if (!this.response.headersSent) this.response.writeHead(200);
    for (const record of records) this.response.write(record);
  }

  /** Breaks the connection once what was sent is out. */
  cut(): void {
    this.response.write('', () => this.response.socket?.destroy());
  }
}

/**
 * Stands in for a server in faults that a real one cannot be made to have at will: streams cut between two bytes, refusals,
 * silence. The suites that start real servers show that the SDK and the real one agree.
 */
export class ScriptedServer implements AsyncDisposable {
  readonly exchanges: Exchange[] = [];
  readonly #onCommands: ((socket: Duplex) => void) | undefined;
  readonly #onExchange: (exchange: Exchange, index: number) => void;
  #server: http.Server;
  #port = 0;

  constructor(onExchange: (exchange: Exchange, index: number) => void, onCommands?: (socket: Duplex) => void) {
    this.#onExchange = onExchange;
    this.#onCommands = onCommands;
    this.#server = this.#create();
  }

  /** `onCommands` gets connections that ask for the protocol of many commands, before any answer. */
  static async start(
    onExchange: (exchange: Exchange, index: number) => void,
    onCommands?: (socket: Duplex) => void,
  ): Promise<ScriptedServer> {
    const server = new ScriptedServer(onExchange, onCommands);
    await server.listen();
    return server;
  }

  get endpoint(): string {
    return `http://127.0.0.1:${this.#port}`;
  }

  /** Listens, after `stop` on the same port as before. */
  async listen(): Promise<void> {
    this.#server = this.#create();
    await new Promise<void>((resolve) => this.#server.listen(this.#port, '127.0.0.1', resolve));
    this.#port = (this.#server.address() as AddressInfo).port;
  }

  async stop(): Promise<void> {
    this.#server.closeAllConnections();
    await new Promise((resolve) => this.#server.close(resolve));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
  }

  #create(): http.Server {
    const server = http.createServer((request, response) => {
      // Unless it is told otherwise it speaks only HTTP, which a client finds out by itself.
      if (request.url === COMMANDS) {
        response.writeHead(404).end();
        return;
      }
      const chunks: Buffer[] = [];
      request.on('error', () => undefined);
      request.on('data', (chunk: Buffer) => chunks.push(chunk));
      request.on('end', () => {
        const exchange = new Exchange(request, Buffer.concat(chunks), response);
        this.exchanges.push(exchange);
        this.#onExchange(exchange, this.exchanges.length - 1);
      });
    });
    const onCommands = this.#onCommands;
    if (onCommands !== undefined)
      server.on('upgrade', (_request, socket: Duplex) => {
        socket.on('error', () => undefined);
        onCommands(socket);
      });
    return server;
  }
}

/** One record of an exec stream. */
export function record(kind: keyof typeof execStreamKind, payload: string | Uint8Array | ExecStreamMessage): Buffer {
  const text = typeof payload === 'string' || payload instanceof Uint8Array ? payload : JSON.stringify(payload);
  const bytes = Buffer.from(text);
  const header = Buffer.alloc(5);
  header.writeUInt8(execStreamKind[kind], 0);
  header.writeUInt32LE(bytes.length, 1);
  return Buffer.concat([header, bytes]);
}

export const started = record('json', { started: { execId: 'exec1', pid: 7 } });

export const exited = (changes: Partial<ExecStatus> = {}): Buffer =>
  record('json', { exit: { ...exitStatus, ...changes } });

export const exitStatus: ExecStatus = {
  execId: 'exec1',
  state: 'exited',
  pid: 7,
  pty: false,
  startedAtMs: 1,
  durationMs: 2,
  exitCode: 0,
  timedOut: false,
  oomKilled: false,
  stdoutBytes: 0,
  stderrBytes: 0,
  stdoutDropped: 0,
  stderrDropped: 0,
};

export const sandboxInfo: SandboxInfo = {
  sandboxId: 's0001',
  environment: 'debian',
  workspace: null,
  toolkits: [],
  backend: 'container',
  state: 'running',
  cause: null,
  createdAtMs: 1,
  endedAtMs: null,
  ttlEndsAtMs: 2,
  idleEndsAtMs: null,
  memoryMib: 64,
  cpuMillis: 1000,
  diskMib: 64,
  pids: 64,
  ttlRunningStopSeconds: 60,
  user: 'root',
  workdir: '/',
  hostname: 's0001',
  policy: { profile: 'default', phase: null, version: 1 },
  networkRules: {},
  metadata: {},
};
