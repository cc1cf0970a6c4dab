/** A connection to the aether of one sandbox, over the socket that the launcher made for it. */
import { PlatformError } from '@dsec/contract';
import type { Clock, Network } from '@dsec/kit';
import {
  AetherClient,
  relay,
  WireClient,
  type RelayOptions,
  type RelayOutcome,
  type WireServerStream,
} from '@dsec/native-link';
import type { CallOptions, Channel, ChannelExec, ChannelOptions, ChannelSession, DetachedProgram } from '../backend.ts';

/** Streams that aether takes on one connection. */
const MAX_STREAMS = 256;
/** An offset that no output reaches: an attach from there carries nothing, and holds no command back. */
const BEYOND = Number.MAX_SAFE_INTEGER;

export interface AetherChannelParts {
  readonly network: Network;
  readonly clock: Clock;
}

export class AetherChannel implements Channel {
  readonly #wire: WireClient;
  readonly #aether: AetherClient;

  private constructor(wire: WireClient, aether: AetherClient) {
    this.#wire = wire;
    this.#aether = aether;
  }

  /** Resolves when aether has answered: it has taken the connection, and speaks the protocol. */
  static async connect(
    { network, clock }: AetherChannelParts,
    socket: string,
    options: ChannelOptions,
  ): Promise<AetherChannel> {
    const { signal, timeoutMs } = options;
    let isUp = false;
    const onClose = (error: PlatformError): void => {
      if (isUp) options.onClose(error);
    };
    const connection = await network.connectUnix(socket, { signal });
    const wire = WireClient.connect(connection, { role: 'edge', clock, maxStreams: MAX_STREAMS, onClose });
    try {
      await wire.greeted({ signal, timeoutMs });
    } catch (error) {
      await wire.close();
      throw error;
    }
    isUp = true;
    return new AetherChannel(wire, new AetherClient(wire));
  }

  get isClosed(): boolean {
    return this.#wire.isClosed;
  }

  async execEnded(execId: string): Promise<void> {
    const exec = this.#aether.execAttach({ execId, stdoutFrom: BEYOND, stderrFrom: BEYOND });
    // What is sent all the same is thrown away.
    try {
      for await (const _item of exec);
      await exec.result;
    } catch (error) {
      if (!PlatformError.is(error) || error.code !== 'exec_not_found') throw error;
    }
  }

  async start({ execId, argv, env, user, cwd }: DetachedProgram, options: CallOptions = {}): Promise<void> {
    const exec = this.#aether.execStart({ execId, argv, env, user, cwd, stdin: 'none' }, options);
    // A command goes on without its stream.
    for await (const item of exec) if (item.type === 'started') break;
    exec.reset();
  }

  async execs(options: CallOptions = {}): Promise<readonly ChannelExec[]> {
    const execs = await this.#aether.execList(options);
    return execs.map(({ execId, pid, state, startedAtMs, durationMs }) => {
      const isRunning = state === 'running';
      return {
        execId,
        pid,
        isRunning,
        startedAtMs,
        endedAtMs: isRunning ? undefined : startedAtMs + (durationMs ?? 0),
      };
    });
  }

  async sessions(options: CallOptions = {}): Promise<readonly ChannelSession[]> {
    return await this.#aether.sessionList(options);
  }

  async writeFile(path: string, bytes: Buffer, options: CallOptions = {}): Promise<void> {
    const upload = this.#aether.fileWrite({ path, user: 'root' }, options);
    await upload.write(bytes);
    upload.end();
    await upload.result;
  }

  relay(near: WireServerStream, method: string, params: object, options: RelayOptions): Promise<RelayOutcome> {
    return relay(near, this.#wire.open(method, params), options);
  }

  close(): Promise<void> {
    return this.#wire.close();
  }
}
