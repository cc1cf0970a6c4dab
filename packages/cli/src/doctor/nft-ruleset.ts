/** The tables of the packet filter, as `nft -j list ruleset` prints them: those of iptables-nft, of ufw, docker and firewalld too. */
import { inPrefix } from './in-prefix.ts';
import {
  allOf,
  anyOf,
  matchesDevice,
  matchOf,
  not,
  packet,
  type FilterChain,
  type FilterRule,
  type FilterTable,
  type Match,
  type Verdict,
} from './packet-filter.ts';

type Json = Readonly<Record<string, unknown>>;

const isJson = (value: unknown): value is Json => typeof value === 'object' && value !== null && !Array.isArray(value);
const textOf = (value: unknown): string => (typeof value === 'string' ? value : '');

/** @param report what nft has printed; what has not its form is left out */
export function parseRuleset(report: unknown): readonly FilterTable[] {
  const items = isJson(report) && Array.isArray(report['nftables']) ? (report['nftables'] as readonly unknown[]) : [];
  const tables = new Map<string, Map<string, FilterChain & { readonly rules: FilterRule[] }>>();
  const tableOf = (item: Json) => {
    const name = `${textOf(item['family'])} ${textOf(item['table'])}`;
    const chains = tables.get(name) ?? new Map<string, FilterChain & { readonly rules: FilterRule[] }>();
    tables.set(name, chains);
    return chains;
  };
  for (const item of items) {
    if (!isJson(item)) continue;
    const { chain, rule } = item;
    if (isJson(chain)) tableOf(chain).set(textOf(chain['name']), { rules: [], base: baseOf(chain) });
    if (isJson(rule)) tableOf(rule).get(textOf(rule['chain']))?.rules.push(ruleOf(rule['expr']));
  }
  return [...tables].map(([name, chains]) => ({ name, chains }));
}

function baseOf({ type, hook, prio, policy }: Json): FilterChain['base'] {
  if (type !== 'filter' || typeof hook !== 'string') return undefined;
  return { hook, priority: Number(prio), isDropping: policy === 'drop' };
}

function ruleOf(expression: unknown): FilterRule {
  const matches: Match[] = [];
  let verdict: Verdict | undefined;
  for (const statement of Array.isArray(expression) ? (expression as readonly unknown[]) : []) {
    if (!isJson(statement)) continue;
    const [[kind, value] = ['', undefined]] = Object.entries(statement);
    if (kind === 'match') matches.push(isJson(value) ? matchOfExpression(value) : 'maybe');
    else if (kind === 'accept' || kind === 'drop' || kind === 'return') verdict = { kind };
    else if (kind === 'reject') verdict = { kind: 'drop' };
    else if ((kind === 'jump' || kind === 'goto') && isJson(value)) verdict = { kind, chain: textOf(value['target']) };
    else if (kind === 'xt') {
      const { type, name } = isJson(value) ? value : {};
      if (type === 'target') verdict = name === 'REJECT' || name === 'DROP' ? { kind: 'drop' } : verdict;
      else matches.push('maybe');
    } else if (kind !== 'counter' && kind !== 'log' && kind !== 'mangle') matches.push('maybe');
  }
  return { match: allOf(matches), verdict };
}

function matchOfExpression({ op, left, right }: Json): Match {
  const found = anyOf(valuesOf(right).map((value) => matchOfValue(left, value)));
  return op === '!=' ? not(found) : found;
}

const valuesOf = (right: unknown): readonly unknown[] => {
  const set = isJson(right) ? right['set'] : right;
  return Array.isArray(set) ? (set as readonly unknown[]) : [right];
};

function matchOfValue(left: unknown, value: unknown): Match {
  if (!isJson(left)) return 'maybe';
  const { meta, payload, ct } = left;
  if (isJson(meta)) {
    const { key } = meta;
    // A set with a name, which may hold anything.
    if (key === 'iifname' && typeof value === 'string' && !value.startsWith('@')) return matchOf(matchesDevice(value));
    if (key === 'nfproto') return matchOf(value === 'ipv4');
  }
  if (isJson(ct) && ct['key'] === 'state') return matchOf(value === packet.state);
  if (isJson(payload) && payload['field'] === 'saddr' && payload['protocol'] === 'ip') return matchOfAddress(value);
  return 'maybe';
}

function matchOfAddress(value: unknown): Match {
  if (typeof value === 'string') return value.startsWith('@') ? 'maybe' : matchOf(value === packet.source);
  const prefix = isJson(value) ? value['prefix'] : undefined;
  if (!isJson(prefix)) return 'maybe';
  return matchOf(inPrefix(packet.source, textOf(prefix['addr']), Number(prefix['len'])));
}
