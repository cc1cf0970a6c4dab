/** A launcher over a real socket whose faults are scripted: slow and failing creates, cleanups that do not end, restarts. */
import { mkdir } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { SystemClock, SystemNetwork, type Connection, type Listener } from '@dsec/kit';
import { serve, type JsonObject, type WireServerStream } from '@dsec/native-link';
import { AetherDouble } from './aether-double.ts';

interface DoubleSandbox {
  readonly aether: AetherDouble;
  exit: { readonly exitCode?: number; readonly signal?: number; readonly oomKills: number } | undefined;
}

/** What a test wants to go wrong; each may wait and may throw. */
export interface LauncherScript {
  create?: (sandboxId: string) => Promise<void>;
  destroy?: (sandboxId: string) => Promise<void>;
  diskFreeBytes?: number;
  absentTripwires?: readonly string[];
  usage?: Readonly<Record<string, number>>;
}

export class LauncherDouble implements AsyncDisposable {
  readonly sandboxes = new Map<string, DoubleSandbox>();
  readonly destroyed: string[] = [];
  readonly created: JsonObject[] = [];
  readonly script: LauncherScript;
  readonly socket: string;
  readonly sandboxSockets: string;
  readonly #events = new Set<WireServerStream>();
  readonly #acts = new Set<WireServerStream>();
  readonly #connections = new Set<Connection>();
  #listener: Listener | undefined;

  constructor(directory: string, script: LauncherScript = {}) {
    this.script = script;
    this.socket = join(directory, 'launcher.sock');
    this.sandboxSockets = join(directory, 's');
  }

  async start(): Promise<this> {
    await mkdir(this.sandboxSockets, { recursive: true });
    this.#listener = await new SystemNetwork().listenUnix(this.socket, (connection) => {
      this.#connections.add(connection);
      connection.once('close', () => this.#connections.delete(connection));
      serve(connection, (method, params, stream) => this.#handle(method, params, stream), {
        role: 'launcher',
        clock: new SystemClock(),
        onFault: (fault) => {
          throw fault;
        },
      });
    });
    return this;
  }

  /** As after kill -9: connections break and nothing answers; the sandboxes live on. */
  async stop(): Promise<void> {
    await this.#listener?.close();
    this.#events.clear();
    this.#acts.clear();
  }

  aether(sandboxId: string): AetherDouble {
    const sandbox = this.sandboxes.get(sandboxId);
    if (sandbox === undefined) throw new Error(`there is no sandbox ${sandboxId}`);
    return sandbox.aether;
  }

  /** The first process of a sandbox dies. */
  async kill(
    sandboxId: string,
    exit: { readonly exitCode?: number; readonly signal?: number; readonly oomKills: number },
  ): Promise<void> {
    const sandbox = this.sandboxes.get(sandboxId);
    if (sandbox === undefined) throw new Error(`there is no sandbox ${sandboxId}`);
    sandbox.exit = exit;
    await sandbox.aether.close();
    for (const stream of this.#events) await stream.message({ exited: { id: sandboxId, ...exit } });
  }

  /** Programs did something: messages as the protocol has them. */
  async tell(...messages: readonly object[]): Promise<void> {
    for (const stream of this.#acts) for (const message of messages) await stream.message(message);
  }

  /** A sandbox that nobody asked for. */
  async addStray(sandboxId: string): Promise<void> {
    const aether = new AetherDouble();
    await aether.listen(join(this.sandboxSockets, `${sandboxId}.sock`));
    this.sandboxes.set(sandboxId, { aether, exit: undefined });
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.stop();
    for (const { aether } of this.sandboxes.values()) await aether.close();
  }

  #handle(method: string, params: JsonObject, stream: WireServerStream): Promise<unknown> | void {
    if (method === 'events' || method === 'behaviour') {
      const streams = method === 'events' ? this.#events : this.#acts;
      streams.add(stream);
      stream.signal.addEventListener('abort', () => streams.delete(stream), { once: true });
      return;
    }
    return this.#answer(method, params);
  }

  async #answer(method: string, params: JsonObject): Promise<unknown> {
    const id = String(params.id);
    switch (method) {
      case 'node.info':
        return {
          version: 'double',
          kernel: 'x',
          cgroup: 2,
          quota: 'none',
          slots: 4096,
          live: this.sandboxes.size,
          blanks: 0,
          furnished: 0,
          diskTotalBytes: 2 ** 40,
          diskFreeBytes: this.script.diskFreeBytes ?? 2 ** 39,
        };
      case 'sandbox.create': {
        this.created.push(params);
        await this.script.create?.(id);
        await this.addStray(id);
        if (typeof params.nameserver === 'string') {
          this.aether(id).files.set('/etc/resolv.conf', `nameserver ${params.nameserver}\n`);
        }
        const { absentTripwires } = this.script;
        return {
          id,
          pid: 1000,
          socket: join(this.sandboxSockets, `${id}.sock`),
          ...(absentTripwires === undefined ? {} : { absentTripwires }),
        };
      }
      case 'sandbox.destroy': {
        await this.script.destroy?.(id);
        const sandbox = this.sandboxes.get(id);
        this.sandboxes.delete(id);
        this.destroyed.push(id);
        await sandbox?.aether.close();
        return {};
      }
      case 'sandbox.list':
        return {
          sandboxes: [...this.sandboxes].map(([sandboxId, { exit }]) => ({
            id: sandboxId,
            pid: 1000,
            state: exit === undefined ? 'live' : 'exited',
            createdAtMs: 1,
            ...(exit === undefined ? {} : { exit }),
          })),
        };
      case 'sandbox.usage':
        return {
          memoryBytes: 1,
          memoryPeakBytes: 1,
          cpuUsec: 1,
          pids: 1,
          diskBytes: 1,
          oomKills: 0,
          ...this.script.usage,
        };
      default:
        throw new PlatformError('unknown_method', `the double has no ${method}`);
    }
  }
}
