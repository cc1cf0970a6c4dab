/** A whole apiserver on a real port, before an edge that a test scripts, over a real unix socket. */
import { mkdtemp, rm } from 'node:fs/promises';
import { request as httpRequest, type IncomingHttpHeaders, type RequestOptions } from 'node:http';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { Readable } from 'node:stream';
import {
  PlatformError,
  SandboxIds,
  type EnvironmentImage,
  type ErrorBody,
  type ExecStatus,
  type SandboxInfo,
} from '@dsec/contract';
import { hashSecret, Keys } from '@dsec/iam';
import { MemoryLogger, Scope, SystemClock, SystemNetwork, SystemRandom, type Clock, type Listener } from '@dsec/kit';
import { serve, type WireServer, type WireServerStream } from '@dsec/native-link';
import { EmbeddedStore } from '@dsec/store';
import { buildApp } from './app.ts';
import { AuditLog } from './audit/audit-log.ts';
import { RequestAudit } from './audit/request-audit.ts';
import { CommandDigest } from './audit/request-subject.ts';
import { EdgeLink } from './edge/edge-link.ts';
import { Environments } from './environments/environments.ts';
import { LinkKey } from './link-key.ts';
import type { Services } from './services.ts';

export type Params = Readonly<Record<string, unknown>>;
/** Answers a stream as a handler of the wire protocol does. */
export type Script = (params: Params, stream: WireServerStream) => Promise<unknown> | void;

/** Speaks as an edge what a test tells it to. */
export class ScriptedEdge implements AsyncDisposable {
  readonly calls: { readonly method: string; readonly params: Params }[] = [];
  readonly faults: unknown[] = [];
  readonly #scripts = new Map<string, Script>();
  readonly #servers = new Set<WireServer>();
  readonly #socket: string;
  #listener: Listener | undefined;

  constructor(socket: string) {
    this.#socket = socket;
  }

  on(method: string, script: Script): void {
    this.#scripts.set(method, script);
  }

  /** Params of the last call of a method. */
  last(method: string): Params | undefined {
    return this.calls.findLast((call) => call.method === method)?.params;
  }

  get connections(): number {
    return this.#servers.size;
  }

  async start(): Promise<void> {
    this.#listener = await new SystemNetwork().listenUnix(this.#socket, (connection) => {
      const server = serve(
        connection,
        (method, params, stream) => {
          this.calls.push({ method, params });
          const script = this.#scripts.get(method);
          if (script === undefined) throw new PlatformError('unknown_method', `nothing is scripted for ${method}`);
          return script(params, stream);
        },
        {
          role: 'edge',
          clock: new SystemClock(),
          onFault: (fault) => void this.faults.push(fault),
          onClose: () => this.#servers.delete(server),
        },
      );
      this.#servers.add(server);
    });
  }

  /** As when the process dies. */
  async stop(): Promise<void> {
    await this.#listener?.close();
    this.#listener = undefined;
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.stop();
  }
}

export const ADMIN_KEY = 'dsec_admin_key_of_the_tests';
const ID_KEY = Buffer.alloc(32, 7);
export const EDGE_NUMBER = 5;

export const image: EnvironmentImage = {
  layers: [`sha256:${'a'.repeat(64)}`],
  config: { env: {}, user: 'root', workdir: '/', entrypoint: [], cmd: [], labels: {} },
  architecture: 'amd64',
  sizeBytes: 1,
};

export interface Answer {
  readonly status: number;
  readonly headers: IncomingHttpHeaders;
  readonly body: Buffer;
  readonly text: string;
  json<T = unknown>(): T;
  readonly error: ErrorBody['error'];
}

export interface Ask extends RequestOptions {
  readonly body?: string | Uint8Array | Readable;
  /** Sent as JSON. */
  readonly json?: unknown;
  /** Undefined: the admin key; null: none. */
  readonly key?: string | null;
}

/** The apiserver and its edge; dispose it when the test is over. */
export class Fixture implements AsyncDisposable {
  readonly edge: ScriptedEdge;
  readonly services: Services;
  readonly logger: MemoryLogger;
  readonly port: number;
  readonly sandboxId: string;
  readonly #scope: Scope;
  readonly #directory: string;

  private constructor(parts: {
    edge: ScriptedEdge;
    services: Services;
    logger: MemoryLogger;
    port: number;
    scope: Scope;
    directory: string;
  }) {
    this.edge = parts.edge;
    this.services = parts.services;
    this.logger = parts.logger;
    this.port = parts.port;
    this.#scope = parts.scope;
    this.#directory = parts.directory;
    this.sandboxId = newSandboxId();
  }

