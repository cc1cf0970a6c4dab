/**
 * What a packet filter of the host makes of a packet of a sandbox. Of all base chains at a hook each has its say, whatever their priority: an accept ends only its own chain, a drop ends
 * the packet. So any other table that drops what it does not know takes the network from sandboxes, although dsec's own table lets them through.
 */

/** What a rule asks of a packet; `maybe`: it asks for more than is known of what sandboxes send. */
export type Match = 'always' | 'never' | 'maybe';

export type Verdict =
  | { readonly kind: 'accept' | 'drop' | 'return' }
  | { readonly kind: 'jump' | 'goto'; readonly chain: string };

export interface FilterRule {
  readonly match: Match;
  /** Undefined: it only counts or marks. */
  readonly verdict: Verdict | undefined;
}

/** Where packets come into a table. */
interface Base {
  readonly hook: string;
  readonly priority: number;
  readonly isDropping: boolean;
}

export interface FilterTable {
  /** `ip filter`, `inet firewalld`; of legacy iptables `legacy ip filter`. */
  readonly name: string;
  readonly chains: ReadonlyMap<string, FilterChain>;
}

export interface FilterChain {
  readonly rules: readonly FilterRule[];
  readonly base: Base | undefined;
}

/** The first packet of what a sandbox begins, as a filter at `forward` or `input` sees it. */
export const packet = { device: 'dsec0.0', source: '198.18.0.2', state: 'new' } as const;

/** As the kernel's. */
const MAX_DEPTH = 16;
const MAX_STEPS = 100_000;

/** Whether a base chain lets the packet on. What only some packets match, none of a sandbox does: a rule for them has to name them. */
export function isDropped(table: FilterTable, chain: FilterChain): boolean {
  const walk = { table, steps: 0 };
  const verdict = verdictOf(walk, chain, 0);
  return verdict === 'drop' || (verdict === 'none' && chain.base?.isDropping === true);
}

interface Walk {
  readonly table: FilterTable;
  steps: number;
}

function verdictOf(walk: Walk, chain: FilterChain, depth: number): 'accept' | 'drop' | 'none' {
  for (const { match, verdict } of chain.rules) {
    if (++walk.steps > MAX_STEPS || depth > MAX_DEPTH) return 'none';
    if (match !== 'always' || verdict === undefined) continue;
    if (!('chain' in verdict)) return verdict.kind === 'return' ? 'none' : verdict.kind;
    const next = walk.table.chains.get(verdict.chain);
    const inner = next === undefined ? 'none' : verdictOf(walk, next, depth + 1);
    if (inner !== 'none' || verdict.kind === 'goto') return inner;
  }
  return 'none';
}

/** Whether a pattern of a device, `NAME` or `BEGIN*`, is of those of sandboxes. */
export const matchesDevice = (pattern: string): boolean =>
  pattern.endsWith('*') ? packet.device.startsWith(pattern.slice(0, -1)) : pattern === packet.device;

/** Whether all packets that match one of these do: a part of an `or`, or of an `and`, that is not known is `maybe`. */
export const anyOf = (matches: readonly Match[]): Match =>
  matches.includes('always') ? 'always' : matches.includes('maybe') ? 'maybe' : 'never';
export const allOf = (matches: readonly Match[]): Match =>
  matches.includes('never') ? 'never' : matches.includes('maybe') ? 'maybe' : 'always';
export const not = (match: Match): Match => (match === 'always' ? 'never' : match === 'never' ? 'always' : 'maybe');
export const matchOf = (isMatch: boolean): Match => (isMatch ? 'always' : 'never');
