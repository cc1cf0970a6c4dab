/**
 * Decides what a sandbox hears to a question. What it may not know is not asked for anywhere: the answer is made here.
 *
 * A name that is not allowed does not exist (NXDOMAIN): getaddrinfo of glibc and of musl then fails at once, where glibc tries every server twice
 * after REFUSED and musl waits for its timeout. Records of types that are not served are REFUSED: no program needs them to resolve a name.
 */
import { formatPrefix, parsePrefix, PlatformError } from '@dsec/contract';
import type { Clock, Logger } from '@dsec/kit';
import type { Asker, Events } from '../events.ts';
import type { PinSink } from '../pin-sink.ts';
import { mayAnswer } from '../policy/answer-filter.ts';
import type { NameMatch } from '../policy/name-table.ts';
import type { RefusalReason } from '../refusal.ts';
import type { PolicyInForce, SandboxAddresses, SandboxNetwork } from '../sandbox-network.ts';
import {
  CROWDED_AT,
  LOG_BURST,
  LOG_LINES_PER_SECOND,
  MAX_OUTSTANDING,
  MAX_OUTSTANDING_CROWDED,
  MAX_TTL_S,
} from './bounds.ts';
import { parseQuery, Rcode, RecordType, writeReply, type AddressType, type Query, type Reply } from './message.ts';
import { reverseAddress } from './reverse-name.ts';
import { TokenBucket } from './token-bucket.ts';
import type { Resolution, Resolved } from './upstream.ts';

export interface ResponderOptions {
  /** Gives up in bounded time. */
  readonly resolution: Resolution;
  readonly pinSink: PinSink;
  readonly events: Events;
  readonly clock: Clock;
  readonly logger: Logger;
  /** Names of mirror services are `<service>.<zone>`, and have the addresses of the resolver. */
  readonly services: SandboxAddresses & { readonly zone: string };
}

const NO_NAME: Reply = { rcode: Rcode.noName, records: [] };
const NO_DATA: Reply = { rcode: Rcode.ok, records: [] };
const FAILED: Reply = { rcode: Rcode.failed, records: [] };
const REFUSED: Reply = { rcode: Rcode.refused, records: [] };

/** Who asks: by its address the sandbox, where it is known, and by its port the process. */
export interface Questioner extends Asker {
  readonly sandbox: SandboxNetwork | undefined;
}

/** Of a known sandbox. */
interface Known extends Questioner {
  readonly sandbox: SandboxNetwork;
}

export class Responder {
  readonly #options: ResponderOptions;
  /** Of what goes wrong: a question costs a sandbox nothing, a line of the log costs the node. */
  readonly #lines: TokenBucket;
  /** Questions that wait for their answer. */
  #waiting = 0;

  constructor(options: ResponderOptions) {
    this.#options = options;
    this.#lines = new TokenBucket({ clock: options.clock, perSecond: LOG_LINES_PER_SECOND, burst: LOG_BURST });
  }

