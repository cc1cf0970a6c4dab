/**
 * From a network policy to what is enforced: entries for the kernel's maps, names for the resolver and the gate. Pure.
 *
 * - A denial of addresses wins over every permission, whatever their order and width: an entry inherits all from the prefixes around it. Without
 *   a protocol it is for all of them, where a permission is for TCP.
 * - A permission without ports is for any port of addresses, and for 80 and 443 of names: other protocols do not carry the name that the gate checks.
 * - UDP 443 is never allowed by name: QUIC hides the name.
 * - What the gate need not read stands first, since the first entry that fits a name and a port decides there.
 */
import {
  destinationOf,
  PlatformError,
  portRangesOf,
  type NetworkPolicy,
  type NetworkRule,
  type Prefix,
} from '@dsec/contract';
import { opensPrivate } from './answer-filter.ts';
import { flatten, type AddressEntry, type AddressRule } from './flatten.ts';
import type { NameEntry } from './name-table.ts';
import { MAX_PORT, MAX_RANGES_PER_ADDRESS, MAX_RANGES_PER_NAME, mergeRanges, type PortRange } from './port-ranges.ts';

/** Rules of one policy; as many as the public schema lets through. */
export const MAX_RULES = 8192;
const QUIC_PORT = 443;
const WEB_PORTS = [80, 443] as const;
const ANY_TCP: readonly PortRange[] = [['tcp', 0, MAX_PORT, true]];

export interface PolicyFlags {
  /** DNS is answered: wherever anything is allowed, so that a name that is not fails at once. */
  readonly resolver: boolean;
  /** A mirror service is allowed. */
  readonly services: boolean;
  /** A name is allowed. */
  readonly names: boolean;
  /** What no rule names is allowed. */
  readonly public: boolean;
}

export interface CompiledPolicy {
  readonly flags: PolicyFlags;
  /** For a lookup by longest prefix; each entry is complete, and the first range that matches decides. */
  readonly rules: readonly AddressEntry[];
  readonly names: readonly NameEntry[];
  /** Of the operator's services, those that are open; sorted. */
  readonly services: readonly string[];
  /** What of private networks is allowed: names may resolve into it. */
  readonly opened: readonly Prefix[];
}

export interface CompileOptions {
  /** Names of the services that the operator has defined. */
  readonly services: ReadonlySet<string>;
}

/**
 * `policy` is complete (`completeNetworkPolicy`).
 * @throws PlatformError `invalid_argument` with `details.field` and `details.reason`: too many rules or ranges, a name in a denial, addresses where
 *   `ipLiterals` is false; `service_unknown` with `details.service`: a service that is not defined
 */
export function compilePolicy(policy: NetworkPolicy, options: CompileOptions): CompiledPolicy {
  if (policy.rules.length > MAX_RULES) throw invalid('rules', `are more than ${MAX_RULES}`);
  const addresses: AddressRule[] = [];
  const opened: Prefix[] = [];
  const [names, unread] = [new Map<string, PortRange[]>(), new Map<string, PortRange[]>()];
  for (const [index, rule] of policy.rules.entries()) {
    const destination = destinationOf(rule);
    const field = `rules.${index}`;
    if (destination.kind === 'addresses') {
      checkAddressRule(rule, policy, field);
      addresses.push({ prefix: destination.prefix, ranges: addressRanges(rule) });
      if (rule.action === 'allow' && opensPrivate(destination.prefix)) opened.push(destination.prefix);
    } else {
      const pattern = `${destination.isWildcard ? '*.' : ''}${destination.name}`;
      const table = rule.anyProtocol === true ? unread : names;
      table.set(pattern, [...(table.get(pattern) ?? []), ...nameRanges(rule, field)]);
    }
  }
  const services = openServices(policy, options.services);
  const isPublic = policy.default === 'allow';
  const entries: readonly NameEntry[] = [
    ...[...unread].map(([pattern, ports]) => ({ ...nameEntry(pattern, ports), anyProtocol: true }) as const),
    ...[...names].map(([pattern, ports]) => nameEntry(pattern, ports)),
  ];
  return {
    flags: {
      resolver: isPublic || services.length > 0 || policy.rules.some(({ action }) => action === 'allow'),
      services: services.length > 0,
      names: entries.length > 0,
      public: isPublic,
    },
    rules: flatten(addresses, checkEntry),
    names: entries,
    services,
    opened,
  };
}