  static async start(options: { readonly clock?: Clock; readonly patienceMs?: number } = {}): Promise<Fixture> {
    const directory = await mkdtemp(join(tmpdir(), 'apiserver-'));
    const socket = join(directory, 'edge.sock');
    const edge = new ScriptedEdge(socket);
    await edge.start();
    const clock = options.clock ?? new SystemClock();
    const random = new SystemRandom();
    const logger = new MemoryLogger();
    const scope = new Scope({ clock: new SystemClock() });
    const store = scope.own('store', EmbeddedStore.open({ path: ':memory:' }));
    const { patienceMs } = options;
    // Of its own time, so that a test that steps the clock meets no timer but those of its routes.
    const time = { clock: new SystemClock() };
    const log = scope.own('audit log', await AuditLog.open({ directory: join(directory, 'audit'), ...time, logger }));
    const audit = scope.own('audit', new RequestAudit({ log, ...time, random, digest: new CommandDigest('') }));
    const services: Services = {
      clock,
      random,
      logger,
      audit,
      keys: await Keys.open({ store, clock, random, scope, adminKeySha256: hashSecret(ADMIN_KEY) }),
      environments: await Environments.open({ store, clock, scope }),
      edge: EdgeLink.open({
        network: new SystemNetwork(),
        clock: new SystemClock(),
        random,
        logger,
        scope,
        socket,
        ...(patienceMs === undefined ? {} : { patienceMs }),
      }),
      ids: new SandboxIds(ID_KEY),
      edgeNumber: EDGE_NUMBER,
      linkKey: new LinkKey(Buffer.alloc(32, 9)),
      publicUrl: undefined,
    };
    const app = await buildApp(services);
    scope.defer('app', () => app.close());
    const port = await app.listen('127.0.0.1', 0);
    return new Fixture({ edge, services, logger, port, scope, directory });
  }

  /** One request on a connection of its own. */
  async ask(method: string, path: string, ask: Ask = {}): Promise<Answer> {
    const { body, json, key, headers, ...options } = ask;
    const secret = key === undefined ? ADMIN_KEY : key;
    const sent = json === undefined ? body : JSON.stringify(json);
    const outgoing = httpRequest({
      host: '127.0.0.1',
      port: this.port,
      method,
      path: path.startsWith('/v1') || path.startsWith('!') ? path.replace(/^!/, '') : `/v1${path}`,
      agent: false,
      headers: {
        ...(secret === null ? {} : { authorization: `Bearer ${secret}` }),
        ...(json === undefined ? {} : { 'content-type': 'application/json' }),
        ...(headers as IncomingHttpHeaders | undefined),
      },
      ...options,
    });
    const answered = new Promise<Answer>((resolve, reject) => {
      outgoing.once('error', reject);
      outgoing.once('response', (response) => {
        const chunks: Buffer[] = [];
        response.on('data', (chunk: Buffer) => chunks.push(chunk));
        response.once('error', reject);
        response.once('end', () => {
          const whole = Buffer.concat(chunks);
          const parse = <T>(): T => JSON.parse(whole.toString('utf8')) as T;
          resolve({
            status: response.statusCode ?? 0,
            headers: response.headers,
            body: whole,
            text: whole.toString('utf8'),
            json: parse,
            get error() {
              return parse<ErrorBody>().error;
            },
          });
        });
      });
    });
    if (sent === undefined || typeof sent === 'string' || sent instanceof Uint8Array) outgoing.end(sent);
    else sent.pipe(outgoing);
    return await answered;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#scope.close();
    await this.edge.stop();
    await rm(this.#directory, { recursive: true });
  }
}

export const newSandboxId = (edge = EDGE_NUMBER): string =>
  new SandboxIds(ID_KEY).create(edge, new SystemRandom().bytes(8));

/** How a command stands that has ended well. */
export const exitedStatus = (execId: string, changes: Partial<ExecStatus> = {}): ExecStatus => ({
  execId,
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
  ...changes,
});

export const sandboxInfo = (sandboxId: string, changes: Partial<SandboxInfo> = {}): SandboxInfo => ({
  sandboxId,
  environment: 'debian',
  workspace: null,
  toolkits: [],
  backend: 'container',
  state: 'running',
  cause: null,
  createdAtMs: 1,
  endedAtMs: null,
  ttlEndsAtMs: 2,
  idleEndsAtMs: 3,
  memoryMib: 64,
  cpuMillis: 1000,
  diskMib: 64,
  pids: 64,
  ttlRunningStopSeconds: 60,
  user: 'root',
  workdir: '/',
  hostname: 'h',
  policy: { profile: 'default', phase: null, version: 1 },
  networkRules: {},
  metadata: {},
  ...changes,
});
