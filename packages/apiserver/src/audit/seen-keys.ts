/**
 * Whether a text was seen before, of the newest some thousand: a table of fixed size with a place for each text and a mark of it there, so that adding one costs no
 * memory and no collection. A newer text may take the place of an older one, which then is new again; that one is taken for another happens once in 2^32.
 */
export class SeenKeys {
  readonly #marks: Uint32Array;
  readonly #mask: number;
  readonly #seeds: readonly [number, number];

  /** @param bits of the number of places @param seeds nobody can foretell them, and so choose texts that are taken for others */
  constructor(bits: number, seeds: readonly [number, number]) {
    this.#marks = new Uint32Array(2 ** bits);
    this.#mask = 2 ** bits - 1;
    this.#seeds = seeds;
  }

  /** Adds the parts together; true when they were there. */
  add(...parts: readonly [string, string, string]): boolean {
    let [place, mark] = this.#seeds;
    for (const part of parts) {
      for (let at = 0; at < part.length; at++) {
        const char = part.charCodeAt(at);
        // FNV-1a, and the same with the multiplier of another.
        place = Math.imul(place ^ char, 0x0100_0193);
        mark = Math.imul(mark ^ char, 0x85eb_ca6b);
      }
      place = Math.imul(place ^ 0x1_0000, 0x0100_0193);
      mark = Math.imul(mark ^ 0x1_0000, 0x85eb_ca6b);
    }
    const index = (place ^ (place >>> 15)) & this.#mask;
    // 0 is an empty place.
    const wanted = (mark ^ (mark >>> 13)) >>> 0 || 1;
    const isThere = this.#marks[index] === wanted;
    this.#marks[index] = wanted;
    return isThere;
  }
}
