/** One way to prove oneself that a server offers (RFC 9110, 11.6.1). */
export interface Challenge {
  /** In lower case. */
  readonly scheme: string;
  /** Names in lower case. */
  readonly parameters: ReadonlyMap<string, string>;
}

const MAX_HEADER_CHARACTERS = 16 * 1024;
const TOKEN = /[!#$%&'*+.^_`|~0-9A-Za-z-]+/y;
const TOKEN68 = /[0-9A-Za-z._~+/-]+=*(?=[ \t]*(?:,|$))/y;
const QUOTED = /"((?:[^"\\]|\\.)*)"/y;
const SPACES = /[ \t]+/y;
const SEPARATORS = /[ \t,]*/y;
const EQUALS = /[ \t]*=[ \t]*/y;

/**
 * Reads the value of WWW-Authenticate. What is malformed ends it: the challenges before are returned.
 *
 * The header is one list both of challenges and of their parameters: a word with `=` behind it is a parameter, one without begins the next
 * challenge.
 */
export const parseChallenges = (header: string): readonly Challenge[] => {
  const challenges: { readonly scheme: string; readonly parameters: Map<string, string> }[] = [];
  if (header.length > MAX_HEADER_CHARACTERS) return challenges;
  let at = 0;
  const take = (pattern: RegExp): RegExpExecArray | undefined => {
    pattern.lastIndex = at;
    const match = pattern.exec(header);
    if (match === null) return undefined;
    at = pattern.lastIndex;
    return match;
  };
  for (;;) {
    take(SEPARATORS);
    const word = take(TOKEN)?.[0];
    if (word === undefined) return challenges;
    const afterWord = at;
    const last = challenges.at(-1);
    if (last !== undefined && take(EQUALS) !== undefined) {
      const quoted = take(QUOTED)?.[1];
      const value = quoted === undefined ? take(TOKEN)?.[0] : quoted.replaceAll(/\\(.)/g, '$1');
      if (value === undefined) return challenges;
      // Of two that contradict each other neither can be trusted more; the first is what a reader before this one took.
      if (!last.parameters.has(word.toLowerCase())) last.parameters.set(word.toLowerCase(), value);
      continue;
    }
    at = afterWord;
    challenges.push({ scheme: word.toLowerCase(), parameters: new Map() });
    // `Negotiate dG9rZW4=`: a token of its own stands in the place of parameters.
    if (take(SPACES) !== undefined) take(TOKEN68);
  }
};
