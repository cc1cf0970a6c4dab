import { BlockList, isIPv4 } from 'node:net';

/** Whether an IPv4 address is in `network/bits`; what is no network has none. */
export function inPrefix(address: string, network: string, bits: number): boolean {
  if (!isIPv4(network) || !(bits >= 0 && bits <= 32)) return false;
  const list = new BlockList();
  list.addSubnet(network, bits);
  return list.check(address);
}
