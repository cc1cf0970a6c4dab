/** What an event tells of an act. Whatever a program has chosen is cut to the bounds of the contract. */
import type { Act, ActingProcess } from '@dsec/backends';
import { limits, type BehaviourEvent, type BehaviourKind, type BehaviourProcess } from '@dsec/contract';

const MAX_OUTCOME_CHARS = 64;
/** What whoever tells takes from lists of its own, and the name of a process, which the kernel keeps short. */
const MAX_WORD_CHARS = 128;
/** Names of the records that programs ask for most (RFC 1035, RFC 3596, RFC 2782, RFC 9460); others are written as in RFC 3597. */
const RECORD_TYPES: Readonly<Record<number, string>> = {
  1: 'A',
  2: 'NS',
  5: 'CNAME',
  6: 'SOA',
  10: 'NULL',
  12: 'PTR',
  15: 'MX',
  16: 'TXT',
  28: 'AAAA',
  33: 'SRV',
  64: 'SVCB',
  65: 'HTTPS',
  255: 'ANY',
};

/** The members of an event that say what was done. */
export type Told = Pick<
  BehaviourEvent,
  'kind' | 'what' | 'outcome' | 'call' | 'argument' | 'path' | 'name' | 'type' | 'address' | 'port' | 'protocol'
>;

export function toldOf(act: Act): Told {
  const { port } = act;
  const type = act.type === undefined ? undefined : (RECORD_TYPES[act.type] ?? `TYPE${act.type}`);
  const words = { call: act.call, argument: act.argument, type, address: act.address, protocol: act.protocol };
  const texts = { path: act.path, name: act.name };
  const members = { ...given(words, MAX_WORD_CHARS), ...given(texts, limits.behaviourTextChars) };
  const what = cutText(whatOf(act.kind, { ...members, port }), limits.behaviourTextChars);
  const outcome = cutText(act.outcome, MAX_OUTCOME_CHARS);
  return { kind: act.kind, what, outcome, ...members, ...(port === undefined ? {} : { port }) } as Told;
}

type Members = { readonly [M in keyof Omit<Told, 'kind' | 'what' | 'outcome'>]?: Told[M] | undefined };

/** Those that there are, each cut. */
const given = <M extends string>(texts: Readonly<Record<M, string | undefined>>, maxChars: number) =>
  Object.fromEntries(
    Object.entries<string | undefined>(texts).flatMap(([member, text]) =>
      text === undefined ? [] : [[member, cutText(text, maxChars)]],
    ),
  ) as Partial<Record<M, string>>;

/** In one line. */
function whatOf(kind: BehaviourKind, told: Members): string {
  const { call, argument, path = '?', name, type, protocol = '?', address = '?', port } = told;
  switch (kind) {
    case 'call':
      return joined(call ?? '?', argument);
    case 'open':
    case 'tripwire':
      return path;
    case 'connect': {
      const host = address.includes(':') && port !== undefined ? `[${address}]` : address;
      return joined(protocol, port === undefined ? host : `${host}:${port}`, name);
    }
    case 'name':
      return joined(name ?? '?', type);
    case 'service':
      return name ?? '?';
  }
}

const joined = (...parts: readonly (string | undefined)[]): string =>
  parts.filter((part) => part !== undefined).join(' ');

export const processOf = ({ pid, uid, comm, argv }: ActingProcess): BehaviourProcess => ({
  pid,
  uid,
  comm: cutText(comm, MAX_WORD_CHARS),
  argv: cutArguments(argv, limits.behaviourTextChars),
});

/** The first arguments, as many characters as there may be. */
export function cutArguments(argv: readonly string[], maxChars: number): readonly string[] {
  const kept: string[] = [];
  let room = maxChars;
  for (const argument of argv) {
    if (room <= 0 || kept.length === limits.behaviourArgv) break;
    kept.push(cutText(argument, room));
    room -= argument.length;
  }
  return kept;
}

/** Copied where it is cut: a part of a string would keep the whole in memory. */
const cutText = (text: string, maxChars: number): string =>
  text.length <= maxChars ? text : Buffer.from(text.slice(0, maxChars)).toString();
