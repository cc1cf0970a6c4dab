/** Which names a policy allows, with which ports. */
import { mergeRanges, type PortRange } from './port-ranges.ts';

export interface NameEntry {
  /** A name, or `*.name` for all names below it; lower case, without a final dot. */
  readonly pattern: string;
  readonly ports: readonly PortRange[];
  /** What connections to these ports carry is not looked at. */
  readonly anyProtocol?: true;
}

export interface NameMatch {
  readonly ports: readonly PortRange[];
  /** The wildcards that the name was allowed by; empty when it stands in the policy itself, and then nothing is told by asking for it. */
  readonly wildcards: readonly string[];
}

/** Lookups cost one step for each label of the name, whatever the number of rules. */
export class NameTable {
  readonly #exact = new Map<string, readonly PortRange[]>();
  readonly #below = new Map<string, readonly PortRange[]>();
  /** Every name that has an allowed one below it. */
  readonly #ancestors = new Set<string>();

  constructor(entries: readonly NameEntry[]) {
    for (const { pattern, ports } of entries) {
      const isWildcard = pattern.startsWith('*.');
      const name = isWildcard ? pattern.slice(2) : pattern;
      const table = isWildcard ? this.#below : this.#exact;
      table.set(name, [...(table.get(name) ?? []), ...ports]);
      if (isWildcard) this.#ancestors.add(name);
      for (const ancestor of ancestorsOf(name)) this.#ancestors.add(ancestor);
    }
  }

  /** `name` is lower case, without a final dot. Undefined when no rule allows it. */
  match(name: string): NameMatch | undefined {
    const exact = this.#exact.get(name);
    const ports: PortRange[] = [...(exact ?? [])];
    const wildcards: string[] = [];
    for (const ancestor of ancestorsOf(name)) {
      const below = this.#below.get(ancestor);
      if (below === undefined) continue;
      ports.push(...below);
      wildcards.push(`*.${ancestor}`);
    }
    if (exact === undefined && wildcards.length === 0) return undefined;
    return { ports: mergeRanges(ports), wildcards: exact === undefined ? wildcards : [] };
  }

  /** Whether an allowed name lies below: it exists then, without addresses (RFC 8020). */
  isAncestor(name: string): boolean {
    return this.#ancestors.has(name);
  }
}

function* ancestorsOf(name: string): Generator<string> {
  for (let dot = name.indexOf('.'); dot >= 0; dot = name.indexOf('.', dot + 1)) yield name.slice(dot + 1);
}
