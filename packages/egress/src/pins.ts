/** What is pinned for one sandbox: the addresses that it was answered, for how long, and by which names. */
import { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import { MAX_PINS, PIN_GRACE_S } from './dns/bounds.ts';
import type { Pin } from './pin-sink.ts';
import { fitPin, type PortRange } from './policy/port-ranges.ts';

interface Pinned {
  readonly ranges: readonly PortRange[];
  readonly expiresMs: number;
}

export class Pins {
  readonly #clock: Clock;
  /** Address → name → until when. */
  readonly #pinned = new Map<string, Map<string, Pinned>>();
  #count = 0;

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** Pairs of name and address, those whose time is over perhaps among them. */
  get count(): number {
    return this.#count;
  }

  /**
   * What must be told to the kernel before an answer is sent, and what `confirm` then remembers. An address that is open long enough is left out: a
   * program that asks all the time costs nothing more.
   * @throws PlatformError `too_many_requests` when the sandbox has as many as it may have
   */
  plan(name: string, addresses: readonly string[], ttlS: number, ranges: readonly PortRange[]): readonly Pin[] {
    const nowMs = this.#clock.monotonicMs();
    const ttlMs = (ttlS + PIN_GRACE_S) * 1000;
    const pins: Pin[] = [];
    for (const address of addresses) {
      const names = this.#pinned.get(address);
      const known = names?.get(name);
      if (known !== undefined && known.expiresMs - nowMs >= ttlS * 1000 + (PIN_GRACE_S * 1000) / 2) continue;
      pins.push({ address, name, ttlMs, ranges: fitPin([...liveRanges(names, nowMs), ...ranges]) });
    }
    const fresh = pins.filter(({ address }) => this.#pinned.get(address)?.has(name) !== true).length;
    if (this.#count + fresh > MAX_PINS) this.#forgetOver(nowMs);
    if (this.#count + fresh > MAX_PINS) {
      throw new PlatformError('too_many_requests', `a sandbox may have ${MAX_PINS} addresses by name`);
    }
    return pins;
  }

  /** The pins are in the kernel; `ranges` are those of the name itself. */
  confirm(pins: readonly Pin[], ranges: readonly PortRange[]): void {
    const nowMs = this.#clock.monotonicMs();
    for (const { address, name, ttlMs } of pins) {
      const names = this.#pinned.get(address) ?? new Map<string, Pinned>();
      // The one that was pinned last stands last.
      if (!names.delete(name)) this.#count += 1;
      names.set(name, { ranges, expiresMs: nowMs + ttlMs });
      this.#pinned.set(address, names);
    }
  }

  /** The name by which an address was pinned last; undefined when it is not. */
  nameOf(address: string): string | undefined {
    const nowMs = this.#clock.monotonicMs();
    const names = [...(this.#pinned.get(address) ?? [])].filter(([, { expiresMs }]) => expiresMs > nowMs);
    return names.at(-1)?.[0];
  }

  /** Those that hold under another policy, with what it gives them. `rangesOf` is undefined for what it does not allow. */
  carried(rangesOf: (name: string, address: string) => readonly PortRange[] | undefined): CarriedPins {
    const nowMs = this.#clock.monotonicMs();
    const next = new Pins(this.#clock);
    const pins: Pin[] = [];
    for (const [address, names] of this.#pinned) {
      const kept = new Map<string, Pinned>();
      for (const [name, { expiresMs }] of names) {
        const ranges = expiresMs > nowMs ? rangesOf(name, address) : undefined;
        if (ranges !== undefined) kept.set(name, { ranges, expiresMs });
      }
      if (kept.size === 0) continue;
      next.#pinned.set(address, kept);
      next.#count += kept.size;
      const ranges = fitPin(liveRanges(kept, nowMs));
      // The gate wants every name that an address belongs to.
      for (const [name, { expiresMs }] of kept)
        pins.push({ address, name, ttlMs: Math.ceil(expiresMs - nowMs), ranges });
    }
    return { next, pins };
  }

  #forgetOver(nowMs: number): void {
    for (const [address, names] of this.#pinned) {
      for (const [name, { expiresMs }] of names) {
        if (expiresMs <= nowMs && names.delete(name)) this.#count -= 1;
      }
      if (names.size === 0) this.#pinned.delete(address);
    }
  }
}

export interface CarriedPins {
  readonly next: Pins;
  /** All of them, to be written under the new generation. */
  readonly pins: readonly Pin[];
}

const liveRanges = (names: ReadonlyMap<string, Pinned> | undefined, nowMs: number): readonly PortRange[] =>
  [...(names?.values() ?? [])].flatMap(({ ranges, expiresMs }) => (expiresMs > nowMs ? ranges : []));
