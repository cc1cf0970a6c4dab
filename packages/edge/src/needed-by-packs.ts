/**
 * Which layers packs need: those that the sandbox stood on while it is packed, for they may become those of the new name; and all of the answer until
 * whoever asked has given it a name. A pack may find its layer made already: while one runs, any layer that packs have made may be it.
 */
import type { Clock } from '@dsec/kit';

/** The apiserver gives the name at once; this is far longer. */
const NAMING_MS = 600_000;
/** Answers of packs that are kept in mind; older ones have their names by then. */
const MAX_ANSWERS = 256;
/** Layers of which is known whether a pack has made them; more than are removed at once. */
const MAX_KNOWN = 4096;

interface Answer {
  readonly layers: readonly string[];
  readonly endsMs: number;
}

export class NeededByPacks {
  readonly #clock: Clock;
  readonly #running = new Set<readonly string[]>();
  #answers: readonly Answer[] = [];
  readonly #known = new Map<string, boolean>();

  constructor(clock: Clock) {
    this.#clock = clock;
  }

  /** A pack of a sandbox on these layers runs until this is disposed of. */
  running(layers: readonly string[]): Disposable {
    const own = [...layers];
    this.#running.add(own);
    return { [Symbol.dispose]: () => void this.#running.delete(own) };
  }

  /** These were told to whoever will name them. */
  answered(layers: readonly string[]): void {
    const nowMs = this.#clock.monotonicMs();
    const open = this.#answers.filter(({ endsMs }) => endsMs > nowMs);
    this.#answers = [...open, { layers, endsMs: nowMs + NAMING_MS }].slice(-MAX_ANSWERS);
  }

  /**
   * Whether a pack that runs may have found this layer made.
   * @param isOfPack whether a pack has made it; undefined: it is not there to be looked at, and what was said before counts
   */
  mayFind(layer: string, isOfPack: boolean | undefined): boolean {
    if (isOfPack !== undefined) {
      if (this.#known.size >= MAX_KNOWN) this.#known.clear();
      this.#known.set(layer, isOfPack);
    }
    return this.#running.size > 0 && this.#known.get(layer) !== false;
  }

  has(layer: string): boolean {
    const nowMs = this.#clock.monotonicMs();
    return (
      [...this.#running].some((layers) => layers.includes(layer)) ||
      this.#answers.some(({ layers, endsMs }) => endsMs > nowMs && layers.includes(layer))
    );
  }
}
