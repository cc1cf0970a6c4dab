/**
 * Words of a Dockerfile: quotes, escapes and variables, by the rules of Dockerfiles ("Environment replacement" in the Dockerfile reference),
 * which are a small part of those of a shell.
 */
export type EscapeCharacter = '\\' | '`';

export interface Expansion {
  readonly escape: EscapeCharacter;
  /** undefined: there is no such variable */
  readonly variable: (name: string) => string | undefined;
}

/** What is wrong with a word. */
export class WordFault extends Error {
  override readonly name = 'WordFault';
}

/** A value made of values made of values ... comes to an end here. */
const MAX_WORD_CHARS = 1024 * 1024;
/** A document without variables is as long as a Dockerfile may be. */
const MAX_DOCUMENT_CHARS = 16 * 1024 * 1024;
const MAX_DEPTH = 64;

/** Splits where white space is outside of quotes; quotes and escapes stay. */
export const rawWords = (text: string, escape: EscapeCharacter): string[] => {
  const words: string[] = [];
  let word = '';
  let quote = '';
  for (let at = 0; at < text.length; at++) {
    const char = text.charAt(at);
    if (quote === '' && /\s/.test(char)) {
      if (word !== '') words.push(word);
      word = '';
      continue;
    }
    word += char;
    if (char === escape && quote !== "'" && at + 1 < text.length) {
      at++;
      word += text.charAt(at);
    } else if (quote === '' && (char === '"' || char === "'")) quote = char;
    else if (char === quote) quote = '';
  }
  if (word !== '') words.push(word);
  return words;
};

/**
 * Puts values in place of variables, and takes quotes and escapes away.
 *
 * @throws WordFault for an unclosed quote or brace, a form of `${...}` that there is not, `${name:?message}` without a value
 */
export const expandWord = (word: string, expansion: Expansion): string =>
  bounded(new WordReader(word, expansion).until(''));

/** As {@link expandWord}, of text in which quotes mean nothing, as in a document. */
export const expandText = (text: string, expansion: Expansion): string => new WordReader(text, expansion).text();

const bounded = (text: string, limit = MAX_WORD_CHARS): string => {
  if (text.length > limit) throw new WordFault(`a word or document is longer than ${limit} characters`);
  return text;
};

const NAME = /[A-Za-z_][A-Za-z0-9_]*|[0-9@*#?!$-]/y;

class WordReader {
  readonly #text: string;
  readonly #expansion: Expansion;
  #at = 0;
  #depth = 0;

  constructor(text: string, expansion: Expansion) {
    this.#text = text;
    this.#expansion = expansion;
  }

  /** Reads up to and with `stop`, or to the end where that is empty. */
  until(stop: string): string {
    let result = '';
    while (this.#at < this.#text.length) {
      const char = this.#take();
      if (char === stop) return result;
      bounded(result);
      if (char === "'") result += this.#singleQuoted();
      else if (char === '"') result += this.#doubleQuoted();
      else if (char === '$') result += this.#dollar();
      else if (char === this.#expansion.escape) result += this.#take();
      else result += char;
    }
    if (stop !== '') throw new WordFault(`there is no ${stop} for a \${`);
    return result;
  }

  /** Reads all of it as what stands in double quotes, but that quotes are quotes. */
  text(): string {
    const { escape } = this.#expansion;
    let result = '';
    while (this.#at < this.#text.length) {
      const char = this.#take();
      if (char === '$') result = bounded(result + this.#dollar(), MAX_DOCUMENT_CHARS);
      else if (char === escape && ['$', escape].includes(this.#text.charAt(this.#at))) result += this.#take();
      else result += char;
    }
    return result;
  }

  #take(): string {
    return this.#text.charAt(this.#at++);
  }

  #singleQuoted(): string {
    const end = this.#text.indexOf("'", this.#at);
    if (end === -1) throw new WordFault("a ' is not closed");
    const result = this.#text.slice(this.#at, end);
    this.#at = end + 1;
    return result;
  }

  #doubleQuoted(): string {
    const { escape } = this.#expansion;
    let result = '';
    while (this.#at < this.#text.length) {
      const char = this.#take();
      if (char === '"') return result;
      if (char === '$') result = bounded(result + this.#dollar());
      else if (char === escape && ['"', '$', escape].includes(this.#text.charAt(this.#at))) result += this.#take();
      else result += char;
    }
    throw new WordFault('a " is not closed');
  }

  #dollar(): string {
    const isBraced = this.#text.charAt(this.#at) === '{';
    if (isBraced) this.#at++;
    NAME.lastIndex = this.#at;
    const [name] = NAME.exec(this.#text) ?? [];
    if (name === undefined) {
      if (!isBraced) return '$';
      throw new WordFault('a ${ is followed by no name');
    }
    this.#at += name.length;
    const value = this.#expansion.variable(name);
    return isBraced ? this.#modified(name, value) : (value ?? '');
  }

  /** What follows the name in `${name`. */
  #modified(name: string, value: string | undefined): string {
    const [modifier = ''] = /^(?:\}|:?[-+?])/.exec(this.#text.slice(this.#at, this.#at + 2)) ?? [];
    this.#at += modifier.length;
    if (modifier === '}') return value ?? '';
    if (modifier === '') throw new WordFault(`\${${name} is followed by what is no modifier`);
    this.#depth++;
    if (this.#depth > MAX_DEPTH) throw new WordFault(`\${ is nested deeper than ${MAX_DEPTH}`);
    const word = this.until('}');
    this.#depth--;
    const isUnset = value === undefined || (modifier.startsWith(':') && value === '');
    switch (modifier.replace(':', '')) {
      case '-':
        return isUnset ? word : (value ?? '');
      case '+':
        return isUnset ? '' : word;
      default:
        if (isUnset) throw new WordFault(`${name}: ${word === '' ? 'there is no value' : word}`);
        return value ?? '';
    }
  }
}