  /** The answer as bytes; undefined when there is none. Never throws. */
  async respond(bytes: Buffer, from: Questioner): Promise<Buffer | undefined> {
    const { sandbox, protocol } = from;
    // Before the question is looked at: reading it is work too.
    if (sandbox?.queries.take() === false) {
      this.#refuse({ ...from, sandbox }, 'rate', '');
      return undefined;
    }
    const parsed = parseQuery(bytes);
    if (parsed.kind === 'drop') return undefined;
    if (parsed.kind === 'reply') {
      if (sandbox !== undefined) this.#refuse({ ...from, sandbox }, 'malformed', '');
      return parsed.bytes;
    }
    const { query } = parsed;
    // Its policy is not here yet, or not any more: whoever asks may ask again.
    if (sandbox?.inForce === undefined) return writeReply(query, FAILED, protocol);
    const known = { ...from, sandbox };
    using place = sandbox.enter(this.#waiting >= CROWDED_AT ? MAX_OUTSTANDING_CROWDED : MAX_OUTSTANDING);
    if (place === undefined) {
      this.#refuse(known, 'rate', query.name, query.type);
      return undefined;
    }
    this.#waiting += 1;
    try {
      return writeReply(query, await this.#answer(query, known, sandbox.inForce), protocol);
    } catch (error) {
      if (this.#lines.take()) this.#options.logger.error('dns.fault', { sandbox: sandbox.id, error });
      return writeReply(query, FAILED, protocol);
    } finally {
      this.#waiting -= 1;
    }
  }

  async #answer(query: Query, from: Known, inForce: PolicyInForce): Promise<Reply> {
    const { name, type } = query;
    const { sandbox } = from;
    const reversed = reverseAddress(name);
    if (reversed !== undefined) return type === RecordType.PTR ? this.#reverse(reversed, sandbox) : NO_DATA;
    const service = this.#service(name);
    if (service !== undefined) return this.#ofService(service, query, from);
    const match = matchOf(name, inForce);
    if (match === undefined) {
      if (inForce.table.isAncestor(name)) return NO_DATA;
      this.#refuse(from, 'name', name, type);
      return NO_NAME;
    }
    // Nothing to be had there, and no harm in saying so: browsers ask before every connection.
    if (type === RecordType.HTTPS || type === RecordType.SVCB) return NO_DATA;
    if (type !== RecordType.A && type !== RecordType.AAAA) {
      this.#refuse(from, 'type', name, type);
      return REFUSED;
    }
    if (type === RecordType.AAAA && sandbox.addresses.address6 === undefined) return NO_DATA;
    if (type === RecordType.A && sandbox.addresses.address4 === undefined) return NO_DATA;
    const [wildcard] = match.wildcards;
    if (wildcard !== undefined && !sandbox.wildcardNames.admit(wildcard, name)) {
      this.#refuse(from, 'wildcard', name, type);
      return NO_NAME;
    }
    return await this.#addresses(name, type === RecordType.A ? 'A' : 'AAAA', from);
  }

  async #addresses(name: string, type: AddressType, from: Known): Promise<Reply> {
    const { sandbox } = from;
    const resolved = await this.#resolve(name, type);
    if (resolved === undefined) return FAILED;
    if (resolved.kind === 'noName') return NO_NAME;
    // From here to the end the policy stays what it is, so that no address is answered that it does not have.
    using _lock = await sandbox.lock.acquire();
    const { inForce } = sandbox;
    const match = inForce === undefined ? undefined : matchOf(name, inForce);
    if (inForce === undefined || match === undefined) return NO_NAME;
    const addresses = resolved.addresses.filter((address) => mayAnswer(address, inForce.filter)).map(canonical);
    if (addresses.length < resolved.addresses.length) this.#refuse(from, 'address', name, RecordType[type]);
    const ttlS = Math.min(resolved.ttlS, MAX_TTL_S);
    if (!(await this.#pin({ name, addresses, ttlS, match }, from, inForce))) return FAILED;
    return { rcode: Rcode.ok, records: addresses.map((data) => ({ type, data, ttlS })) };
  }

  async #resolve(name: string, type: AddressType): Promise<Resolved | undefined> {
    try {
      return await this.#options.resolution.resolve(name, type);
    } catch (error) {
      this.#options.logger.debug('dns.unresolved', { name, type, error });
      return undefined;
    }
  }

  /** True when every address is open, in the kernel, for as long as the answer says. */
  async #pin({ name, addresses, ttlS, match }: Answered, from: Known, inForce: PolicyInForce): Promise<boolean> {
    const { sandbox } = from;
    const { pins } = sandbox;
    try {
      const planned = pins.plan(name, addresses, ttlS, match.ports);
      // Where every address is open, none has to be opened.
      if (planned.length > 0 && !inForce.compiled.flags.public) {
        await this.#options.pinSink.add(sandbox.id, inForce.generation, planned);
      }
      pins.confirm(planned, match.ports);
      return true;
    } catch (error) {
      if (PlatformError.is(error) && FULL.includes(error.code)) this.#refuse(from, 'pins', name);
      else if (this.#lines.take()) {
        this.#options.logger.warn('dns.pin', { sandbox: sandbox.id, outcome: 'failed', error });
      }
      return false;
    }
  }

  #reverse(address: string, sandbox: SandboxNetwork): Reply {
    const name = sandbox.pins.nameOf(address);
    if (name === undefined) return NO_NAME;
    return { rcode: Rcode.ok, records: [{ type: 'PTR', data: name, ttlS: 1 }] };
  }

  #service(name: string): string | undefined {
    const { zone } = this.#options.services;
    return name.endsWith(`.${zone}`) ? name.slice(0, -zone.length - 1) : undefined;
  }

  #ofService(service: string, query: Query, from: Known): Reply {
    if (from.sandbox.inForce?.compiled.services.includes(service) !== true) {
      this.#refuse(from, 'name', query.name, query.type);
      return NO_NAME;
    }
    const { address4, address6 } = this.#options.services;
    const data = query.type === RecordType.A ? address4 : query.type === RecordType.AAAA ? address6 : undefined;
    if (data === undefined) return NO_DATA;
    const type = query.type === RecordType.A ? 'A' : 'AAAA';
    return { rcode: Rcode.ok, records: [{ type, data, ttlS: MAX_TTL_S }] };
  }

  #refuse(from: Known, reason: RefusalReason, name: string, type?: number): void {
    const { sandbox, protocol, address, port } = from;
    const asked = { ...(name === '' ? {} : { name }), ...(type === undefined ? {} : { type }) };
    const refusal = { id: sandbox.id, kind: 'name', ...asked, reason } as const;
    this.#options.events.refuse(refusal, sandbox.events, { protocol, address, port });
  }
}

/** Said here, or by egressd. */
const FULL: readonly string[] = ['too_many_requests', 'no_capacity'];

interface Answered {
  readonly name: string;
  readonly addresses: readonly string[];
  readonly ttlS: number;
  readonly match: NameMatch;
}

/** Where every address is allowed, so is every name. */
const OPEN: NameMatch = { ports: [], wildcards: [] };

const matchOf = (name: string, { table, compiled }: PolicyInForce): NameMatch | undefined =>
  table.match(name) ?? (compiled.flags.public && name !== '' ? OPEN : undefined);

const canonical = (address: string): string => {
  const parsed = parsePrefix(address);
  return parsed.ok ? formatPrefix(parsed.prefix) : address;
};
