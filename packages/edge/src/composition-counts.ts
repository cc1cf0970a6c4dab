/**
 * How many sandboxes were begun on which names together: base, workspace and toolkits. Counted in the transaction that makes a sandbox's first
 * record durable, so the counts lose what the journal itself loses, and nothing more: no sandbox whose create was answered. A create
 * that fails after its admission counts too; it was wanted.
 */
import type { DatabaseSync, StatementSync } from 'node:sqlite';

/** Most compositions that are counted; beyond them those are forgotten that were used longest ago. */
const MAX_COMPOSITIONS = 65_536;
/** That many at once, so that a full table is not searched for each new one. */
const FORGOTTEN_SHARE = 1 / 64;
/** A page must fit one answer of the wire protocol, which takes 4 MiB. */
const PAGE_CHARS = 1024 * 1024;

/** Names that sandboxes run from. */
export interface CompositionNames {
  readonly environment: string;
  readonly workspace: string | null;
  readonly toolkits: readonly string[];
}

export interface CountedComposition extends CompositionNames {
  readonly sandboxes: number;
  readonly lastCreatedAtMs: number;
}

export interface CompositionPageQuery {
  /** What the page before returned; 0: from the beginning. */
  readonly after: number;
  readonly limit: number;
}

export interface CountedPage {
  readonly compositions: readonly CountedComposition[];
  /** Undefined: there are no more. */
  readonly cursor: number | undefined;
}

/** The names as text; equal names are equal text. */
export const compositionKey = ({ environment, workspace, toolkits }: CompositionNames): string =>
  JSON.stringify([environment, workspace, ...toolkits]);

export class CompositionCounts {
  readonly #add: StatementSync;
  readonly #raise: StatementSync;
  readonly #forget: StatementSync;
  readonly #page: StatementSync;
  readonly #count: StatementSync;
  readonly #max: number;
  /** Undefined: to be counted. */
  #size: number | undefined;

  constructor(database: DatabaseSync, max = MAX_COMPOSITIONS) {
    database.exec(`
      CREATE TABLE IF NOT EXISTS composition (
        id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE, sandboxes INTEGER NOT NULL, lastMs INTEGER NOT NULL
      );
    `);
    this.#add = database.prepare(
      'INSERT INTO composition (names, sandboxes, lastMs) VALUES (?, 0, 0) ON CONFLICT (names) DO NOTHING',
    );
    this.#raise = database.prepare(
      'UPDATE composition SET sandboxes = sandboxes + ?, lastMs = max(lastMs, ?) WHERE names = ?',
    );
    this.#forget = database.prepare(
      'DELETE FROM composition WHERE id IN (SELECT id FROM composition ORDER BY lastMs, id LIMIT ?)',
    );
    this.#page = database.prepare(
      'SELECT id, names, sandboxes, lastMs FROM composition WHERE id > ? ORDER BY id LIMIT ?',
    );
    this.#max = max;
    this.#count = database.prepare('SELECT count(*) AS size FROM composition');
  }

  /** Within the transaction of the caller, who says when it came to nothing. */
  raise(names: string, sandboxes: number, lastMs: number): void {
    let size = this.#size ?? Number(this.#count.get()?.size);
    size += Number(this.#add.run(names).changes);
    this.#raise.run(sandboxes, lastMs, names);
    if (size > this.#max) {
      const forgotten = Math.max(size - this.#max, Math.floor(this.#max * FORGOTTEN_SHARE));
      size -= Number(this.#forget.run(forgotten).changes);
    }
    this.#size = size;
  }

  rolledBack(): void {
    this.#size = undefined;
  }

  /** In the order in which they were first counted. */
  page({ after, limit }: CompositionPageQuery): CountedPage {
    const compositions: CountedComposition[] = [];
    let [chars, last] = [0, after];
    for (const row of this.#page.iterate(after, limit + 1)) {
      const names = String(row.names);
      chars += names.length;
      const isFull = compositions.length === limit || (compositions.length > 0 && chars > PAGE_CHARS);
      if (isFull) return { compositions, cursor: last };
      const [environment, workspace, ...toolkits] = JSON.parse(names) as [string, string | null, ...string[]];
      const counted = { sandboxes: Number(row.sandboxes), lastCreatedAtMs: Number(row.lastMs) };
      compositions.push({ environment, workspace, toolkits, ...counted });
      last = Number(row.id);
    }
    return { compositions, cursor: undefined };
  }
}
