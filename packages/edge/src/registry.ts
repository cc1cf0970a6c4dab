/**
 * Every sandbox that this edge knows: live ones, and ended ones for as long as they are kept. Lists are in the order of creation, and a
 * cursor names a place in that order, so that pages neither miss nor repeat a sandbox that is there throughout, whatever comes and goes.
 */
import { networkInForce, PlatformError, type SandboxState } from '@dsec/contract';
import type { Sandbox } from './sandbox.ts';
import { publicState } from './sandbox-machine.ts';

/** Ended sandboxes are remembered up to this many … */
export const MAX_ENDED = 10_000;
/** … and this long. */
export const ENDED_KEPT_MS = 24 * 3600 * 1000;

/** A page must fit one answer of the wire protocol, which takes 4 MiB. */
const PAGE_BYTES = 3 * 1024 * 1024;
/** All of a sandbox but its metadata, workdir, toolkits and services, as JSON; a cause may have a long detail. */
const SANDBOX_BYTES = 2 * 1024;
/** What stands around a name: quotes, a comma, and `false` behind that of a service. */
const NAME_BYTES = 10;
/** A character may take this much in JSON. */
const CHARACTER_BYTES = 6;

export interface ListFilter {
  readonly project: string;
  readonly metadata?: Readonly<Record<string, string>> | undefined;
  readonly states?: readonly SandboxState[] | undefined;
}

export interface Page {
  readonly sandboxes: readonly Sandbox[];
  /** Undefined when this was the last page. */
  readonly cursor: string | undefined;
}

export class Registry {
  readonly #byId = new Map<string, Sandbox>();
  /** By creation time, then id. */
  readonly #ordered: Sandbox[] = [];
  /** Oldest end first. */
  #ended: Sandbox[] = [];

  get size(): number {
    return this.#byId.size;
  }

  get endedCount(): number {
    return this.#ended.length;
  }

  get(sandboxId: string): Sandbox | undefined {
    return this.#byId.get(sandboxId);
  }

  all(): Iterable<Sandbox> {
    return this.#byId.values();
  }

  /** Those that have not ended for good. */
  *unfinished(): Iterable<Sandbox> {
    for (const sandbox of this.#byId.values()) if (!sandbox.isOver) yield sandbox;
  }

  add(sandbox: Sandbox): void {
    this.#byId.set(sandbox.sandboxId, sandbox);
    const place = this.#placeAfter(sandbox.record.createdAtMs, sandbox.sandboxId);
    if (place === this.#ordered.length) this.#ordered.push(sandbox);
    else this.#ordered.splice(place, 0, sandbox);
  }

  /** It is over: from now on it is only remembered. */
  noteEnded(sandbox: Sandbox): void {
    this.#ended.push(sandbox);
  }

  /** Sorts what was read from the journal by its end. */
  sortEnded(): void {
    this.#ended.sort((a, b) => (a.record.endedAtMs ?? 0) - (b.record.endedAtMs ?? 0));
  }

  /** Forgets the ended sandboxes that are too old or too many, and returns them. */
  prune(nowMs: number): readonly Sandbox[] {
    let count = Math.max(0, this.#ended.length - MAX_ENDED);
    while (count < this.#ended.length && (this.#ended[count]?.record.endedAtMs ?? 0) <= nowMs - ENDED_KEPT_MS) count++;
    if (count === 0) return [];
    const forgotten = this.#ended.slice(0, count);
    this.#ended = this.#ended.slice(count);
    for (const sandbox of forgotten) {
      this.#byId.delete(sandbox.sandboxId);
      this.#ordered.splice(this.#placeAfter(sandbox.record.createdAtMs, sandbox.sandboxId) - 1, 1);
    }
    return forgotten;
  }

  /**
   * One page in the order of creation: as many as the limit says, or as fit one answer.
   * @throws PlatformError `invalid_argument` for a cursor that no list returned
   */
  list(filter: ListFilter, options: { readonly cursor?: string | undefined; readonly limit: number }): Page {
    const found: Sandbox[] = [];
    let bytes = 0;
    let place = options.cursor === undefined ? 0 : this.#placeAfter(...decodeCursor(options.cursor));
    for (; place < this.#ordered.length; place++) {
      const sandbox = this.#ordered[place];
      if (sandbox === undefined || !matches(sandbox, filter)) continue;
      bytes += jsonBytes(sandbox);
      const isFull = found.length === options.limit || (found.length > 0 && bytes > PAGE_BYTES);
      if (isFull) return { sandboxes: found, cursor: encodeCursor(found[found.length - 1]) };
      found.push(sandbox);
    }
    return { sandboxes: found, cursor: undefined };
  }

  /** All that match, in the order of creation. */
  select(filter: ListFilter): readonly Sandbox[] {
    return this.#ordered.filter((sandbox) => matches(sandbox, filter));
  }

  /** The first place whose sandbox comes after this one. */
  #placeAfter(createdAtMs: number, sandboxId: string): number {
    let low = 0;
    let high = this.#ordered.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      const record = this.#ordered[middle]?.record;
      const isAfter =
        record === undefined ||
        record.createdAtMs > createdAtMs ||
        (record.createdAtMs === createdAtMs && record.sandboxId > sandboxId);
      if (isAfter) high = middle;
      else low = middle + 1;
    }
    return low;
  }
}

/** At least what the sandbox takes in an answer. */
function jsonBytes({ record }: Sandbox): number {
  let characters = 0;
  for (const [name, value] of Object.entries(record.metadata)) characters += name.length + value.length + 1;
  // Their names are plain ASCII.
  const names = [...(record.toolkits ?? []), ...Object.keys(networkInForce(record.policy).services)];
  const plain = names.reduce((bytes, name) => bytes + name.length + NAME_BYTES, 0);
  return SANDBOX_BYTES + plain + (record.workdir.length + characters) * CHARACTER_BYTES;
}

function matches(sandbox: Sandbox, filter: ListFilter): boolean {
  const { record } = sandbox;
  if (record.project !== filter.project) return false;
  if (filter.states !== undefined && !filter.states.includes(publicState(sandbox.state))) return false;
  for (const [name, value] of Object.entries(filter.metadata ?? {})) {
    if (!Object.hasOwn(record.metadata, name) || record.metadata[name] !== value) return false;
  }
  return true;
}

const encodeCursor = (last: Sandbox | undefined): string =>
  Buffer.from(`${last?.record.createdAtMs ?? 0}:${last?.sandboxId ?? ''}`).toString('base64url');

function decodeCursor(cursor: string): [number, string] {
  const match = /^(\d{1,16}):([a-z0-9]{1,24})$/.exec(Buffer.from(cursor, 'base64url').toString('latin1'));
  if (match?.[1] === undefined || match[2] === undefined) {
    throw new PlatformError('invalid_argument', 'the cursor is none that a list returned', {
      details: { field: 'cursor', reason: 'is not the cursor of a page' },
    });
  }
  return [Number(match[1]), match[2]];
}
