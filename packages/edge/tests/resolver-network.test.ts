/** The network that a resolver gives, over a real socket. */
import { join } from 'node:path';
import { ResolverNetwork } from '@dsec/backends';
import { MemoryLogger, SystemClock, SystemNetwork, SystemRandom } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import { create, EdgeFixture, failureOf, TemporaryDirectory, waitFor } from './edge-fixture.ts';
import { LauncherDouble } from './launcher-double.ts';
import { deaf, networkConformance } from './network-conformance.ts';
import { NetworkDouble } from './network-double.ts';
import { ResolverDouble } from './resolver-double.ts';

const closed = { default: 'deny', rules: [], services: {}, ipLiterals: true } as const;

class Node implements AsyncDisposable {
  readonly live = new Set<string>();
  readonly node = new NetworkDouble({ isLive: (sandboxId) => this.live.has(sandboxId), services: ['pypi'] });
  readonly service = 'pypi';
  readonly unknownService = 'cran';
  readonly logger = new MemoryLogger();
  readonly options = {
    network: new SystemNetwork(),
    clock: new SystemClock(),
    random: new SystemRandom(),
    logger: this.logger,
  };
  readonly directory: TemporaryDirectory;
  readonly resolver: ResolverDouble;
  readonly control: ResolverNetwork;

  constructor(directory: TemporaryDirectory) {
    this.directory = directory;
    const socket = join(directory.path, 'resolver.sock');
    this.resolver = new ResolverDouble(socket, this.node);
    this.control = new ResolverNetwork({ ...this.options, socket });
  }

  static async start(): Promise<Node> {
    const node = new Node(await TemporaryDirectory.make());
    await node.resolver.start();
    return node;
  }

  sandbox(): Promise<string> {
    const sandboxId = `s${this.live.size}`;
    this.live.add(sandboxId);
    return Promise.resolve(sandboxId);
  }

  reaches(sandboxId: string, address: string, port: number): Promise<boolean> {
    return Promise.resolve(this.node.reaches(sandboxId, address, port));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.control[Symbol.asyncDispose]();
    await this.resolver[Symbol.asyncDispose]();
    await this.directory[Symbol.asyncDispose]();
  }
}

networkConformance('a resolver', () => Node.start());

describe('a resolver that is killed', () => {
  let node: Node;
  let readyCount = 0;
  beforeEach(async () => {
    readyCount = 0;
    node = await Node.start();
    node.control.start({ onReady: () => void readyCount++, ...deaf });
    await waitFor(() => readyCount === 1, 'the connection');
  });
  afterEach(() => node[Symbol.asyncDispose]());

  const lost = () =>
    waitFor(
      () =>
        node.logger.records.some(
          ({ event, fields }) => event === 'resolver.connection' && fields['outcome'] === 'lost',
        ),
      'the loss of the connection',
    );

  it('has told its services, which nobody knows before', () => {
    const control = new ResolverNetwork({ ...node.options, socket: 'none' });
    expect(control.offer).toEqual({ isOffered: true, resolver: undefined, services: undefined });
    expect(node.control.offer).toEqual({ isOffered: true, resolver: '198.18.0.1', services: ['pypi'] });
  });

  it('is waited for, and says that it is back', async () => {
    const id = await node.sandbox();
    await node.resolver.stop();
    await lost();
    const opening = node.control.open(id, closed);
    await node.resolver.start();
    expect(await opening).toMatchObject({ resolver: '198.18.0.1' });
    await waitFor(() => readyCount === 2, 'the second connection');
  });

  it('is given up after a while', { timeout: 20_000 }, async () => {
    await node.resolver.stop();
    await lost();
    await expect(node.control.open(await node.sandbox(), closed, { timeoutMs: 50 })).rejects.toMatchObject({
      code: 'unavailable',
    });
  });

  it('hears of open services alone, so that a closed one need not be one of the node', async () => {
    await node.control.open(await node.sandbox(), { ...closed, services: { pypi: true, cran: false } });
    expect(node.resolver.asked.at(-1)?.params).toMatchObject({ policy: { services: { pypi: true } } });
    expect(node.resolver.asked.at(-1)?.params).not.toMatchObject({ policy: { services: { cran: false } } });
  });
});

it('an edge gives a resolver that was killed every policy again, and closes what ended meanwhile', async () => {
  await using node = await Node.start();
  await using launcher = await new LauncherDouble(node.directory.path).start();
  await using edge = await EdgeFixture.start({
    launcherSocket: launcher.socket,
    sandboxSockets: launcher.sandboxSockets,
    directory: node.directory.path,
    sandboxNetwork: node.control,
  });
  launcher.script.create = (sandboxId) => Promise.resolve(void node.live.add(sandboxId));
  const policy = { network: { rules: [{ action: 'allow', to: '192.0.2.7' }] } } as const;
  const made = async () => (await create(edge.client, { request: { policy } })).sandboxId;
  const [kept, ended] = [await made(), await made()];
  await node.resolver.stop();
  node.node.uplinks.delete(kept);
  const principal = { keyId: 'k', project: 'p', isBuilder: false };
  const change = edge.client.call('policy.set', { sandboxId: kept, principal, update: {} });
  const stopping = edge.client.call('sandbox.stop', { sandboxId: ended });
  expect(await failureOf(change)).toMatchObject({ code: 'unavailable' });
  await node.resolver.start();
  expect(await stopping).toMatchObject({ state: 'stopped' });
  await waitFor(() => node.node.reaches(kept, '192.0.2.7', 80), 'the policy');
  expect([...node.node.uplinks.keys()]).toEqual([kept]);
});
