/**
 * Execs that run although nobody follows them. While there is one, the sandbox is busy; so the edge has to learn of their end. It
 * follows one of them at a time, without its output; when that has ended, the next one, which ends at once if it is over already. So a
 * sandbox costs one stream however many execs it has, and is seen idle at the end of the last.
 */
import type { Channel } from '@dsec/backends';
import { PlatformError } from '@dsec/contract';

/** Execs that are remembered; aether keeps no more. */
const MAX_EXECS = 256;

export interface DetachedExecsOptions {
  readonly channel: Channel;
  /** The first one is there. */
  readonly onBusy: () => void;
  /** None is left; also when the channel is closed. */
  readonly onIdle: () => void;
}

export class DetachedExecs {
  readonly #options: DetachedExecsOptions;
  readonly #execIds = new Set<string>();
  #isFollowing = false;

  constructor(options: DetachedExecsOptions) {
    this.#options = options;
  }

  /** How many are thought to run. */
  get size(): number {
    return this.#execIds.size;
  }

  /** Nobody follows this exec any more; it may run on, have ended, or never have begun. */
  add(execId: string): void {
    if (this.#options.channel.isClosed || this.#execIds.size >= MAX_EXECS) return;
    this.#execIds.add(execId);
    if (!this.#isFollowing) void this.#follow();
  }

  /** Never rejects. */
  async #follow(): Promise<void> {
    this.#isFollowing = true;
    this.#options.onBusy();
    try {
      for (const execId of this.#execIds) {
        await this.#end(execId);
        this.#execIds.delete(execId);
        if (this.#options.channel.isClosed) this.#execIds.clear();
      }
    } finally {
      this.#isFollowing = false;
      this.#options.onIdle();
    }
  }

  async #end(execId: string): Promise<void> {
    try {
      await this.#options.channel.execEnded(execId);
    } catch (error) {
      // With the channel all are lost from sight, until it is replaced and they are looked up.
      if (!PlatformError.is(error)) throw error;
    }
  }
}
