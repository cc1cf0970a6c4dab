/** egressd by its protocol (docs/decisions/0008-egress.md): devices and policies as the kernel would have them, in memory. */
import { covers, parsePrefix, PlatformError } from '@dsec/contract';
import { SystemClock, SystemNetwork, type Listener } from '@dsec/kit';
import { serve, type EgressPolicy, type JsonObject } from '@dsec/native-link';

interface Device {
  readonly interface: string;
  readonly address4: string;
  readonly address6: string;
  generation: number;
  policy: EgressPolicy | undefined;
}

export class EgressdDouble implements AsyncDisposable {
  readonly devices = new Map<string, Device>();
  readonly #isLive: (sandboxId: string) => boolean;
  #listener: Listener | undefined;
  #slots = 1;
  #generations = 0;

  constructor(isLive: (sandboxId: string) => boolean) {
    this.#isLive = isLive;
  }

  async start(socket: string): Promise<this> {
    this.#listener = await new SystemNetwork().listenUnix(socket, (connection) => {
      serve(connection, (method, params) => Promise.resolve().then(() => this.#answer(method, params)), {
        role: 'egressd',
        clock: new SystemClock(),
        onFault: (fault) => {
          throw fault;
        },
      });
    });
    return this;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#listener?.close();
  }

  /** As the packet filter decides for a TCP packet from inside: the longest prefix, and of it the first range. */
  reaches(sandboxId: string, address: string, port: number): boolean {
    const policy = this.devices.get(sandboxId)?.policy;
    const parsed = parsePrefix(address);
    if (policy === undefined || !parsed.ok) return false;
    const [entry] = policy.rules
      .map(({ cidr, ranges }) => ({ parsed: parsePrefix(cidr), ranges }))
      .flatMap(({ parsed: cidr, ranges }) => (cidr.ok ? [{ prefix: cidr.prefix, ranges }] : []))
      .filter(({ prefix }) => covers(prefix, parsed.prefix))
      .toSorted((a, b) => b.prefix.length - a.prefix.length);
    const range = entry?.ranges.find(([protocol, low, high]) => protocol === 'tcp' && low <= port && port <= high);
    return range?.[3] ?? policy.flags.public;
  }

  #answer(method: string, params: JsonObject): unknown {
    const id = String(params.id);
    const device = this.devices.get(id);
    switch (method) {
      case 'uplink.close':
        this.devices.delete(id);
        return {};
      case 'uplink.list':
        return { uplinks: [...this.devices].map(([of, { policy: _policy, ...shown }]) => ({ id: of, ...shown })) };
      case 'policy.set': {
        if (device === undefined && !this.#isLive(id)) throw notFound(id);
        const opened = device ?? this.#add(id);
        const { id: _id, open: _open, ...policy } = params;
        opened.policy = policy as unknown as EgressPolicy;
        opened.generation = ++this.#generations;
        const { policy: _policy, ...shown } = opened;
        return { ...shown, micros: 1 };
      }
      default:
        throw new PlatformError('unknown_method', `the double has no ${method}`);
    }
  }

  #add(id: string): Device {
    const slot = ++this.#slots;
    const device: Device = {
      interface: `dsec0.${slot}`,
      address4: `198.18.0.${slot}`,
      address6: `fd00:d5ec::${slot}`,
      generation: 0,
      policy: undefined,
    };
    this.devices.set(id, device);
    return device;
  }
}

const notFound = (id: string): PlatformError =>
  new PlatformError('sandbox_not_found', `there is no sandbox ${id}`, { details: { sandboxId: id } });
