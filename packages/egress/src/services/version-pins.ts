/** Which versions of packages exist for a sandbox. Agents look for newer releases to find the answer of their task in them. */
import type { VersionRules } from './service.ts';

export interface PublishedVersion {
  /** In the form in which the kind of service compares names. */
  readonly name: string;
  readonly version: string;
  /** Milliseconds since the epoch; undefined when it is not known. */
  readonly publishedMs: number | undefined;
}

export class VersionPins {
  readonly #beforeMs: number | undefined;
  readonly #names: ReadonlySet<string> | undefined;
  readonly #versions: ReadonlySet<string>;

  /** `normalize` brings a name into the form in which it is compared. */
  constructor(rules: VersionRules, normalize: (name: string) => string) {
    this.#beforeMs = rules.before === undefined ? undefined : Date.parse(rules.before);
    const names = new Set<string>();
    const versions = new Set<string>();
    for (const entry of rules.allow ?? []) {
      // The name of an npm package may begin with it.
      const at = entry.lastIndexOf('@');
      if (at <= 0) names.add(normalize(entry));
      else versions.add(`${normalize(entry.slice(0, at))}@${entry.slice(at + 1)}`);
    }
    this.#names = rules.allow === undefined ? undefined : names;
    this.#versions = versions;
  }

  get needsTimes(): boolean {
    return this.#beforeMs !== undefined;
  }

  /** Whether the list, if there is one, has this version. */
  isListed(name: string, version: string): boolean {
    return this.#names === undefined || this.#names.has(name) || this.#versions.has(`${name}@${version}`);
  }

  /** A version whose time is not known is not there when a date is set. */
  allows({ name, version, publishedMs }: PublishedVersion): boolean {
    if (!this.isListed(name, version)) return false;
    if (this.#beforeMs === undefined) return true;
    return publishedMs !== undefined && publishedMs <= this.#beforeMs;
  }
}

/** Milliseconds since the epoch; undefined for what is no moment. */
export function momentOf(text: unknown): number | undefined {
  if (typeof text !== 'string') return undefined;
  const ms = Date.parse(text);
  return Number.isNaN(ms) ? undefined : ms;
}
