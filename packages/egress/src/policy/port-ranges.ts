/** Ranges of ports with a verdict: what an entry of the kernel's maps holds. */
import type { NetworkProtocol } from '@dsec/contract';

/** Both ends included; icmp has the one range 0 to 0. */
export type PortRange = readonly [protocol: NetworkProtocol, low: number, high: number, allow: boolean];

/** Of one entry of the map of addresses. */
export const MAX_RANGES_PER_ADDRESS = 16;
/** Of one entry of the map of pins, and so of one name. */
export const MAX_RANGES_PER_NAME = 4;
export const MAX_PORT = 65_535;

/** In the order of their protocol, with those that touch made one. */
export function mergeRanges(ranges: readonly PortRange[]): readonly PortRange[] {
  const sorted = ranges.toSorted((a, b) => order(a[0], b[0]) || Number(a[3]) - Number(b[3]) || a[1] - b[1]);
  const merged: PortRange[] = [];
  for (const range of sorted) {
    const last = merged.at(-1);
    if (last !== undefined && last[0] === range[0] && last[3] === range[3] && range[1] <= last[2] + 1) {
      merged[merged.length - 1] = [last[0], last[1], Math.max(last[2], range[2]), last[3]];
    } else merged.push(range);
  }
  return merged;
}

/** The ranges of one entry: denials first, and no permission that a denial covers. The first that matches decides. */
export function entryRanges(ranges: readonly PortRange[]): readonly PortRange[] {
  if (ranges.length < 2) return ranges;
  const merged = mergeRanges(ranges);
  const denials = merged.filter(([, , , allow]) => !allow);
  const permissions = merged.filter(
    ([protocol, low, high, allow]) =>
      allow && !denials.some((denial) => denial[0] === protocol && denial[1] <= low && high <= denial[2]),
  );
  return [...denials, ...permissions];
}

/**
 * At most as many ranges as a pin holds. TCP is widened to fit, since the gate checks name and port of every connection itself; UDP is cut, since
 * nobody looks at it again.
 */
export function fitPin(ranges: readonly PortRange[]): readonly PortRange[] {
  const merged = [...mergeRanges(ranges)];
  while (merged.length > MAX_RANGES_PER_NAME) {
    const at = closest(merged);
    const left = merged[at];
    const right = merged[at + 1];
    if (left === undefined || right === undefined) break;
    merged.splice(at, 2, [left[0], left[1], right[2], true]);
  }
  return merged.slice(0, MAX_RANGES_PER_NAME);
}

/** Where the two TCP ranges stand that lie closest; -1 without two. */
function closest(ranges: readonly PortRange[]): number {
  let best = -1;
  let bestGap = Number.POSITIVE_INFINITY;
  for (const [index, [protocol, , high]] of ranges.entries()) {
    const next = ranges[index + 1];
    if (protocol !== 'tcp' || next?.[0] !== 'tcp' || next[1] - high >= bestGap) continue;
    best = index;
    bestGap = next[1] - high;
  }
  return best;
}

const ORDER: Readonly<Record<NetworkProtocol, number>> = { tcp: 0, udp: 1, icmp: 2 };
const order = (a: NetworkProtocol, b: NetworkProtocol): number => ORDER[a] - ORDER[b];
