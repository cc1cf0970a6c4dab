/**
 * Which layers a second store needs so that a share of all tasks can run from it alone (paper 1.3: 30 TB for 70 % of container tasks). A task is
 * covered when every layer that it stands on is in the set; layers that tasks share count once.
 *
 * The least set is a hard problem (it holds that of the densest subgraph), so it is approached: by most tasks for each byte that has to be
 * added, then without what turns out not to be needed. The order by count alone is tried as well, and the smaller set of the two is taken.
 */
import { PlatformError } from '@dsec/contract';

/** Tasks that stand on the same layers. */
export interface CountedTasks {
  /** Names them; decides where all else is equal. */
  readonly key: string;
  readonly tasks: number;
  readonly layers: readonly string[];
}

export interface Covering {
  /** Sorted. */
  readonly layers: readonly string[];
  readonly bytes: number;
  readonly coveredTasks: number;
  readonly totalTasks: number;
  /** False: not even all layers whose size is known cover the share. */
  readonly isReached: boolean;
}

/**
 * The same input in any order gives the same set.
 * @param bytesOf bytes of each layer; tasks on a layer that is not among them count, and cannot be covered
 * @param share 0 to 1, of the tasks
 * @throws PlatformError `invalid_argument` for a share outside of that
 */
export function coveringLayers(
  counted: readonly CountedTasks[],
  bytesOf: ReadonlyMap<string, number>,
  share: number,
): Covering {
  if (!(share >= 0 && share <= 1)) {
    throw new PlatformError('invalid_argument', 'a share is a number from 0 to 1', { details: { field: 'share' } });
  }
  const groups = groupsOf(counted, bytesOf);
  const totalTasks = counted.reduce((sum, { tasks }) => sum + tasks, 0);
  const target = share * totalTasks;
  const covers = [byRatio(groups, target), byCount(groups, target)];
  for (const cover of covers) cover.trim(target);
  const [dense, plain] = covers as [Cover, Cover];
  const { layers, bytes, coveredTasks } = plain.bytes < dense.bytes ? plain : dense;
  return { layers, bytes, coveredTasks, totalTasks, isReached: coveredTasks >= target };
}

/** By key; those that cannot be covered are left out. */
function groupsOf(counted: readonly CountedTasks[], bytesOf: ReadonlyMap<string, number>): Groups {
  const sorted = counted
    .filter(({ tasks, layers }) => tasks > 0 && layers.every((layer) => bytesOf.has(layer)))
    .map(({ key, tasks, layers }) => ({ key, tasks, layers: [...new Set(layers)].toSorted() }))
    .toSorted((left, right) => compare(left.key, right.key) || compare(left.layers.join(), right.layers.join()));
  const standing = new Map<string, number[]>();
  for (const [index, { layers }] of sorted.entries()) {
    for (const layer of layers) {
      const indexes = standing.get(layer);
      if (indexes === undefined) standing.set(layer, [index]);
      else indexes.push(index);
    }
  }
  return { all: sorted, standing, bytesOf };
}

interface Groups {
  readonly all: readonly CountedTasks[];
  /** For each layer, which stand on it. */
  readonly standing: ReadonlyMap<string, readonly number[]>;
  readonly bytesOf: ReadonlyMap<string, number>;
}

/** A growing set of layers, and what it covers. */
class Cover {
  bytes = 0;
  coveredTasks = 0;
  readonly #groups: Groups;
  readonly #layers = new Set<string>();
  /** In the order in which they were taken. */
  readonly #taken: number[] = [];
  /** Layers that each group lacks. */
  readonly #lacking: number[];
  readonly #lackingBytes: number[];

  constructor(groups: Groups) {
    this.#groups = groups;
    this.#lacking = groups.all.map(({ layers }) => layers.length);
    this.#lackingBytes = groups.all.map(({ layers }) => layers.reduce((sum, layer) => sum + this.#bytes(layer), 0));
    for (const { tasks, layers } of groups.all) if (layers.length === 0) this.coveredTasks += tasks;
  }

