/** Changes of a container: read from a process of the launcher, which says by another way whether they were whole. */
import type { Connection, Network } from '@dsec/kit';
import type { LauncherChanges } from '@dsec/native-link';
import type { CallOptions, SandboxChanges } from '../backend.ts';

const MICROSECONDS_PER_MS = 1000;

export class ContainerChanges implements SandboxChanges {
  readonly frozenMs: number;
  readonly #changes: LauncherChanges;
  readonly #connection: Connection;

  private constructor(changes: LauncherChanges, connection: Connection) {
    this.frozenMs = changes.ready.frozenUs / MICROSECONDS_PER_MS;
    this.#changes = changes;
    this.#connection = connection;
  }

  static async open(network: Network, changes: LauncherChanges, options: CallOptions): Promise<ContainerChanges> {
    try {
      const connection = await network.connectUnix(changes.ready.socket, { signal: options.signal });
      // Whoever iterates hears of it; before that it shows in what the launcher says.
      connection.on('error', () => undefined);
      return new ContainerChanges(changes, connection);
    } catch (error) {
      changes.reset();
      throw error;
    }
  }

  get bytes(): AsyncIterable<Buffer> {
    return this.#read();
  }

  [Symbol.asyncDispose](): Promise<void> {
    this.#connection.destroy();
    this.#changes.reset();
    return Promise.resolve();
  }

  async *#read(): AsyncGenerator<Buffer> {
    try {
      // A socket gives Buffers.
      for await (const chunk of this.#connection as AsyncIterable<Buffer>) yield chunk;
    } catch (error) {
      // What the launcher says of it is the reason.
      await this.#changes.sent();
      throw error;
    }
    await this.#changes.sent();
  }
}
