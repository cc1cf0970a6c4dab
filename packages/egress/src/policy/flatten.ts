/** Flattens overlapping prefixes: a lookup by longest prefix finds one entry, so each entry says all that holds for its addresses. */
import { formatPrefix, type Prefix } from '@dsec/contract';
import { entryRanges, type PortRange } from './port-ranges.ts';

/** Some ports of some addresses, allowed or denied. */
export interface AddressRule {
  readonly prefix: Prefix;
  readonly ranges: readonly PortRange[];
}

export interface AddressEntry {
  readonly cidr: string;
  readonly ranges: readonly PortRange[];
}

interface Node {
  readonly prefix: Prefix;
  readonly own: PortRange[];
  ranges: readonly PortRange[];
}

/**
 * One entry for each prefix that says something else than the prefix around it. `check` sees each before it is kept.
 */
export function flatten(rules: readonly AddressRule[], check: (entry: AddressEntry) => void): readonly AddressEntry[] {
  const nodes = new Map<string, Node>();
  for (const { prefix, ranges } of rules) {
    const key = keyOf(prefix);
    const node = nodes.get(key) ?? { prefix, own: [], ranges: [] };
    node.own.push(...ranges);
    nodes.set(key, node);
  }
  const lengths = [...new Set([...nodes.values()].map(({ prefix }) => prefix.length))].toSorted((a, b) => b - a);
  const entries: AddressEntry[] = [];
  // Wide prefixes first: what a prefix inherits is complete in the closest one around it.
  for (const node of [...nodes.values()].toSorted((a, b) => a.prefix.length - b.prefix.length)) {
    const around = parentOf(node.prefix, lengths, nodes);
    node.ranges = entryRanges([...(around?.ranges ?? []), ...node.own]);
    const entry = { cidr: formatPrefix(node.prefix), ranges: node.ranges };
    check(entry);
    if (around === undefined || !areEqual(around.ranges, node.ranges)) entries.push(entry);
  }
  return entries;
}

function parentOf(prefix: Prefix, lengths: readonly number[], nodes: ReadonlyMap<string, Node>): Node | undefined {
  for (const length of lengths) {
    if (length >= prefix.length) continue;
    const around = nodes.get(keyOf({ ...prefix, bits: cut(prefix, length), length }));
    if (around !== undefined) return around;
  }
  return undefined;
}

const keyOf = ({ family, bits, length }: Prefix): string => `${family}/${length}/${bits.toString(16)}`;

const cut = ({ family, bits }: Prefix, length: number): bigint => {
  const rest = BigInt((family === 4 ? 32 : 128) - length);
  return (bits >> rest) << rest;
};

const areEqual = (a: readonly PortRange[], b: readonly PortRange[]): boolean =>
  a.length === b.length && a.every((range, index) => range.every((part, at) => part === b[index]?.[at]));
