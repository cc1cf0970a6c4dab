/** An edge in this process, over real sockets in a directory of its own, and an apiserver's end of a connection to it. */
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ContainerBackend, NoNetwork, type NetworkControl } from '@dsec/backends';
import { SandboxIds, type BulkItem, type CreateSandbox, type SandboxInfo, type SandboxPage } from '@dsec/contract';
import { MemoryLogger, SystemClock, SystemNetwork, SystemRandom, type Clock } from '@dsec/kit';
import { WireClient, type StreamOptions, type WireStream } from '@dsec/native-link';
import type { EdgeConfig } from '../src/config.ts';
import { Edge } from '../src/edge.ts';
import type { JournalSink } from '../src/journal.ts';
import { JournalThread } from '../src/journal-thread.ts';
import { anImage, aRequest } from './records.ts';

export const idKey = Buffer.alloc(32, 7);
export const ids = new SandboxIds(idKey);

export interface EdgeFixtureOptions {
  readonly launcherSocket: string;
  readonly sandboxSockets: string;
  readonly directory: string;
  readonly clock?: Clock;
  /** Default: a real one. */
  readonly journal?: JournalSink;
  readonly config?: Partial<EdgeConfig>;
  /** Default: none. */
  readonly sandboxNetwork?: NetworkControl | undefined;
}

export const configFor = (options: EdgeFixtureOptions): EdgeConfig => ({
  edge: 0,
  socket: join(options.directory, 'edge.sock'),
  launcherSocket: options.launcherSocket,
  sandboxSockets: options.sandboxSockets,
  packerSocket: join(options.directory, 'packer.sock'),
  publisherSocket: join(options.directory, 'publisher.sock'),
  sets: {
    setsDirectory: join(options.directory, 'sets'),
    draftsDirectory: join(options.directory, 'set-drafts'),
    layersDirectory: join(options.directory, 'layers'),
  },
  journal: join(options.directory, 'journal.db'),
  behaviourDirectory: join(options.directory, 'behaviour'),
  idKeyFile: join(options.directory, 'id.key'),
  uid: 64_801,
  gid: 64_801,
  logLevel: 'info',
  sandboxes: 4096,
  memoryOvercommit: 8,
  diskOvercommit: 64,
  pidsOvercommit: 64,
  minDiskFreeMib: 16,
  minMemoryAvailableMib: 16,
  maxMemoryStallPercent: 100,
  createConcurrency: 8,
  countHalfLifeHours: 720,
  reconcileMs: 30_000,
  ...options.config,
});

export class EdgeFixture implements AsyncDisposable {
  readonly edge: Edge;
  readonly client: WireClient;
  readonly logger: MemoryLogger;

  private constructor(edge: Edge, client: WireClient, logger: MemoryLogger) {
    this.edge = edge;
    this.client = client;
    this.logger = logger;
  }

  static async start(options: EdgeFixtureOptions): Promise<EdgeFixture> {
    const config = configFor(options);
    const clock = options.clock ?? new SystemClock();
    const network = new SystemNetwork();
    const random = new SystemRandom();
    const logger = new MemoryLogger();
    const journal =
      options.journal ??
      (await JournalThread.start((error) => {
        throw error;
      }));
    const backend = new ContainerBackend({
      network,
      clock,
      random,
      logger,
      launcherSocket: config.launcherSocket,
      sandboxSockets: config.sandboxSockets,
      setsDirectory: config.sets.setsDirectory,
      setDraftsDirectory: config.sets.draftsDirectory,
      publisherSocket: config.publisherSocket,
      // One layer is all that an edge in this process is asked for.
      merger: { ensure: () => Promise.reject(new Error('nothing is merged here')) },
      sandboxNetwork: options.sandboxNetwork ?? new NoNetwork('it is the node of a test'),
    });
    const edge = await Edge.start({ config, idKey, backend, journal, clock, random, network, logger });
    return new EdgeFixture(edge, await connectTo(config.socket), logger);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.client.close();
    await this.edge[Symbol.asyncDispose]();
  }
}

export const connectTo = async (socket: string): Promise<WireClient> =>
  WireClient.connect(await new SystemNetwork().connectUnix(socket), { role: 'apiserver', clock: new SystemClock() });

export interface CreateOptions extends StreamOptions {
  readonly request?: Partial<CreateSandbox>;
  readonly project?: string;
  readonly keyId?: string;
  readonly key?: string;
  readonly fingerprint?: string;
  readonly layers?: readonly string[];
}

const createParams = ({
  request = {},
  project = 'p',
  keyId = 'k',
  key,
  fingerprint = 'f',
  layers = anImage.layers,
}: CreateOptions) => ({
  principal: { keyId, project },
  request: aRequest(request),
  image: { ...anImage, layers },
  ...(key === undefined ? {} : { idempotency: { key, fingerprint } }),
});

export const create = async (client: WireClient, options: CreateOptions = {}): Promise<SandboxInfo> =>
  (await client.call('sandbox.create', createParams(options), streamOptions(options))) as SandboxInfo;

export const get = async (client: WireClient, sandboxId: string): Promise<SandboxInfo> =>
  (await client.call('sandbox.get', { sandboxId })) as SandboxInfo;
export const stop = async (client: WireClient, sandboxId: string): Promise<SandboxInfo> =>
  (await client.call('sandbox.stop', { sandboxId })) as SandboxInfo;
export const list = async (client: WireClient, params: object = {}): Promise<SandboxPage> =>
  (await client.call('sandbox.list', { project: 'p', ...params })) as SandboxPage;

export interface Bulk<R> {
  readonly items: readonly BulkItem[];
  readonly result: R;
}

export const createMany = (
  client: WireClient,
  count: number,
  options: CreateOptions = {},
): Promise<Bulk<{ created: number; failed: number }>> =>
  collect(client.open('sandbox.createMany', { ...createParams(options), count }, streamOptions(options)));

export const stopMany = (client: WireClient, params: object): Promise<Bulk<{ stopped: number; failed: number }>> =>
  collect(client.open('sandbox.stopMany', { project: 'p', ...params }));

async function collect<R>(stream: WireStream): Promise<Bulk<R>> {
  const items: BulkItem[] = [];
  for await (const item of stream) if (item.type === 'message') items.push(item.value as unknown as BulkItem);
  return { items, result: (await stream.result) as R };
}

const streamOptions = ({ signal, timeoutMs }: CreateOptions): StreamOptions => ({ signal, timeoutMs });

/** The error that a promise rejects with; awaited later than the promise is made, it is never unhandled. */
export const failureOf = (promise: Promise<unknown>): Promise<unknown> =>
  promise.then(
    () => new Error('it did not fail'),
    (error: unknown) => error,
  );

/** A directory that is gone at the end. */
export class TemporaryDirectory implements AsyncDisposable {
  readonly path: string;

  private constructor(path: string) {
    this.path = path;
  }

  static async make(): Promise<TemporaryDirectory> {
    return new TemporaryDirectory(await mkdtemp(join(tmpdir(), 'dsec-edge-')));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await rm(this.path, { recursive: true, force: true });
  }
}

/** Waits until the condition holds. */
export async function waitFor(
  condition: () => boolean | Promise<boolean>,
  what: string,
  timeoutMs = 5000,
): Promise<void> {
  const clock = new SystemClock();
  const endsMs = clock.monotonicMs() + timeoutMs;
  while (!(await condition())) {
    if (clock.monotonicMs() > endsMs) throw new Error(`${what} did not happen within ${timeoutMs} ms`);
    await clock.sleep(5);
  }
}
