/** Remembers answers for their time, asks once for all who want the same name at the same moment, and gives up in bounded time. */
import { PlatformError } from '@dsec/contract';
import { orAborted, withDeadline, type Clock } from '@dsec/kit';
import { LOOKUP_MS, MAX_CACHED_NAMES, NEGATIVE_TTL_S } from './bounds.ts';
import type { AddressType } from './message.ts';
import type { Resolution, Resolved } from './upstream.ts';

interface Cached {
  readonly resolved: Resolved;
  readonly expiresMs: number;
}

export class CachedResolution implements Resolution {
  readonly #source: Resolution;
  readonly #clock: Clock;
  /** In the order of their last use. */
  readonly #cache = new Map<string, Cached>();
  readonly #pending = new Map<string, Promise<Resolved>>();

  constructor(source: Resolution, clock: Clock) {
    this.#source = source;
    this.#clock = clock;
  }

  get size(): number {
    return this.#cache.size;
  }

  async resolve(name: string, type: AddressType, signal?: AbortSignal): Promise<Resolved> {
    const key = `${type} ${name}`;
    const cached = this.#cache.get(key);
    const nowMs = this.#clock.monotonicMs();
    if (cached !== undefined) {
      this.#cache.delete(key);
      if (cached.expiresMs > nowMs) {
        this.#cache.set(key, cached);
        return aged(cached, nowMs);
      }
    }
    let pending = this.#pending.get(key);
    if (pending === undefined) {
      pending = this.#ask(key, name, type);
      this.#pending.set(key, pending);
      // Everybody who waited may have gone.
      pending.catch(() => undefined);
    }
    return await orAborted(pending, signal);
  }

  async #ask(key: string, name: string, type: AddressType): Promise<Resolved> {
    try {
      const deadline = { clock: this.#clock, what: `resolving ${name}`, timeoutMs: LOOKUP_MS };
      const resolved = await withDeadline(deadline, (signal) => this.#source.resolve(name, type, signal));
      const ttlS = resolved.kind === 'noName' ? NEGATIVE_TTL_S : resolved.ttlS;
      this.#cache.set(key, { resolved, expiresMs: this.#clock.monotonicMs() + ttlS * 1000 });
      this.#evict();
      return resolved;
    } catch (error) {
      if (PlatformError.is(error)) throw error;
      throw new PlatformError('unavailable', 'the name could not be resolved', { cause: error });
    } finally {
      this.#pending.delete(key);
    }
  }

  #evict(): void {
    for (const key of this.#cache.keys()) {
      if (this.#cache.size <= MAX_CACHED_NAMES) return;
      this.#cache.delete(key);
    }
  }
}

/** With the time that is left of it. */
const aged = ({ resolved, expiresMs }: Cached, nowMs: number): Resolved =>
  resolved.kind === 'noName' ? resolved : { ...resolved, ttlS: Math.max(1, Math.floor((expiresMs - nowMs) / 1000)) };
