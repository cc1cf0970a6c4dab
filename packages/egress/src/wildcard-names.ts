/**
 * Counts the names below wildcards. Only allowed names leave the node, but of a wildcard the sandbox chooses the labels, and whoever serves the zone
 * reads them: so many different ones there may be, and no more.
 */
import { MAX_NAMES_PER_WILDCARD, MAX_WILDCARD_NAMES } from './dns/bounds.ts';

export class WildcardNames {
  readonly #seen = new Map<string, Set<string>>();
  #total = 0;

  /** False when the name would be one too many. `wildcard` is the closest one. */
  admit(wildcard: string, name: string): boolean {
    const names = this.#seen.get(wildcard) ?? new Set<string>();
    if (names.has(name)) return true;
    if (names.size >= MAX_NAMES_PER_WILDCARD || this.#total >= MAX_WILDCARD_NAMES) return false;
    this.#seen.set(wildcard, names.add(name));
    this.#total += 1;
    return true;
  }
}
