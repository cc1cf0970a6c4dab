/** Names of addresses, as they are asked for: `4.3.2.1.in-addr.arpa` (RFC 1035 3.5), nibbles below `ip6.arpa` (RFC 3596 2.5). */
import { formatPrefix } from '@dsec/contract';

const V4_ZONE = '.in-addr.arpa';
const V6_ZONE = '.ip6.arpa';

/** The address in the one way in which it is written; empty for a name below these zones that is of no address; undefined for other names. */
export function reverseAddress(name: string): string | undefined {
  if (name.endsWith(V4_ZONE)) {
    const octets = name.slice(0, -V4_ZONE.length).split('.');
    const isAddress =
      octets.length === 4 && octets.every((octet) => /^(?:0|[1-9][0-9]{0,2})$/.test(octet) && Number(octet) < 256);
    return isAddress ? octets.toReversed().join('.') : '';
  }
  if (name.endsWith(V6_ZONE)) {
    const nibbles = name.slice(0, -V6_ZONE.length).split('.');
    const isAddress = nibbles.length === 32 && nibbles.every((nibble) => /^[0-9a-f]$/.test(nibble));
    if (!isAddress) return '';
    return formatPrefix({ family: 6, bits: BigInt(`0x${nibbles.toReversed().join('')}`), length: 128 });
  }
  return undefined;
}
