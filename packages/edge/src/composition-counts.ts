/**
 * How many sandboxes were begun on which names together: base, workspace and toolkits. Counted in the transaction that makes a sandbox's first
 * record durable, so the counts lose what the journal itself loses, and nothing more: no sandbox whose create was answered. A create
 * that fails after its admission counts too; it was wanted.
 *
 * Beside the count of all there is one that ages: a sandbox weighs one when it is begun and half as much after each half-life. It is kept as it was
 * at the newest create, and reckoned when it is raised or asked for, so that nothing is done while nothing happens. Half-lives add up to a
 * bound: what is used no more falls below any that is, and a constant use of n a half-life tends to n / ln 2.
 */
import type { DatabaseSync, StatementSync } from 'node:sqlite';

/** Most compositions that are counted; beyond them those are forgotten that were used longest ago. */
const MAX_COMPOSITIONS = 65_536;
/** That many at once, so that a full table is not searched for each new one. */
const FORGOTTEN_SHARE = 1 / 64;
/** A page must fit one answer of the wire protocol, which takes 4 MiB. */
const PAGE_CHARS = 1024 * 1024;
export const DEFAULT_HALF_LIFE_MS = 30 * 24 * 3_600_000;
/** Recent counts are told in thousandths: what has aged for seconds shows as whole. */
const THOUSANDTHS = 1000;

/** Names that sandboxes run from. */
export interface CompositionNames {
  readonly environment: string;
  readonly workspace: string | null;
  readonly toolkits: readonly string[];
}

export interface CountedComposition extends CompositionNames {
  readonly sandboxes: number;
  /** Those weighed by their age, to a thousandth. */
  readonly recentSandboxes: number;
  readonly lastCreatedAtMs: number;
}

export interface CompositionCountsOptions {
  /** @default 65,536 */
  readonly max?: number | undefined;
  /** How long a sandbox takes to weigh half as much. Another than before counts from the newest create on. @default 30 days */
  readonly halfLifeMs?: number | undefined;
}

export interface CompositionPageQuery {
  /** What the page before returned; 0: from the beginning. */
  readonly after: number;
  readonly limit: number;
  /** The time that the recent counts are of. */
  readonly nowMs: number;
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
  readonly #halfLifeMs: number;
  /** Undefined: to be counted. */
  #size: number | undefined;

  constructor(database: DatabaseSync, options: CompositionCountsOptions = {}) {
    const { max = MAX_COMPOSITIONS, halfLifeMs = DEFAULT_HALF_LIFE_MS } = options;
    database.exec(`
      CREATE TABLE IF NOT EXISTS composition (
        id INTEGER PRIMARY KEY, names TEXT NOT NULL UNIQUE, sandboxes INTEGER NOT NULL, lastMs INTEGER NOT NULL
      );
    `);
    addRecent(database);
    this.#add = database.prepare(
      'INSERT INTO composition (names, sandboxes, recent, lastMs) VALUES (?, 0, 0, 0) ON CONFLICT (names) DO NOTHING',
    );
    // A clock that was set back ages nothing.
    this.#raise = database.prepare(`
      UPDATE composition SET
        sandboxes = sandboxes + :sandboxes,
        recent = recent * pow(2, -1.0 * max(0, :atMs - lastMs) / :halfLifeMs) + :sandboxes,
        lastMs = max(lastMs, :atMs)
      WHERE names = :names
    `);
    this.#forget = database.prepare(
      'DELETE FROM composition WHERE id IN (SELECT id FROM composition ORDER BY lastMs, id LIMIT ?)',
    );
    this.#page = database.prepare(
      'SELECT id, names, sandboxes, recent, lastMs FROM composition WHERE id > ? ORDER BY id LIMIT ?',
    );
    this.#max = max;
    this.#halfLifeMs = halfLifeMs;
    this.#count = database.prepare('SELECT count(*) AS size FROM composition');
  }

  /** Within the transaction of the caller, who says when it came to nothing. */
  raise(names: string, sandboxes: number, lastMs: number): void {
    let size = this.#size ?? Number(this.#count.get()?.size);
    size += Number(this.#add.run(names).changes);
    this.#raise.run({ names, sandboxes, atMs: lastMs, halfLifeMs: this.#halfLifeMs });
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
  page({ after, limit, nowMs }: CompositionPageQuery): CountedPage {
    const compositions: CountedComposition[] = [];
    let [chars, last] = [0, after];
    for (const row of this.#page.iterate(after, limit + 1)) {
      const names = String(row.names);
      chars += names.length;
      const isFull = compositions.length === limit || (compositions.length > 0 && chars > PAGE_CHARS);
      if (isFull) return { compositions, cursor: last };
      const [environment, workspace, ...toolkits] = JSON.parse(names) as [string, string | null, ...string[]];
      const lastCreatedAtMs = Number(row.lastMs);
      const aged = Number(row.recent) * 2 ** (-Math.max(0, nowMs - lastCreatedAtMs) / this.#halfLifeMs);
      const recentSandboxes = Math.round(aged * THOUSANDTHS) / THOUSANDTHS;
      const sandboxes = Number(row.sandboxes);
      compositions.push({ environment, workspace, toolkits, sandboxes, recentSandboxes, lastCreatedAtMs });
      last = Number(row.id);
    }
    return { compositions, cursor: undefined };
  }
}

/** A table of before counts each of its sandboxes as one of the newest create. */
function addRecent(database: DatabaseSync): void {
  const columns = database.prepare('PRAGMA table_info(composition)').all();
  if (columns.some(({ name }) => name === 'recent')) return;
  database.exec(`
    BEGIN IMMEDIATE;
    ALTER TABLE composition ADD COLUMN recent REAL NOT NULL DEFAULT 0;
    UPDATE composition SET recent = sandboxes;
    COMMIT;
  `);
}
