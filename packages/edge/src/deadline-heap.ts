/** A binary heap of keys by deadline, in which each key stands once and knows its place, so that moving one costs O(log n). */

interface Entry<K> {
  readonly key: K;
  atMs: number;
}

export class DeadlineHeap<K> {
  readonly #entries: Entry<K>[] = [];
  readonly #places = new Map<K, number>();

  get size(): number {
    return this.#entries.length;
  }

  /** The earliest deadline. */
  get nextMs(): number | undefined {
    return this.#entries[0]?.atMs;
  }

  deadlineOf(key: K): number | undefined {
    const place = this.#places.get(key);
    return place === undefined ? undefined : this.#entries[place]?.atMs;
  }

  /** Puts the key at this deadline, wherever it stood. */
  set(key: K, atMs: number): void {
    const place = this.#places.get(key);
    const entry = place === undefined ? undefined : this.#entries[place];
    if (place === undefined || entry === undefined) {
      this.#entries.push({ key, atMs });
      this.#rise(this.#entries.length - 1);
      return;
    }
    const isEarlier = atMs < entry.atMs;
    entry.atMs = atMs;
    if (isEarlier) this.#rise(place);
    else this.#sink(place);
  }

  delete(key: K): void {
    const place = this.#places.get(key);
    if (place === undefined) return;
    this.#places.delete(key);
    const last = this.#entries.pop();
    if (last === undefined || place === this.#entries.length) return;
    this.#entries[place] = last;
    this.#places.set(last.key, place);
    this.#rise(place);
    this.#sink(this.#places.get(last.key) ?? place);
  }

  /** Takes out one key whose deadline is not after `nowMs`. */
  takeDue(nowMs: number): K | undefined {
    const first = this.#entries[0];
    if (first === undefined || first.atMs > nowMs) return undefined;
    this.delete(first.key);
    return first.key;
  }

  #rise(place: number): void {
    const entry = this.#entries[place];
    if (entry === undefined) return;
    let at = place;
    while (at > 0) {
      const above = (at - 1) >> 1;
      const parent = this.#entries[above];
      if (parent === undefined || parent.atMs <= entry.atMs) break;
      this.#put(at, parent);
      at = above;
    }
    this.#put(at, entry);
  }

  #sink(place: number): void {
    const entry = this.#entries[place];
    if (entry === undefined) return;
    let at = place;
    for (;;) {
      const left = this.#entries[2 * at + 1];
      const right = this.#entries[2 * at + 2];
      if (left === undefined) break;
      const isRight = right !== undefined && right.atMs < left.atMs;
      const child = isRight ? right : left;
      if (child.atMs >= entry.atMs) break;
      this.#put(at, child);
      at = 2 * at + (isRight ? 2 : 1);
    }
    this.#put(at, entry);
  }

  #put(place: number, entry: Entry<K>): void {
    this.#entries[place] = entry;
    this.#places.set(entry.key, place);
  }
}
