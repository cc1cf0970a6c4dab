/** What a network rule is about: addresses, one name, or all names below one. */
import { covers, formatPrefix, looksLikeAddress, neverReachable, parsePrefix, type Prefix } from './network-address.ts';

export type Destination =
  | { readonly kind: 'addresses'; readonly prefix: Prefix }
  /** `name` is lower case, without a final dot, IDN as A-labels. A wildcard stands for one label or more: not for `name` itself. */
  | { readonly kind: 'name'; readonly name: string; readonly isWildcard: boolean };

export type DestinationResult =
  | { readonly ok: true; readonly destination: Destination }
  /** `reason` completes a sentence that begins with the text that was given. */
  | { readonly ok: false; readonly reason: string };

/** RFC 1035 2.3.4, without the final dot. */
const MAX_NAME_CHARS = 253;
/** RFC 6761 6.3 */
const LOCALHOST = 'localhost';
const LABEL = /^[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?$/;

export function parseDestination(text: string): DestinationResult {
  return looksLikeAddress(text) ? parseAddresses(text) : parseName(text);
}

/** The one way in which it is written. */
export const formatDestination = (destination: Destination): string =>
  destination.kind === 'addresses'
    ? formatPrefix(destination.prefix)
    : `${destination.isWildcard ? '*.' : ''}${destination.name}`;

/** Whether no policy can open any of it. */
export const isNeverReachable = (destination: Destination): boolean =>
  destination.kind === 'addresses'
    ? neverReachable.some((never) => covers(never, destination.prefix))
    : destination.name === LOCALHOST || destination.name.endsWith(`.${LOCALHOST}`);

const refused = (reason: string): DestinationResult => ({ ok: false, reason });

function parseAddresses(text: string): DestinationResult {
  const parsed = parsePrefix(text);
  if (!parsed.ok) return parsed;
  return { ok: true, destination: { kind: 'addresses', prefix: parsed.prefix } };
}

function parseName(text: string): DestinationResult {
  if (text === '*') return refused('is every name; say `default: "allow"` instead');
  const isWildcard = text.startsWith('*.');
  const given = (isWildcard ? text.slice(2) : text).replace(/\.$/, '');
  if (given.includes('*')) return refused('may have a `*` only as its whole first label');
  const name = toAscii(given);
  if (name === undefined) return refused('is no name of a host, address or CIDR');
  if (name.length > MAX_NAME_CHARS) return refused(`is longer than ${MAX_NAME_CHARS} characters`);
  // A single label is no name that everybody resolves alike, and is mostly a service in the wrong place.
  if (!isWildcard && !name.includes('.') && name !== LOCALHOST)
    return refused('has one label only; services are opened under `services`');
  return { ok: true, destination: { kind: 'name', name, isWildcard } };
}

/** The name in the form that DNS and TLS carry (UTS 46); undefined when it has none. */
function toAscii(text: string): string | undefined {
  if (!/^[\p{L}\p{M}\p{N}_.-]+$/u.test(text)) return undefined;
  const name = /^[\x21-\x7e]+$/.test(text) ? text.toLowerCase() : hostOf(text);
  // What IDNA maps to digits would be an address.
  if (name === undefined || looksLikeAddress(name)) return undefined;
  return name.split('.').every((label) => LABEL.test(label)) ? name : undefined;
}

/** UTS 46 as WHATWG URL has it: in browsers as in Node. */
function hostOf(text: string): string | undefined {
  const url = `http://${text}/`;
  return URL.canParse(url) ? new URL(url).hostname : undefined;
}
