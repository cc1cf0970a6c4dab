/**
 * Who asks the edge: its apiservers prove themselves once a connection, and what comes on any other connection is told. The permissions of the socket decide who may
 * ask at all; this shows who did although he is none of those that are audited. It costs a request of an apiserver nothing but a look at a flag.
 */
import { createHash, timingSafeEqual } from 'node:crypto';
import { PlatformError, type StrangerOperation } from '@dsec/contract';
import type { Clock, Logger, Timer } from '@dsec/kit';
import type { JsonObject, WireServerStream } from '@dsec/native-link';

/** Those that nobody has been told of yet. */
const MAX_UNTOLD = 256;
/** Those that are told within `PER_MS`; the rest is counted. */
const MAX_TOLD = 64;
const PER_MS = 60_000;
const MAX_LISTENERS = 16;
const MAX_TEXT_CHARS = 64;

/** One connection to the edge. */
export interface Peer {
  isProved: boolean;
}

export interface StrangersOptions {
  /** sha256 of the secret of the apiservers, in hex. */
  readonly proofSha256: string;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class Strangers implements Disposable {
  readonly #options: StrangersOptions;
  readonly #untold: StrangerOperation[] = [];
  readonly #listeners = new Set<WireServerStream>();
  #told = 0;
  #sinceMs = -PER_MS;
  #missed = 0;
  #timer: Timer | undefined;

  constructor(options: StrangersOptions) {
    this.#options = options;
  }

  /** Marks the connection as one of an apiserver. @throws PlatformError `permission_denied` */
  prove(peer: Peer, secret: string): void {
    const given = createHash('sha256').update(secret).digest();
    const { proofSha256, logger } = this.#options;
    if (!timingSafeEqual(given, Buffer.from(proofSha256, 'hex'))) {
      logger.error('edge.stranger', { method: 'edge.prove', outcome: 'permission_denied' });
      throw new PlatformError('permission_denied', 'this is not the secret of the apiserver');
    }
    peer.isProved = true;
  }

  /** Tells of what a stranger asks for. */
  note(method: string, params: JsonObject): void {
    const { clock } = this.#options;
    const nowMs = clock.monotonicMs();
    if (nowMs - this.#sinceMs >= PER_MS) {
      this.#sinceMs = nowMs;
      this.#told = 0;
    }
    if (this.#told >= MAX_TOLD || this.#untold.length >= MAX_UNTOLD) {
      this.#missed++;
      this.#timer ??= clock.setTimer(PER_MS, () => this.#tell({ method: 'more' }));
      return;
    }
    this.#told++;
    this.#tell({ method: method.slice(0, MAX_TEXT_CHARS), ...claimed(params) });
  }

  [Symbol.dispose](): void {
    this.#timer?.cancel();
  }

  #tell(what: Omit<StrangerOperation, 'atMs' | 'missed'>): void {
    const { clock, logger } = this.#options;
    const operation = { atMs: clock.now(), ...what, missed: this.#missed };
    this.#missed = 0;
    this.#timer?.cancel();
    this.#timer = undefined;
    logger.error('edge.stranger', operation);
    if (this.#listeners.size === 0) this.#untold.push(operation);
    for (const listener of this.#listeners) listener.message(operation).catch(() => undefined);
  }

  /** Tells an apiserver until it resets the stream. @throws PlatformError `permission_denied`, `too_many_requests` */
  async listen(peer: Peer, stream: WireServerStream): Promise<void> {
    if (!peer.isProved) throw new PlatformError('permission_denied', 'only an apiserver hears of strangers');
    if (this.#listeners.size >= MAX_LISTENERS)
      throw new PlatformError('too_many_requests', 'too many apiservers listen', { details: { limit: MAX_LISTENERS } });
    this.#listeners.add(stream);
    try {
      for (const operation of this.#untold.splice(0)) await stream.message(operation);
      await new Promise((resolve) => stream.signal.addEventListener('abort', resolve, { once: true }));
    } finally {
      this.#listeners.delete(stream);
    }
  }
}

/** What it says that it is about, and who it says that it is: from anybody, so only what has a form. */
function claimed({ sandboxId, principal }: JsonObject): Pick<StrangerOperation, 'sandboxId' | 'claimedKeyId'> {
  const keyId =
    typeof principal === 'object' && principal !== null && 'keyId' in principal ? principal.keyId : undefined;
  return {
    ...(typeof sandboxId === 'string' ? { sandboxId: sandboxId.slice(0, MAX_TEXT_CHARS) } : {}),
    ...(typeof keyId === 'string' ? { claimedKeyId: keyId.slice(0, MAX_TEXT_CHARS) } : {}),
  };
}
