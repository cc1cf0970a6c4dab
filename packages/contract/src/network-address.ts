/** Addresses of network rules: parsed strictly (one way to write each, nothing guessed), and compared as numbers. */

export interface Prefix {
  readonly family: 4 | 6;
  /** The address, all bits behind the prefix zero. */
  readonly bits: bigint;
  /** Length of the prefix in bits: at most 32, or 128. */
  readonly length: number;
}

export type PrefixResult =
  | { readonly ok: true; readonly prefix: Prefix }
  /** `reason` completes a sentence that begins with the text that was given. */
  | { readonly ok: false; readonly reason: string };

const width = (family: 4 | 6): number => (family === 4 ? 32 : 128);

/** Whether a text can only be meant as an address, well-formed or not: no name ends in a number (RFC 3696, WHATWG URL). */
export const looksLikeAddress = (text: string): boolean =>
  /[:/]/.test(text) || /(?:^|\.)(?:0[xX][0-9a-fA-F]*|[0-9]+)\.?$/.test(text);

/** An address or `address/length`; bits behind the length are refused, since they show that something else was meant. */
export function parsePrefix(text: string): PrefixResult {
  const [address = '', lengthText, ...more] = text.split('/');
  const parsed = parseAddress(address);
  if (parsed === undefined || more.length > 0)
    return refused('is no IPv4 or IPv6 address or CIDR (scheme, path and port do not belong here)');
  const { family, bits } = parsed;
  if (lengthText === undefined) return { ok: true, prefix: { family, bits, length: width(family) } };
  if (!/^(?:0|[1-9][0-9]{0,2})$/.test(lengthText) || Number(lengthText) > width(family)) {
    return refused(`has no prefix length from 0 to ${width(family)}`);
  }
  const length = Number(lengthText);
  const rest = restOf({ family, length });
  const masked = (bits >> rest) << rest;
  const prefix: Prefix = { family, bits: masked, length };
  return masked === bits ? { ok: true, prefix } : refused(`has bits behind its prefix; write ${formatPrefix(prefix)}`);
}

/** The one way in which it is written: RFC 5952 for IPv6, no length for a single address. */
export function formatPrefix({ family, bits, length }: Prefix): string {
  const address = family === 4 ? formatIpv4(bits) : formatIpv6(bits);
  return length === width(family) ? address : `${address}/${length}`;
}

/** Whether every address of `inner` is one of `outer`. */
export const covers = (outer: Prefix, inner: Prefix): boolean =>
  outer.family === inner.family && outer.length <= inner.length && (inner.bits ^ outer.bits) >> restOf(outer) === 0n;

const prefixes = (...texts: readonly string[]): readonly Prefix[] =>
  texts.map((text) => {
    const parsed = parsePrefix(text);
    if (!parsed.ok) throw new TypeError(`${text} ${parsed.reason}`);
    return parsed.prefix;
  });

/**
 * What no sandbox reaches, whatever a policy says: this host, link-local and metadata addresses, multicast, broadcast, and the forms of IPv6 that
 * carry an IPv4 address. The node adds its own network and the host's own addresses.
 */
export const neverReachable: readonly Prefix[] = prefixes(
  '0.0.0.0/8',
  '127.0.0.0/8',
  '169.254.0.0/16',
  '224.0.0.0/4',
  '255.255.255.255',
  '::/96',
  '::ffff:0:0/96',
  '64:ff9b::/96',
  '2002::/16',
  'fe80::/10',
  'ff00::/8',
  'fd00:ec2::254',
);

/** Networks that are not the public internet; under `default: "allow"` only a rule that names them opens them. */
export const privateNetworks: readonly Prefix[] = prefixes(
  '10.0.0.0/8',
  '100.64.0.0/10',
  '172.16.0.0/12',
  '192.0.0.0/24',
  '192.168.0.0/16',
  '198.18.0.0/15',
  '240.0.0.0/4',
  'fc00::/7',
  'fec0::/10',
);

function refused(reason: string): PrefixResult {
  return { ok: false, reason };
}

/** Bits behind the prefix. */
function restOf({ family, length }: Pick<Prefix, 'family' | 'length'>): bigint {
  return BigInt(width(family) - length);
}

function parseAddress(text: string): Pick<Prefix, 'family' | 'bits'> | undefined {
  const bits4 = parseIpv4(text);
  if (bits4 !== undefined) return { family: 4, bits: bits4 };
  const bits6 = parseIpv6(text);
  return bits6 === undefined ? undefined : { family: 6, bits: bits6 };
}

/** Four decimal numbers without leading zeros: octal and short forms mean different addresses to different programs. */
function parseIpv4(text: string): bigint | undefined {
  if (!/^(?:(?:0|[1-9][0-9]{0,2})\.){3}(?:0|[1-9][0-9]{0,2})$/.test(text)) return undefined;
  const octets = text.split('.').map(Number);
  if (octets.some((octet) => octet > 255)) return undefined;
  return octets.reduce((bits, octet) => (bits << 8n) | BigInt(octet), 0n);
}

/** RFC 4291 2.2, without zones. */
function parseIpv6(text: string): bigint | undefined {
  const sides = text.split('::');
  if (sides.length > 2) return undefined;
  const [head, tail] = sides.map((side, index) => groupsOf(side, index === sides.length - 1));
  if (head === undefined) return undefined;
  if (sides.length === 1) return head.length === 8 ? joined(head) : undefined;
  // `::` stands for one group at least.
  if (tail === undefined || head.length + tail.length > 7) return undefined;
  return joined([...head, ...new Array<bigint>(8 - head.length - tail.length).fill(0n), ...tail]);
}

function groupsOf(side: string, isLast: boolean): readonly bigint[] | undefined {
  if (side === '') return [];
  const groups: bigint[] = [];
  const parts = side.split(':');
  for (const [index, part] of parts.entries()) {
    const bits4 = isLast && index === parts.length - 1 ? parseIpv4(part) : undefined;
    if (bits4 !== undefined) groups.push(bits4 >> 16n, bits4 & 0xffffn);
    else if (/^[0-9a-fA-F]{1,4}$/.test(part)) groups.push(BigInt(`0x${part}`));
    else return undefined;
  }
  return groups;
}

function joined(groups: readonly bigint[]): bigint {
  return groups.reduce((bits, group) => (bits << 16n) | group, 0n);
}

const formatIpv4 = (bits: bigint): string => [24n, 16n, 8n, 0n].map((shift) => (bits >> shift) & 0xffn).join('.');

function formatIpv6(bits: bigint): string {
  const groups = Array.from({ length: 8 }, (_, index) => ((bits >> BigInt(112 - index * 16)) & 0xffffn).toString(16));
  let longest = { start: 0, length: 0 };
  for (let start = 0; start < 8; start++) {
    let length = 0;
    while (groups[start + length] === '0') length++;
    if (length > longest.length) longest = { start, length };
  }
  if (longest.length < 2) return groups.join(':');
  const head = groups.slice(0, longest.start).join(':');
  return `${head}::${groups.slice(longest.start + longest.length).join(':')}`;
}
