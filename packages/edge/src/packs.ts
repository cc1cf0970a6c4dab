/**
 * Packs of sandboxes: the archive of the launcher goes to the packer, and what comes of it back to whoever waits. A pack with an idempotency key goes
 * on when its caller goes away, and is found again by the key; one that failed is done anew.
 */
import {
  PlatformError,
  type EnvironmentConfig,
  type PackProgress,
  type PackRequest,
  type Principal,
} from '@dsec/contract';
import type { Backend } from '@dsec/backends';
import type { Clock, Network } from '@dsec/kit';
import { WireClient, type WireStream } from '@dsec/native-link';
import { takeChanges } from './changes.ts';
import { NeededByPacks } from './needed-by-packs.ts';
import type { PackAnswer } from './packer/pack-answer.ts';
import type { Sandbox } from './sandbox.ts';

/** Packs that are remembered by their key, the newest. */
const MAX_REMEMBERED = 256;

export interface PackCall {
  readonly sandbox: Sandbox;
  readonly principal: Principal;
  readonly request: PackRequest;
  readonly config: EnvironmentConfig;
  readonly architecture: string;
  readonly idempotency?: { readonly key: string; readonly fingerprint: string } | undefined;
}

export interface PackDone extends PackAnswer {
  readonly frozenMs: number;
  /** What the sandbox stood on, top first. */
  readonly layers: readonly string[];
}

/** Tells of progress; more than one may listen. */
type Listener = (progress: PackProgress) => void;

interface Running {
  readonly fingerprint: string;
  readonly done: Promise<PackDone>;
  readonly listeners: Set<Listener>;
  /** Those of the answer, when it is there. */
  layers?: readonly string[];
}

export interface PacksParts {
  readonly backend: Backend;
  readonly network: Network;
  readonly clock: Clock;
  readonly packerSocket: string;
  /** Ends all packs. */
  readonly signal: AbortSignal;
}

export class Packs {
  /** The layers that packs need. */
  readonly needed: NeededByPacks;
  readonly #parts: PacksParts;
  readonly #byKey = new Map<string, Running>();

  constructor(parts: PacksParts) {
    this.#parts = parts;
    this.needed = new NeededByPacks(parts.clock);
  }

  /**
   * Packs, or joins the pack that was asked for by the same key.
   * @throws PlatformError `idempotency_conflict`, `sandbox_ended`, `sandbox_not_ready`, `unavailable` without a packer, and what packing throws
   */
  async pack(call: PackCall, onProgress: Listener, signal: AbortSignal): Promise<PackDone> {
    const { idempotency } = call;
    if (idempotency === undefined) return await this.#run(call, onProgress, signal);
    const key = `${call.principal.project}\0${idempotency.key}`;
    let running = this.#byKey.get(key);
    if (running === undefined) {
      running = this.#begin(key, idempotency.fingerprint, call);
    } else if (running.fingerprint !== idempotency.fingerprint) {
      throw new PlatformError('idempotency_conflict', 'the idempotency key was used before with another request');
    }
    const { listeners, done } = running;
    listeners.add(onProgress);
    try {
      const packed = await done;
      // Whoever joins names it later than the first.
      this.needed.answered(layersOf(packed));
      return packed;
    } finally {
      listeners.delete(onProgress);
    }
  }

  /** Remembers no pack any more that made this layer, which is about to be removed: whoever asks again has it made again. */
  forget(layer: string): void {
    for (const [key, running] of this.#byKey) {
      if (running.layers?.includes(layer) === true) this.#byKey.delete(key);
    }
  }

  #begin(key: string, fingerprint: string, call: PackCall): Running {
    const listeners = new Set<Listener>();
    const tell: Listener = (progress) => listeners.forEach((listener) => listener(progress));
    const done = this.#run(call, tell, this.#parts.signal);
    const running: Running = { fingerprint, done, listeners };
    this.#byKey.set(key, running);
    // The key may have been forgotten meanwhile, and be of a newer pack.
    done.then(
      (packed) => void (running.layers = layersOf(packed)),
      () => this.#byKey.get(key) === running && this.#byKey.delete(key),
    );
    for (const oldest of this.#byKey.keys()) {
      if (this.#byKey.size <= MAX_REMEMBERED) break;
      this.#byKey.delete(oldest);
    }
    return running;
  }

  async #run(call: PackCall, onProgress: Listener, signal: AbortSignal): Promise<PackDone> {
    const { sandbox, request, config, architecture } = call;
    const { backend } = this.#parts;
    const { layers } = sandbox.record;
    using _needed = this.needed.running(layers);
    sandbox.lifetime?.enter();
    try {
      const wire = await this.#packer(signal);
      try {
        await using changes = await takeChanges(backend, sandbox, signal);
        const stream = wire.open('pack', { request, config, architecture }, { signal });
        const [answer] = await Promise.all([follow(stream, onProgress), send(stream, changes.bytes)]);
        const packed = { ...answer, frozenMs: changes.frozenMs, layers };
        this.needed.answered(layersOf(packed));
        return packed;
      } finally {
        await wire.close();
      }
    } finally {
      sandbox.lifetime?.leave();
    }
  }

  /** A connection for one pack: its bytes are in nobody's way. */
  async #packer(signal: AbortSignal): Promise<WireClient> {
    const { network, clock, packerSocket } = this.#parts;
    return WireClient.connect(await network.connectUnix(packerSocket, { signal }), { role: 'edge', clock });
  }
}

const layersOf = ({ image, layers }: PackDone): readonly string[] => [...(image?.layers ?? []), ...layers];

/** Sends the archive. An archive that is not whole ends the pack with the reason. */
async function send(stream: WireStream, bytes: AsyncIterable<Buffer>): Promise<void> {
  const iterator = bytes[Symbol.asyncIterator]();
  for (;;) {
    let next: IteratorResult<Buffer>;
    try {
      next = await iterator.next();
    } catch (error) {
      const reason = PlatformError.is(error)
        ? error
        : new PlatformError('internal', 'the changes cannot be read', { cause: error });
      stream.reset(reason);
      throw reason;
    }
    if (next.done === true) break;
    try {
      await stream.write(next.value);
    } catch {
      // The packer has ended the stream; why is its result.
      await iterator.return?.();
      return;
    }
  }
  stream.end();
}

async function follow(stream: WireStream, onProgress: Listener): Promise<PackAnswer> {
  for await (const item of stream) {
    // The packer is of this installation, and the apiserver checks what is told to others.
    if (item.type === 'message') onProgress(item.value as unknown as PackProgress);
  }
  return (await stream.result) as PackAnswer;
}