  get layers(): readonly string[] {
    return [...this.#layers].toSorted(compare);
  }

  isCovered(index: number): boolean {
    return this.#lacking[index] === 0;
  }

  lackingBytes(index: number): number {
    return this.#lackingBytes[index] ?? 0;
  }

  /** Adds what a group lacks; returns the groups that lack less now. */
  take(index: number): ReadonlySet<number> {
    const changed = new Set<number>();
    this.#taken.push(index);
    for (const layer of this.#groups.all[index]?.layers ?? []) {
      if (this.#layers.has(layer)) continue;
      this.#layers.add(layer);
      this.bytes += this.#bytes(layer);
      for (const other of this.#groups.standing.get(layer) ?? []) {
        this.#lackingBytes[other] = this.lackingBytes(other) - this.#bytes(layer);
        const lacking = (this.#lacking[other] ?? 0) - 1;
        this.#lacking[other] = lacking;
        if (lacking === 0) this.coveredTasks += this.#groups.all[other]?.tasks ?? 0;
        changed.add(other);
      }
    }
    return changed;
  }

  /** Gives up groups, the smallest first, as long as the target is met without the layers that only they have brought. */
  trim(target: number): void {
    const uses = new Map<string, number>();
    const groups = this.#taken.map((index) => this.#groups.all[index]).filter((group) => group !== undefined);
    for (const { layers } of groups) for (const layer of layers) uses.set(layer, (uses.get(layer) ?? 0) + 1);
    const smallestFirst = groups.toSorted((a, b) => a.tasks - b.tasks || compare(a.key, b.key));
    for (const { layers, tasks } of smallestFirst) {
      if (this.coveredTasks - tasks < target) continue;
      const own = layers.filter((layer) => uses.get(layer) === 1);
      const lost = new Set(own.flatMap((layer) => this.#groups.standing.get(layer) ?? []));
      let lostTasks = 0;
      for (const index of lost) if (this.isCovered(index)) lostTasks += this.#groups.all[index]?.tasks ?? 0;
      if (own.length === 0 || this.coveredTasks - lostTasks < target) continue;
      this.coveredTasks -= lostTasks;
      for (const layer of layers) uses.set(layer, (uses.get(layer) ?? 0) - 1);
      for (const layer of own) this.#drop(layer);
    }
  }

  #drop(layer: string): void {
    this.#layers.delete(layer);
    this.bytes -= this.#bytes(layer);
    for (const index of this.#groups.standing.get(layer) ?? []) {
      this.#lacking[index] = (this.#lacking[index] ?? 0) + 1;
      this.#lackingBytes[index] = this.lackingBytes(index) + this.#bytes(layer);
    }
  }

  #bytes(layer: string): number {
    return this.#groups.bytesOf.get(layer) ?? 0;
  }
}

/** Most tasks for each added byte first. What a group lacks only shrinks, so that it is put into the queue anew each time it does. */
function byRatio(groups: Groups, target: number): Cover {
  const cover = new Cover(groups);
  const queue = new Queue();
  const put = (index: number): void => {
    const bytes = cover.lackingBytes(index);
    const tasks = groups.all[index]?.tasks ?? 0;
    queue.put({ index, bytes, ratio: bytes === 0 ? Number.POSITIVE_INFINITY : tasks / bytes });
  };
  for (const index of groups.all.keys()) put(index);
  while (cover.coveredTasks < target) {
    const next = queue.take();
    if (next === undefined) break;
    if (cover.isCovered(next.index) || next.bytes !== cover.lackingBytes(next.index)) continue;
    for (const index of cover.take(next.index)) if (!cover.isCovered(index)) put(index);
  }
  return cover;
}

/** Most tasks first. */
function byCount(groups: Groups, target: number): Cover {
  const cover = new Cover(groups);
  const order = [...groups.all.entries()].toSorted(([a, left], [b, right]) => right.tasks - left.tasks || a - b);
  for (const [index] of order) {
    if (cover.coveredTasks >= target) break;
    if (!cover.isCovered(index)) cover.take(index);
  }
  return cover;
}

interface Queued {
  readonly index: number;
  /** What it lacked when it was put here. */
  readonly bytes: number;
  readonly ratio: number;
}

const isBefore = (left: Queued, right: Queued): boolean =>
  left.ratio > right.ratio || (left.ratio === right.ratio && left.index < right.index);

/** A binary heap, best first. */
class Queue {
  readonly #heap: Queued[] = [];

  put(item: Queued): void {
    const heap = this.#heap;
    let at = heap.length;
    while (at > 0) {
      const above = heap[(at - 1) >> 1];
      if (above === undefined || !isBefore(item, above)) break;
      heap[at] = above;
      at = (at - 1) >> 1;
    }
    heap[at] = item;
  }

  take(): Queued | undefined {
    const heap = this.#heap;
    const [best] = heap;
    const last = heap.pop();
    if (last === undefined || heap.length === 0) return best;
    let at = 0;
    for (;;) {
      const left = heap[2 * at + 1];
      const right = heap[2 * at + 2];
      const isRight = left !== undefined && right !== undefined && isBefore(right, left);
      const below = isRight ? right : left;
      if (below === undefined || !isBefore(below, last)) break;
      heap[at] = below;
      at = 2 * at + (isRight ? 2 : 1);
    }
    heap[at] = last;
    return best;
  }
}

const compare = (left: string, right: string): number => (left < right ? -1 : left > right ? 1 : 0);
