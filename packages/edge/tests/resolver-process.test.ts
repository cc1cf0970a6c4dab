/** The network that the real resolver gives, as the process that it is; egressd is a double. */
import { chmod, chown, mkdir, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { ResolverNetwork } from '@dsec/backends';
import { MemoryLogger, Process, SystemClock, SystemNetwork, SystemRandom } from '@dsec/kit';
import { lacking } from '@dsec/testkit';
import { describe, expect, it } from 'vitest';
import { TemporaryDirectory, waitFor } from './edge-fixture.ts';
import { EgressdDouble } from './egressd-double.ts';
import { deaf, networkConformance, type NetworkNode } from './network-conformance.ts';

const RESOLVER_UID = 64_804;
const MAIN = join(import.meta.dirname, '../../egress/src/main.ts');
const missing = lacking('root');
if (missing !== undefined) process.stderr.write(`skipped: the network of a resolver process: ${missing}\n`);
const clock = new SystemClock();

class ResolverNode implements NetworkNode {
  readonly service = 'index';
  readonly unknownService = 'cran';
  readonly live = new Set<string>();
  readonly egressd = new EgressdDouble((sandboxId) => this.live.has(sandboxId));
  readonly control: ResolverNetwork;
  readonly #directory: TemporaryDirectory;
  resolver: Process | undefined;

  constructor(directory: TemporaryDirectory) {
    this.#directory = directory;
    const socket = join(directory.path, 'run/resolver.sock');
    const logger = new MemoryLogger();
    this.control = new ResolverNetwork({
      network: new SystemNetwork(),
      clock,
      random: new SystemRandom(),
      logger,
      socket,
    });
  }

  static async start(): Promise<ResolverNode> {
    const directory = await TemporaryDirectory.make();
    await chmod(directory.path, 0o755);
    const run = join(directory.path, 'run');
    await mkdir(run);
    const node = new ResolverNode(directory);
    await node.egressd.start(join(run, 'egressd.sock'));
    await chown(run, RESOLVER_UID, RESOLVER_UID);
    await chown(join(run, 'egressd.sock'), RESOLVER_UID, RESOLVER_UID);
    const servicesFile = join(directory.path, 'services.json');
    await writeFile(servicesFile, JSON.stringify([{ name: 'index', kind: 'generic', upstream: 'http://127.0.0.1:1' }]));
    const config = {
      socket: join(run, 'resolver.sock'),
      egressdSocket: join(run, 'egressd.sock'),
      address4: '127.0.0.1',
      dnsPort: 0,
      servicePort: 0,
      servicesFile,
      uid: RESOLVER_UID,
      gid: RESOLVER_UID,
    };
    await writeFile(join(directory.path, 'resolver.json'), JSON.stringify(config));
    await node.startResolver();
    return node;
  }

  async startResolver(): Promise<void> {
    const argv = [process.execPath, '--disable-warning=ExperimentalWarning', MAIN] as const;
    this.resolver = await Process.start([...argv, '--config', join(this.#directory.path, 'resolver.json')], {
      clock,
      env: { PATH: '/usr/bin:/bin' },
    });
  }

  sandbox(): Promise<string> {
    const sandboxId = `s${this.live.size}`;
    this.live.add(sandboxId);
    return Promise.resolve(sandboxId);
  }

  reaches(sandboxId: string, address: string, port: number): Promise<boolean> {
    return Promise.resolve(this.egressd.reaches(sandboxId, address, port));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.control[Symbol.asyncDispose]();
    await this.resolver?.[Symbol.asyncDispose]();
    await this.egressd[Symbol.asyncDispose]();
    await this.#directory[Symbol.asyncDispose]();
  }
}

describe.skipIf(missing !== undefined)('the resolver', () => {
  networkConformance('the resolver as a process', () => ResolverNode.start());

  it('that was killed knows every device, and takes all policies again', { timeout: 60_000 }, async () => {
    await using node = await ResolverNode.start();
    let readyCount = 0;
    node.control.start({ onReady: () => void readyCount++, ...deaf });
    await waitFor(() => readyCount === 1, 'the resolver', 20_000);
    const [kept, gone] = [await node.sandbox(), await node.sandbox()];
    const policy = {
      default: 'deny',
      rules: [{ action: 'allow', to: '192.0.2.7' }],
      services: {},
      ipLiterals: true,
    } as const;
    const uplink = await node.control.open(kept, policy);
    await node.control.open(gone, policy);
    node.resolver?.signal('SIGKILL');
    await node.resolver?.exited;
    await node.startResolver();
    await waitFor(() => readyCount === 2, 'the second resolver', 20_000);
    expect((await node.control.list()).toSorted()).toEqual([kept, gone]);
    expect(await node.control.open(kept, policy)).toEqual(uplink);
    await node.control.close(gone);
    expect([...node.egressd.devices.keys()]).toEqual([kept]);
  });
});
