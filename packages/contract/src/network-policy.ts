/** From a policy as a caller writes it to one that can be enforced: defaults filled in, destinations in one form, contradictions refused. */
import { PlatformError } from './errors.ts';
import { limits } from './limits.ts';
import { formatDestination, isNeverReachable, parseDestination, type Destination } from './network-destination.ts';
import { policyProfiles } from './policy-profiles.ts';
import {
  policyPhases,
  type NetworkPolicy,
  type NetworkPolicyRequest,
  type NetworkRule,
  type Policy,
  type PolicyPhases,
  type PolicyRequest,
  type ProfileName,
} from './public/policy.ts';
import type { CreateSandbox } from './public/sandbox.ts';

/** The part of a policy that a request decides. */
export type PolicyTerms = Omit<Policy, 'version' | 'changedAtMs'>;

const utf8 = new TextEncoder();
const QUIC_PORT = 443;
/** Where every connection says its name. */
const CHECKED_PORTS = [80, 443];
const MAX_PORT = 65_535;

/**
 * Completes what a schema has let through.
 * @throws PlatformError `invalid_argument` with `details.field` (below `policy`) and `details.reason`
 */
export function completePolicy(request: PolicyRequest): PolicyTerms {
  const profile = request.profile ?? 'default';
  const network = completeNetworkPolicy(request.network ?? {}, { profile, field: 'network' });
  const phases: Partial<Record<(typeof policyPhases)[number], NetworkPolicy>> = {};
  for (const phase of policyPhases) {
    const asked = request.phases?.[phase];
    if (asked !== undefined) phases[phase] = completeNetworkPolicy(asked, { profile, field: `phases.${phase}` });
  }
  if (ruleCountOf({ network, phases }) > limits.policyRules) {
    throw invalid('phases', `have with \`network\` more than ${limits.policyRules} rules in all`);
  }
  const phase = request.phase ?? null;
  checkPhase(phases, phase);
  const tripwires = [...new Set(request.tripwires)];
  const long = tripwires.findIndex((path) => utf8.encode(path).length > limits.tripwireBytes);
  if (long >= 0) throw invalid(`tripwires.${long}`, `is longer than ${limits.tripwireBytes} bytes`);
  return {
    profile,
    network,
    ...(Object.keys(phases).length === 0 ? {} : { phases }),
    phase,
    ...(tripwires.length === 0 ? {} : { tripwires }),
  };
}

/**
 * The policy that a sandbox is created with.
 * @throws PlatformError `invalid_argument` as {@link completePolicy}, and when services are named in both places
 */
export function policyOfCreate({
  policy = {},
  networkRules,
}: Pick<CreateSandbox, 'policy' | 'networkRules'>): PolicyTerms {
  if (networkRules === undefined) return completePolicy(policy);
  if (policy.network?.services !== undefined) {
    const reason = 'says what `policy.network.services` says; give one of them';
    throw new PlatformError('invalid_argument', `the request: networkRules ${reason}`, {
      details: { field: 'networkRules', reason },
    });
  }
  return completePolicy({ ...policy, network: { ...policy.network, services: networkRules } });
}

/** How many rules it has, all phases together. */
export const ruleCountOf = ({ network, phases = {} }: Pick<Policy, 'network' | 'phases'>): number =>
  [network, ...Object.values(phases)].reduce((count, { rules }) => count + rules.length, 0);

/** @throws PlatformError `invalid_argument` when the policy has no such phase */
export function checkPhase(phases: PolicyPhases | undefined, phase: Policy['phase']): void {
  if (phase === null || phases?.[phase] !== undefined) return;
  throw invalid('phase', `is ${phase}, which the policy does not have under \`phases\``);
}

export interface CompletionOptions {
  /** @default 'default' */
  readonly profile?: ProfileName;
  /** Where the policy stands in the request. */
  readonly field: string;
}

/** @throws PlatformError as {@link completePolicy} */
export function completeNetworkPolicy(request: NetworkPolicyRequest, options: CompletionOptions): NetworkPolicy {
  const { network: base, refuses } = policyProfiles[options.profile ?? 'default'];
  const policy: NetworkPolicy = {
    default: request.default ?? base.default,
    rules: (request.rules ?? base.rules).map((rule, index) => completeRule(rule, `${options.field}.rules.${index}`)),
    services: request.services ?? base.services,
    ipLiterals: request.ipLiterals ?? base.ipLiterals,
  };
  const { field } = options;
  if (refuses.defaultAllow && policy.default === 'allow')
    throw invalid(`${field}.default`, 'is never allow in this profile');
  if (refuses.ipLiterals && policy.ipLiterals) throw invalid(`${field}.ipLiterals`, 'is never true in this profile');
  if (policy.ipLiterals) return policy;
  if (policy.default === 'allow')
    throw invalid(`${field}.ipLiterals`, 'cannot be false where every address is allowed');
  const literal = policy.rules.findIndex((rule) => rule.action === 'allow' && destinationOf(rule).kind === 'addresses');
  if (literal >= 0) throw invalid(`${field}.rules.${literal}.to`, 'allows addresses, and `ipLiterals` is false');
  return policy;
}

