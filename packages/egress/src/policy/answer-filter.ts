/**
 * Which addresses a name may resolve to. A name that somebody else controls can be pointed anywhere (rebinding), so an answer opens nothing that
 * the policy keeps from everybody: private networks need a rule of their own, and what is never reachable is never answered.
 */
import { covers, neverReachable, parsePrefix, privateNetworks, type Prefix } from '@dsec/contract';

export interface AnswerFilter {
  /** Private networks, and parts of them, that a rule allows. */
  readonly opened: readonly Prefix[];
  /** The networks of the node, closed like what is never reachable. */
  readonly nodeNetworks: readonly Prefix[];
}

/** A permission for wide ranges of the internet is not meant for what lies behind it; one within a private network is. */
export const opensPrivate = (allowed: Prefix): boolean => privateNetworks.some((network) => covers(network, allowed));

/** Whether `address` may be answered. What is no address may not. */
export function mayAnswer(address: string, { opened, nodeNetworks }: AnswerFilter): boolean {
  const parsed = parsePrefix(address);
  if (!parsed.ok) return false;
  const { prefix } = parsed;
  const isIn = (networks: readonly Prefix[]): boolean => networks.some((network) => covers(network, prefix));
  if (isIn(neverReachable) || isIn(nodeNetworks)) return false;
  return !isIn(privateNetworks) || isIn(opened);
}
