/**
 * Patterns of names, by the rules of Go's `filepath.Match`, by which Dockerfiles and `.dockerignore` are read. They come with the context, so no
 * pattern may take longer than its length times that of the name.
 */

type Token =
  | { readonly kind: 'char'; readonly char: string }
  | { readonly kind: 'any' }
  | { readonly kind: 'set'; readonly isNegated: boolean; readonly ranges: readonly (readonly [string, string])[] }
  | { readonly kind: 'star' };

/** A pattern of one name: `*`, `?`, `[a-z]`, `[^a-z]`, and `\` before what is to stand for itself. */
export class NamePattern {
  readonly #tokens: readonly Token[];

  /** @param text without a slash; a bracket that is not closed stands for itself */
  constructor(text: string) {
    this.#tokens = tokensOf(Array.from(text));
  }

  matches(name: string): boolean {
    return matchesAll(this.#tokens, Array.from(name), { isStar, isOne });
  }
}

/** Whether a part of a path is more than a name. */
export const isPattern = (part: string): boolean => /[*?[]/.test(part.replace(/\\./gs, ''));

/** The name that a part without any pattern stands for. */
export const plainName = (part: string): string => part.replace(/\\(.)/gs, '$1');

type PathToken = NamePattern | 'any' | 'star';

/** A pattern of a path, in which `**` stands for any number of names; at the end for at least one. */
export class PathPattern {
  readonly #tokens: readonly PathToken[];

  /** @param names at least one */
  constructor(names: readonly string[]) {
    this.#tokens = names.flatMap((name, index): PathToken[] => {
      if (name !== '**') return [new NamePattern(name)];
      return index === names.length - 1 ? ['any', 'star'] : ['star'];
    });
  }

  matches(names: readonly string[]): boolean {
    return matchesAll<PathToken, string>(this.#tokens, names, {
      isStar: (token) => token === 'star',
      isOne: (token, name) => token === 'any' || (token !== 'star' && token.matches(name)),
    });
  }
}

interface Rules<T, V> {
  readonly isStar: (token: T) => boolean;
  readonly isOne: (token: T, value: V) => boolean;
}

/** Only the last star is ever gone back to: what the ones before it stand for need not be longer. */
const matchesAll = <T, V>(
  tokens: readonly T[],
  values: readonly V[],
  { isStar: star, isOne: one }: Rules<T, V>,
): boolean => {
  let token = 0;
  let value = 0;
  let lastStar = -1;
  let starEnd = 0;
  while (value < values.length) {
    const [wanted, given] = [tokens[token], values[value]];
    if (token < tokens.length && star(wanted as T)) {
      lastStar = token++;
      starEnd = value;
    } else if (token < tokens.length && one(wanted as T, given as V)) {
      token++;
      value++;
    } else if (lastStar === -1) {
      return false;
    } else {
      token = lastStar + 1;
      value = ++starEnd;
    }
  }
  return tokens.slice(token).every(star);
};

const isStar = ({ kind }: Token): boolean => kind === 'star';

const isOne = (token: Token, char: string): boolean => {
  switch (token.kind) {
    case 'char':
      return token.char === char;
    case 'any':
      return true;
    case 'set':
      return token.ranges.some(([first, last]) => first <= char && char <= last) !== token.isNegated;
    case 'star':
      return false;
  }
};

const tokensOf = (chars: readonly string[]): Token[] => {
  const tokens: Token[] = [];
  for (let at = 0; at < chars.length; at++) {
    const char = chars[at] ?? '';
    const set = char === '[' ? setAt(chars, at) : undefined;
    if (set !== undefined) {
      tokens.push(set.token);
      at = set.end;
    } else if (char === '*') tokens.push({ kind: 'star' });
    else if (char === '?') tokens.push({ kind: 'any' });
    else if (char === '\\' && at + 1 < chars.length) tokens.push({ kind: 'char', char: chars[++at] ?? '' });
    else tokens.push({ kind: 'char', char });
  }
  return tokens;
};

/** @returns undefined where the bracket at `start` begins no set */
const setAt = (
  chars: readonly string[],
  start: number,
): { readonly token: Token; readonly end: number } | undefined => {
  const isNegated = chars[start + 1] === '^';
  const ranges: (readonly [string, string])[] = [];
  let at = start + (isNegated ? 2 : 1);
  const take = (): string | undefined => {
    if (chars[at] === '\\') at++;
    return chars[at++];
  };
  while (at < chars.length) {
    if (chars[at] === ']')
      return ranges.length === 0 ? undefined : { token: { kind: 'set', isNegated, ranges }, end: at };
    const first = take();
    let last = first;
    if (chars[at] === '-' && chars[at + 1] !== ']') {
      at++;
      last = take();
    }
    if (first === undefined || last === undefined) return undefined;
    ranges.push([first, last]);
  }
  return undefined;
};