/** Whether anything at all is reachable under it: what allows nothing needs no device. */
export const allowsAnything = ({ default: fallback, rules, services }: NetworkPolicy): boolean =>
  fallback === 'allow' || rules.some(({ action }) => action === 'allow') || Object.values(services).some(Boolean);

/** What a rule of a complete policy is about. */
export function destinationOf({ to }: NetworkRule): Destination {
  const parsed = parseDestination(to);
  if (!parsed.ok) throw new PlatformError('internal', `a rule of a complete policy has the destination ${to}`);
  return parsed.destination;
}

/** The ports that a rule of a complete policy names, else all; both ends included; none for icmp. */
export function portRangesOf({ ports, protocol }: NetworkRule): readonly (readonly [low: number, high: number])[] {
  if (protocol === 'icmp') return [];
  return (ports ?? [`1-${MAX_PORT}`]).map(rangeOf);
}

function completeRule(rule: NetworkRule, field: string): NetworkRule {
  const parsed = parseDestination(rule.to);
  if (!parsed.ok) throw invalid(`${field}.to`, parsed.reason, rule.to);
  const { destination } = parsed;
  if (rule.action === 'allow' && isNeverReachable(destination)) {
    throw invalid(`${field}.to`, 'is never reachable from a sandbox', rule.to);
  }
  // What somebody wants closed is closed to everything.
  const protocol = rule.protocol ?? (rule.action === 'allow' ? 'tcp' : undefined);
  if (protocol === 'icmp' && rule.ports !== undefined) throw invalid(`${field}.ports`, 'have no meaning for icmp');
  for (const port of rule.ports ?? []) {
    const [low, high] = rangeOf(port);
    if (low > high || high > MAX_PORT) throw invalid(`${field}.ports`, `have ${port}, which is no range of ports`);
  }
  const { anyProtocol = false, ...rest } = rule;
  const complete = {
    ...rest,
    to: formatDestination(destination),
    ...(protocol === undefined ? {} : { protocol }),
    ...(anyProtocol ? { anyProtocol } : {}),
  };
  if (destination.kind === 'name') checkNameRule(complete, field);
  if (anyProtocol) checkUnreadRule(complete, destination, field);
  return complete;
}

/** What cannot be enforced by name is refused rather than half done. */
function checkNameRule(rule: NetworkRule, field: string): void {
  if (rule.protocol === 'icmp') throw invalid(`${field}.protocol`, 'is icmp, which rules by name do not know');
  if (rule.action === 'deny') {
    throw invalid(`${field}.to`, 'is a name, whose addresses anybody may know; deny addresses instead', rule.to);
  }
  const isQuicOnly = rule.ports?.every((port) => rangeOf(port).every((end) => end === QUIC_PORT)) ?? false;
  if (rule.protocol === 'udp' && isQuicOnly) {
    throw invalid(`${field}.ports`, 'are QUIC alone, which hides the name and is closed to rules by name');
  }
}

/** What is not looked at must be as narrow as it can be said. */
function checkUnreadRule({ action, ports, protocol, to }: NetworkRule, destination: Destination, field: string): void {
  const refused = (reason: string): PlatformError => invalid(`${field}.anyProtocol`, reason, to);
  if (action === 'deny') throw refused('is for permissions; a denial is of every protocol anyway');
  if (destination.kind === 'addresses')
    throw refused('is for names; what connections to addresses carry is never looked at');
  if (destination.isWildcard)
    throw refused('is for one name; whoever names hosts below a wildcard could open every address');
  if (protocol !== 'tcp') throw refused('is for tcp');
  if (ports === undefined) throw invalid(`${field}.ports`, 'must be said where anyProtocol is', to);
  const isChecked = ports.map(rangeOf).some(([low, high]) => CHECKED_PORTS.some((port) => low <= port && port <= high));
  if (isChecked)
    throw invalid(`${field}.ports`, 'have 80 or 443, where the name is always checked, beside anyProtocol', to);
}

function rangeOf(port: number | string): readonly [low: number, high: number] {
  if (typeof port === 'number') return [port, port];
  const [low, high] = port.split('-').map(Number);
  return [low ?? 0, high ?? 0];
}

const MAX_SHOWN = 64;

/** `field` is named below `policy`, where every caller has it. */
function invalid(field: string, reason: string, value?: string): PlatformError {
  const shown = value === undefined ? '' : ` (${value.slice(0, MAX_SHOWN)})`;
  return new PlatformError('invalid_argument', `the policy: ${field}${shown} ${reason}`, {
    details: { field: `policy.${field}`, reason },
  });
}
