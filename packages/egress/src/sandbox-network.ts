/** What the resolver knows of one sandbox. */
import { formatPrefix, parsePrefix, PlatformError } from '@dsec/contract';
import { Semaphore, type Clock } from '@dsec/kit';
import { MAX_OUTSTANDING, QUERIES_PER_SECOND, QUERY_BURST } from './dns/bounds.ts';
import { TokenBucket } from './dns/token-bucket.ts';
import { EventBudget } from './events.ts';
import { Pins } from './pins.ts';
import type { AnswerFilter } from './policy/answer-filter.ts';
import type { CompiledPolicy } from './policy/compile.ts';
import type { NameTable } from './policy/name-table.ts';
import { WildcardNames } from './wildcard-names.ts';

/** A policy as it is in force. */
export interface PolicyInForce {
  readonly compiled: CompiledPolicy;
  /** Of egressd: pins are written under it. */
  readonly generation: number;
  readonly table: NameTable;
  readonly filter: AnswerFilter;
}

export interface SandboxAddresses {
  readonly address4?: string | undefined;
  readonly address6?: string | undefined;
}

/**
 * In the one way in which the kernel writes them.
 * @throws PlatformError `invalid_argument` for what is no address of its family, and without any
 */
export function parseAddresses(given: SandboxAddresses): SandboxAddresses {
  const address4 = parseAddress(given.address4, 4);
  const address6 = parseAddress(given.address6, 6);
  if (address4 === undefined && address6 === undefined) throw invalidAddress(4);
  return { address4, address6 };
}

function parseAddress(text: string | undefined, family: 4 | 6): string | undefined {
  if (text === undefined) return undefined;
  const parsed = parsePrefix(text);
  const isAddress = parsed.ok && parsed.prefix.family === family && parsed.prefix.length === (family === 4 ? 32 : 128);
  if (!isAddress) throw invalidAddress(family);
  return formatPrefix(parsed.prefix);
}

const invalidAddress = (family: 4 | 6): PlatformError =>
  new PlatformError('invalid_argument', `a sandbox needs an IPv${family} address`, {
    details: { field: `address${family}`, reason: `is no IPv${family} address` },
  });

export class SandboxNetwork {
  readonly id: string;
  readonly addresses: SandboxAddresses;
  readonly queries: TokenBucket;
  readonly events: EventBudget;
  readonly wildcardNames = new WildcardNames();
  /** Held while the policy changes, and while an answer is made of it. */
  readonly lock = new Semaphore({ permits: 1, maxWaiting: 2 * MAX_OUTSTANDING });
  /** Absent until its first policy is in force. */
  inForce: PolicyInForce | undefined;
  pins: Pins;
  #outstanding = 0;

  constructor(id: string, addresses: SandboxAddresses, clock: Clock) {
    this.id = id;
    this.addresses = addresses;
    this.pins = new Pins(clock);
    this.queries = new TokenBucket({ clock, perSecond: QUERIES_PER_SECOND, burst: QUERY_BURST });
    this.events = new EventBudget(clock);
  }

  /** A place among `most` questions of this sandbox that wait for an answer; undefined without one. Dispose it with the answer. */
  enter(most: number): Disposable | undefined {
    if (this.#outstanding >= most) return undefined;
    this.#outstanding += 1;
    return {
      [Symbol.dispose]: () => {
        this.#outstanding -= 1;
      },
    };
  }
}
