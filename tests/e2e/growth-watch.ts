import type { Sandbox } from '@dsec/libdsec';
import { aetherPid } from './host-side.ts';
import { processFacts } from './process-facts.ts';
import type { Server } from './started-server.ts';
import { clock } from './wait-for.ts';

/** What a daemon may grow by while any amount of bytes passes through it. */
export const MAX_GROWTH_BYTES = 64 * 1024 * 1024;
const POLL_MS = 50;

/** Looks on at the resident memory of daemons, and of the aether of a sandbox. */
export class GrowthWatch implements AsyncDisposable {
  readonly #read: () => Promise<readonly number[]>;
  readonly #before: readonly number[];
  readonly #stop = new AbortController();
  readonly #watching: Promise<void>;
  #most = 0;

  private constructor(read: () => Promise<readonly number[]>, before: readonly number[]) {
    this.#read = read;
    this.#before = before;
    this.#watching = this.#watch();
  }

  static async start(server: Server, sandbox: Sandbox): Promise<GrowthWatch> {
    const pids = [...(await server.daemons()), await aetherPid(server, sandbox.sandboxId)];
    const read = async (): Promise<readonly number[]> => {
      const facts = await Promise.all(pids.map((pid) => processFacts(pid)));
      return facts.map(({ rssBytes }) => rssBytes);
    };
    return new GrowthWatch(read, await read());
  }

  /** Most that any of them has grown. */
  mostBytes(): number {
    return this.#most;
  }

  async #watch(): Promise<void> {
    while (!this.#stop.signal.aborted) {
      const now = await this.#read();
      for (const [index, bytes] of now.entries()) this.#most = Math.max(this.#most, bytes - (this.#before[index] ?? 0));
      await clock.sleep(POLL_MS, { signal: this.#stop.signal }).catch(() => undefined);
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#stop.abort();
    await this.#watching;
  }
}
