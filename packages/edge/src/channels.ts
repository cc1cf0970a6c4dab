/**
 * The channel of each live sandbox, and what happens when it breaks: a sandbox that still lives is connected again, once; one whose first
 * process has ended says why by the event of its exit, which may come a moment after the end of the channel; all others have failed.
 */
import type { Backend, Channel, ChannelExec, ChannelOptions } from '@dsec/backends';
import { PlatformError } from '@dsec/contract';
import type { Clock, Logger } from '@dsec/kit';
import { DetachedExecs } from './detached-execs.ts';
import type { Sandbox } from './sandbox.ts';
import type { SandboxEvent } from './sandbox-machine.ts';

/** How long aether may take to answer on a new channel. */
const CONNECT_TIMEOUT_MS = 5000;
/** The same while a broken channel is replaced: the sandbox must not seem alive for long. */
const RECONNECT_TIMEOUT_MS = 400;
/** How long the event of an exit may come after the end of the channel. */
const EXIT_GRACE_MS = 400;
/** A channel that was replaced must hold this long before it may be replaced again. */
const RECONNECT_QUIET_MS = 10_000;

export interface ChannelsOptions {
  readonly backend: Backend;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Aborts when the edge closes. */
  readonly signal: AbortSignal;
  readonly apply: (sandbox: Sandbox, event: SandboxEvent) => void;
}

export class Channels {
  readonly #options: ChannelsOptions;
  /** When a channel was replaced; only of sandboxes that it happened to. */
  readonly #replacedMs = new WeakMap<Sandbox, number>();

  constructor(options: ChannelsOptions) {
    this.#options = options;
  }

  /** What a backend needs to open the channel of this sandbox. */
  optionsFor(sandbox: Sandbox, timeoutMs: number): ChannelOptions {
    return { timeoutMs, onClose: (error) => this.#onClose(sandbox, error) };
  }

  /** Takes a channel that was opened; closes it when the sandbox has ended meanwhile. */
  install(sandbox: Sandbox, channel: Channel): void {
    if (!sandbox.isLive) {
      void channel.close();
      return;
    }
    sandbox.channel = channel;
    sandbox.detached = new DetachedExecs({
      channel,
      onBusy: () => sandbox.lifetime?.enter(),
      onIdle: () => sandbox.lifetime?.leave(),
    });
    // It may have broken before it was taken.
    if (channel.isClosed) this.#onClose(sandbox, new PlatformError('connection_lost', 'the channel broke at once'));
  }

  /** Opens the channel of a sandbox that lives already, and looks for commands that run in it. */
  async adopt(sandbox: Sandbox, timeoutMs = CONNECT_TIMEOUT_MS): Promise<void> {
    const channel = await this.#options.backend.connect(sandbox.sandboxId, this.optionsFor(sandbox, timeoutMs));
    let execs: readonly ChannelExec[];
    try {
      execs = await channel.execs({ timeoutMs });
    } catch (error) {
      await channel.close();
      throw error;
    }
    this.install(sandbox, channel);
    for (const { execId, isRunning } of execs) if (isRunning) sandbox.detached?.add(execId);
  }

  /** Ends every stream of the sandbox. */
  disconnect(sandbox: Sandbox): void {
    void this.close(sandbox);
  }

  /** The same; resolves when the channel is closed. What becomes of the sandbox is not asked. */
  async close(sandbox: Sandbox): Promise<void> {
    const { channel } = sandbox;
    sandbox.channel = undefined;
    sandbox.detached = undefined;
    await channel?.close();
  }

  #onClose(sandbox: Sandbox, error: PlatformError): void {
    if (sandbox.channel === undefined || !sandbox.channel.isClosed) return;
    sandbox.channel = undefined;
    sandbox.detached = undefined;
    if (!sandbox.isLive || this.#options.signal.aborted) return;
    if (error.code === 'protocol_error') {
      this.#options.logger.warn('sandbox.channel', { sandboxId: sandbox.sandboxId, outcome: 'protocol_error', error });
      this.#options.apply(sandbox, { type: 'channel_lost', detail: 'What came out of it is not the protocol.' });
      return;
    }
    sandbox.recovery = this.#recover(sandbox, error).finally(() => {
      sandbox.recovery = undefined;
    });
  }

  /** Never rejects. */
  async #recover(sandbox: Sandbox, lost: PlatformError): Promise<void> {
    const { clock, logger, apply } = this.#options;
    const { sandboxId } = sandbox;
    const lastMs = this.#replacedMs.get(sandbox);
    if (lastMs === undefined || clock.monotonicMs() - lastMs > RECONNECT_QUIET_MS) {
      try {
        await this.adopt(sandbox, RECONNECT_TIMEOUT_MS);
        this.#replacedMs.set(sandbox, clock.monotonicMs());
        logger.warn('sandbox.channel', { sandboxId, outcome: 'replaced', error: lost });
        return;
      } catch (error) {
        logger.debug('sandbox.channel', { sandboxId, outcome: 'not_replaced', error });
      }
    }
    const waited = Promise.withResolvers<undefined>();
    const timer = clock.setTimer(EXIT_GRACE_MS, () => waited.resolve(undefined));
    await Promise.race([sandbox.ended.opened, waited.promise]);
    timer.cancel();
    if (!sandbox.isLive) return;
    logger.warn('sandbox.channel', { sandboxId, outcome: 'lost', error: lost });
    apply(sandbox, { type: 'channel_lost', detail: 'The channel to aether broke and could not be opened again.' });
  }
}
