/** What of a context a build does not see (`.dockerignore`): the last line that fits a path, or a directory above it, decides. */
import { PathPattern } from './glob.ts';

interface Rule {
  readonly pattern: PathPattern;
  readonly isException: boolean;
}

const MAX_RULES = 10_000;
const MAX_RULE_CHARS = 4096;

export class Dockerignore {
  readonly #rules: readonly Rule[];

  private constructor(rules: readonly Rule[]) {
    this.#rules = rules;
  }

  /** What cannot be a pattern fits nothing. */
  static parse(text: string): Dockerignore {
    const rules: Rule[] = [];
    for (const line of text.replace(/^\uFEFF/, '').split(/\r?\n/)) {
      if (line.startsWith('#') || rules.length >= MAX_RULES || line.length > MAX_RULE_CHARS) continue;
      const trimmed = line.trim();
      const isException = trimmed.startsWith('!');
      const names = (isException ? trimmed.slice(1).trim() : trimmed)
        .split('/')
        .filter((name) => name !== '' && name !== '.');
      if (names.length > 0) rules.push({ pattern: new PathPattern(names), isException });
    }
    return new Dockerignore(rules);
  }

  static readonly none = new Dockerignore([]);

  /** Whether something below a path that is left out may be in all the same. */
  get hasExceptions(): boolean {
    return this.#rules.some(({ isException }) => isException);
  }

  /** @param names of the path below the context; the context itself is never left out */
  isIgnored(names: readonly string[]): boolean {
    const paths = names.map((_, index) => names.slice(0, index + 1));
    let isIgnored = false;
    for (const { pattern, isException } of this.#rules) {
      if (isException === isIgnored && paths.some((path) => pattern.matches(path))) isIgnored = !isException;
    }
    return isIgnored;
  }
}
