/** Bounds the rules of all policies of a node: each sandbox may have thousands, and the edge holds them all. */
import { PlatformError } from '@dsec/contract';

/** About 100 MB. */
const MAX_NODE_RULES = 524_288;

/** What one sandbox holds of it. */
export interface RuleHold {
  /** @throws PlatformError `no_capacity`; it then holds what it held */
  change(rules: number): void;
  release(): void;
}

export class RuleBudget {
  readonly #limit: number;
  #used = 0;

  constructor(limit = MAX_NODE_RULES) {
    this.#limit = limit;
  }

  get used(): number {
    return this.#used;
  }

  /** @throws PlatformError `no_capacity` with `details` resource, limit, current, requested */
  hold(rules: number): RuleHold {
    this.#check(rules);
    return this.adopt(rules);
  }

  /** For a policy that is in force already. */
  adopt(rules: number): RuleHold {
    let held = rules;
    this.#used += rules;
    return {
      change: (to) => {
        if (to > held) this.#check(to - held);
        this.#used += to - held;
        held = to;
      },
      release: () => {
        this.#used -= held;
        held = 0;
      },
    };
  }

  #check(requested: number): void {
    // Whoever asks for none is never refused, even by a node that adopted more than it would take.
    if (requested === 0 || this.#used + requested <= this.#limit) return;
    throw new PlatformError('no_capacity', 'the node has no room for so many network rules', {
      details: { resource: 'networkRules', limit: this.#limit, current: this.#used, requested },
    });
  }
}
