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
  /** Shared with the rule that it comes from. */
  own: readonly PortRange[];
  ranges: readonly PortRange[];
}

/** The prefixes of one length of one family, by their bits. */
interface Level {
  readonly length: number;
  readonly nodes: Map<Bits, Node>;
}

/** Of a prefix: a number for IPv4, which is many times quicker, and policies have thousands. */
type Bits = number | bigint;

/**
 * One entry for each prefix that says something else than the prefix around it. `check` sees each before it is kept.
 */
export function flatten(rules: readonly AddressRule[], check: (entry: AddressEntry) => void): readonly AddressEntry[] {
  const entries: AddressEntry[] = [];
  for (const family of [4, 6] as const) {
    const levels = levelsOf(rules.filter(({ prefix }) => prefix.family === family));
    // Wide prefixes first: what a prefix inherits is complete in the closest one around it.
    for (const [depth, { nodes }] of levels.entries()) {
      for (const node of nodes.values()) {
        const around = closestAround(node.prefix, levels, depth);
        node.ranges = entryRanges(around === undefined ? node.own : [...around.ranges, ...node.own]);
        const entry = { cidr: formatPrefix(node.prefix), ranges: node.ranges };
        check(entry);
        if (around === undefined || !areEqual(around.ranges, node.ranges)) entries.push(entry);
      }
    }
  }
  return entries;
}

/** From the widest to the narrowest. */
function levelsOf(rules: readonly AddressRule[]): readonly Level[] {
  const levels = new Map<number, Level>();
  for (const { prefix, ranges } of rules) {
    const { length } = prefix;
    let level = levels.get(length);
    if (level === undefined) {
      level = { length, nodes: new Map() };
      levels.set(length, level);
    }
    const bits = bitsOf(prefix, length);
    const node = level.nodes.get(bits);
    if (node === undefined) level.nodes.set(bits, { prefix, own: ranges, ranges });
    else node.own = [...node.own, ...ranges];
  }
  return [...levels.values()].toSorted((a, b) => a.length - b.length);
}

/** The first `length` bits of an address. */
function bitsOf({ family, bits }: Prefix, length: number): Bits {
  if (family === 6) return bits >> BigInt(128 - length);
  return length === 0 ? 0 : Number(bits) >>> (32 - length);
}

function closestAround(prefix: Prefix, levels: readonly Level[], depth: number): Node | undefined {
  for (let at = depth - 1; at >= 0; at--) {
    const level = levels[at];
    const around = level?.nodes.get(bitsOf(prefix, level.length));
    if (around !== undefined) return around;
  }
  return undefined;
}

const areEqual = (a: readonly PortRange[], b: readonly PortRange[]): boolean =>
  a.length === b.length && a.every((range, index) => range.every((part, at) => part === b[index]?.[at]));
