/** Keeps policies as they were compiled: most sandboxes of a node have the same ones, and a sandbox goes to and fro between its phases. */
import { completeNetworkPolicy, type NetworkPolicyRequest } from '@dsec/contract';
import { compilePolicy, type CompiledPolicy } from './compile.ts';
import { NameTable } from './name-table.ts';

/** Of the texts of all that are kept. What is compiled of a text takes some four times as much memory: 32 MB in all. */
const MAX_CHARS = 8 * 1024 * 1024;

export interface Compiled {
  readonly compiled: CompiledPolicy;
  readonly table: NameTable;
}

export class CompiledPolicies {
  readonly #services: ReadonlySet<string>;
  readonly #maxChars: number;
  /** By the text of what was asked; what was used last stands last. */
  readonly #kept = new Map<string, Compiled>();
  #chars = 0;

  constructor(services: ReadonlySet<string>, maxChars = MAX_CHARS) {
    this.#services = services;
    this.#maxChars = maxChars;
  }

  get chars(): number {
    return this.#chars;
  }

  /** @throws PlatformError as `completeNetworkPolicy` and `compilePolicy`; what is refused is not kept */
  of(asked: NetworkPolicyRequest): Compiled {
    const text = JSON.stringify(asked);
    const kept = this.#kept.get(text) ?? this.#compile(asked);
    if (!this.#kept.delete(text)) this.#chars += text.length;
    this.#kept.set(text, kept);
    for (const oldest of this.#kept.keys()) {
      if (this.#chars <= this.#maxChars) break;
      this.#kept.delete(oldest);
      this.#chars -= oldest.length;
    }
    return kept;
  }

  #compile(asked: NetworkPolicyRequest): Compiled {
    const compiled = compilePolicy(completeNetworkPolicy(asked, { field: 'network' }), { services: this.#services });
    return { compiled, table: new NameTable(compiled.names) };
  }
}