function checkAddressRule(rule: NetworkRule, policy: NetworkPolicy, field: string): void {
  if (rule.action === 'deny' || policy.ipLiterals) return;
  throw invalid(`${field}.to`, `allows the addresses ${rule.to}, and \`ipLiterals: false\` allows names alone`);
}

function addressRanges(rule: NetworkRule): readonly PortRange[] {
  const isAllowed = rule.action === 'allow';
  // What most rules are.
  if (isAllowed && rule.ports === undefined && rule.protocol === 'tcp') return ANY_TCP;
  if (rule.protocol === 'icmp') return [['icmp', 0, 0, isAllowed]];
  const ports = rule.ports === undefined ? ([[0, MAX_PORT]] as const) : portRangesOf(rule);
  const protocols = rule.protocol === undefined && !isAllowed ? (['tcp', 'udp'] as const) : [rule.protocol ?? 'tcp'];
  const ranges = protocols.flatMap((protocol) =>
    ports.map(([low, high]): PortRange => [protocol, low, high, isAllowed]),
  );
  // A denial of everything, which echo requests are part of.
  if (protocols.length > 1 && rule.ports === undefined) ranges.push(['icmp', 0, 0, false]);
  return ranges;
}

function nameRanges(rule: NetworkRule, field: string): readonly PortRange[] {
  if (rule.action === 'deny') {
    throw invalid(
      `${field}.to`,
      `denies the name ${rule.to}, whose addresses anybody may know; deny addresses instead`,
    );
  }
  if (rule.protocol === 'icmp') throw invalid(`${field}.protocol`, 'is icmp, which rules by name do not know');
  const protocol = rule.protocol ?? 'tcp';
  const ports = rule.ports === undefined ? WEB_PORTS.map((port) => [port, port] as const) : portRangesOf(rule);
  if (protocol === 'tcp') return ports.map(([low, high]): PortRange => [protocol, low, high, true]);
  return ports
    .flatMap(([low, high]) => withoutQuic(low, high))
    .map(([low, high]): PortRange => ['udp', low, high, true]);
}

function withoutQuic(low: number, high: number): readonly (readonly [number, number])[] {
  if (QUIC_PORT < low || QUIC_PORT > high) return [[low, high]];
  return (
    [
      [low, QUIC_PORT - 1],
      [QUIC_PORT + 1, high],
    ] as const
  ).filter(([from, to]) => from <= to);
}

function nameEntry(pattern: string, ports: readonly PortRange[]): NameEntry {
  const merged = mergeRanges(ports);
  if (merged.length <= MAX_RANGES_PER_NAME) return { pattern, ports: merged };
  throw invalid(
    'rules',
    `give ${pattern} ${merged.length} ranges of ports, and a name may have ${MAX_RANGES_PER_NAME}; use wider ranges`,
  );
}

function checkEntry({ cidr, ranges }: AddressEntry): void {
  if (ranges.length <= MAX_RANGES_PER_ADDRESS) return;
  throw invalid(
    'rules',
    `give ${cidr}, with what it inherits, ${ranges.length} ranges of ports, and addresses may have ${MAX_RANGES_PER_ADDRESS}; use wider ranges`,
  );
}

function openServices({ services }: NetworkPolicy, known: ReadonlySet<string>): readonly string[] {
  for (const [name, isOpen] of Object.entries(services)) {
    // One that stays closed need not exist: the same policy serves on other nodes.
    if (!isOpen || known.has(name)) continue;
    throw new PlatformError('service_unknown', `the operator has defined no service ${name}`, {
      details: { service: name, services: [...known].toSorted() },
    });
  }
  return Object.keys(services)
    .filter((name) => services[name] === true)
    .toSorted();
}

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('invalid_argument', `the network policy: ${field} ${reason}`, {
    details: { field: `policy.network.${field}`, reason },
  });
