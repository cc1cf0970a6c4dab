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

const ZERO = '0'.charCodeAt(0);
/** The dot, counted from the digits. */
const DOT = '.'.charCodeAt(0) - ZERO;

const width = (family: 4 | 6): number => (family === 4 ? 32 : 128);

/** Whether a text can only be meant as an address, well-formed or not: no name ends in a number (RFC 3696, WHATWG URL). */
export const looksLikeAddress = (text: string): boolean =>
  /[:/]/.test(text) || /(?:^|\.)(?:0[xX][0-9a-fA-F]*|[0-9]+)\.?$/.test(text);

/** An address or `address/length`; bits behind the length are refused, since they show that something else was meant. */
export function parsePrefix(text: string): PrefixResult {
  const slash = text.indexOf('/');
  const parsed = parseAddress(slash < 0 ? text : text.slice(0, slash));
  if (parsed === undefined || (slash >= 0 && text.includes('/', slash + 1)))
    return refused('is no IPv4 or IPv6 address or CIDR (scheme, path and port do not belong here)');
  const { family, bits } = parsed;
  if (slash < 0) return { ok: true, prefix: { family, bits, length: width(family) } };
  const lengthText = text.slice(slash + 1);
  if (!/^(?:0|[1-9][0-9]{0,2})$/.test(lengthText) || Number(lengthText) > width(family)) {
    return refused(`has no prefix length from 0 to ${width(family)}`);
  }
  const length = Number(lengthText);
  const masked = maskedTo(family, bits, length);
  const prefix: Prefix = { family, bits: masked, length };
  return masked === bits ? { ok: true, prefix } : refused(`has bits behind its prefix; write ${formatPrefix(prefix)}`);
}

/** The one way in which it is written: RFC 5952 for IPv6, no length for a single address. */
export function formatPrefix({ family, bits, length }: Prefix): string {
  const address = family === 4 ? formatIpv4(bits) : formatIpv6(bits);
  return length === width(family) ? address : `${address}/${length}`;
}

/** Whether every address of `inner` is one of `outer`. */
export function covers(outer: Prefix, inner: Prefix): boolean {
  if (outer.family !== inner.family || outer.length > inner.length) return false;
  if (outer.family === 6) return (inner.bits ^ outer.bits) >> restOf(outer) === 0n;
  return outer.length === 0 || (Number(inner.bits) ^ Number(outer.bits)) >>> (32 - outer.length) === 0;
}

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

/** `bits` with all that is behind the prefix zero. */
function maskedTo(family: 4 | 6, bits: bigint, length: number): bigint {
  if (family === 4) return BigInt((Number(bits) & (length === 0 ? 0 : -1 << (32 - length))) >>> 0);
  const rest = restOf({ family, length });
  return (bits >> rest) << rest;
}

function parseAddress(text: string): Pick<Prefix, 'family' | 'bits'> | undefined {
  const bits4 = parseIpv4(text);
  if (bits4 !== undefined) return { family: 4, bits: bits4 };
  const bits6 = parseIpv6(text);
  return bits6 === undefined ? undefined : { family: 6, bits: bits6 };
}

/**
 * Four decimal numbers without leading zeros: octal and short forms mean different addresses to different programs. Read in one pass, and IPv4 counted in
 * plain numbers: a policy has thousands of these, and a change has to be in force within milliseconds.
 */
function parseIpv4(text: string): bigint | undefined {
  let bits = 0;
  let octet = -1;
  let dots = 0;
  for (let at = 0; at < text.length; at++) {
    const digit = text.charCodeAt(at) - ZERO;
    if (digit === DOT) {
      if (octet < 0 || ++dots > 3) return undefined;
      bits = bits * 256 + octet;
      octet = -1;
    } else {
      if (digit < 0 || digit > 9 || octet === 0) return undefined;
      octet = octet < 0 ? digit : octet * 10 + digit;
      if (octet > 255) return undefined;
    }
  }
  return dots === 3 && octet >= 0 ? BigInt(bits * 256 + octet) : undefined;
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

function formatIpv4(bits: bigint): string {
  const all = Number(bits);
  return `${all >>> 24}.${(all >>> 16) & 0xff}.${(all >>> 8) & 0xff}.${all & 0xff}`;
}

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
