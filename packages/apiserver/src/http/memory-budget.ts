/** Memory that all answers of one kind share, so that a few large ones cannot take all that there is. */
export class MemoryBudget {
  #free: number;

  constructor(bytes: number) {
    this.#free = bytes;
  }

  get free(): number {
    return this.#free;
  }

  /** The share of one answer, which is given back as a whole. */
  share(): MemoryShare {
    let taken = 0;
    let isOver = false;
    return {
      take: (bytes) => {
        if (isOver || bytes > this.#free) return false;
        this.#free -= bytes;
        taken += bytes;
        return true;
      },
      giveBack: () => {
        isOver = true;
        this.#free += taken;
        taken = 0;
      },
    };
  }
}

export interface MemoryShare {
  /** Whether there is so much more. */
  take(bytes: number): boolean;
  /** Idempotent. */
  giveBack(): void;
}
