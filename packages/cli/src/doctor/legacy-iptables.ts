/** The filter table of legacy iptables, which nft does not show, as `iptables-legacy -S` prints it. */
import { inPrefix } from './in-prefix.ts';
import {
  allOf,
  matchesDevice,
  matchOf,
  not,
  packet,
  type FilterChain,
  type FilterRule,
  type FilterTable,
  type Match,
  type Verdict,
} from './packet-filter.ts';

const HOOKS: Readonly<Record<string, string>> = { INPUT: 'input', FORWARD: 'forward', OUTPUT: 'output' };
const VERDICTS: Readonly<Record<string, Verdict>> = {
  ACCEPT: { kind: 'accept' },
  DROP: { kind: 'drop' },
  REJECT: { kind: 'drop' },
  RETURN: { kind: 'return' },
};
/** Targets that end nothing. */
const PASSING: ReadonlySet<string> = new Set(['LOG', 'NFLOG', 'MARK', 'CONNMARK', 'TCPMSS', 'TRACE']);

export function parseLegacy(listing: string): FilterTable {
  const chains = new Map<string, FilterChain & { readonly rules: FilterRule[] }>();
  for (const line of listing.split('\n')) {
    const [command, chain = '', ...rest] = line.trim().split(/\s+/);
    const hook = HOOKS[chain];
    if (command === '-P' && hook !== undefined)
      chains.set(chain, { rules: [], base: { hook, priority: 0, isDropping: rest[0] === 'DROP' } });
    else if (command === '-N') chains.set(chain, { rules: [], base: undefined });
    else if (command === '-A') chains.get(chain)?.rules.push(ruleOf(rest));
  }
  return { name: 'legacy ip filter', chains };
}

function ruleOf(words: readonly string[]): FilterRule {
  const matches: Match[] = [];
  let verdict: Verdict | undefined;
  let isNegated = false;
  const take = (match: Match): void => {
    matches.push(isNegated ? not(match) : match);
    isNegated = false;
  };
  for (let at = 0; at < words.length; at++) {
    const word = words[at] ?? '';
    const value = words[at + 1] ?? '';
    if (word === '!') {
      isNegated = true;
      continue;
    }
    at++;
    if (word === '-j' || word === '-g') {
      verdict =
        VERDICTS[value] ?? (PASSING.has(value) ? undefined : { kind: word === '-j' ? 'jump' : 'goto', chain: value });
      // What follows says how.
      break;
    }
    if (word === '-i') take(matchOf(matchesDevice(value.replace(/\+$/, '*'))));
    else if (word === '-s') take(matchOfAddress(value));
    else if (word === '--ctstate' || word === '--state')
      take(matchOf(value.toLowerCase().split(',').includes(packet.state)));
    else if (word !== '-m') take('maybe');
  }
  return { match: allOf(matches), verdict };
}

function matchOfAddress(text: string): Match {
  const [network = '', bits = '32'] = text.split('/');
  return matchOf(inPrefix(packet.source, network, Number(bits)));
}
