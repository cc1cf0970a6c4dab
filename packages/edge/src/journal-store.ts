/** The journal's file: SQLite with a write-ahead log, in which a committed transaction survives the loss of power. */
import { DatabaseSync, type StatementSync } from 'node:sqlite';
import { CompositionCounts, type CompositionPageQuery, type CountedPage } from './composition-counts.ts';

export interface JournalPut {
  readonly sandboxId: string;
  readonly body: string;
}

/** So many sandboxes were begun on the same names. */
export interface JournalCount {
  /** `compositionKey` */
  readonly names: string;
  readonly sandboxes: number;
  readonly lastMs: number;
}

/** What one transaction does. */
export interface JournalBatch {
  readonly puts: readonly JournalPut[];
  readonly deletes: readonly string[];
  readonly counts: readonly JournalCount[];
}

export interface JournalContents {
  /** Boot id of the node when the journal was last opened; undefined for a new one. */
  readonly bootId: string | undefined;
  readonly bodies: readonly string[];
}

/** Version of the tables. */
const FORMAT = '1';
/** How long another process may hold the file before opening it fails. */
const BUSY_TIMEOUT_MS = 2000;

export class JournalStore implements Disposable {
  readonly #database: DatabaseSync;
  readonly #put: StatementSync;
  readonly #delete: StatementSync;
  readonly #counts: CompositionCounts;

  /** @param halfLifeMs of the counts of compositions; default: 30 days */
  constructor(path: string, halfLifeMs?: number) {
    this.#database = new DatabaseSync(path);
    this.#database.exec(`
      PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS};
      PRAGMA journal_mode = WAL;
      PRAGMA synchronous = FULL;
      CREATE TABLE IF NOT EXISTS meta (name TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;
      CREATE TABLE IF NOT EXISTS sandbox (id TEXT PRIMARY KEY, body TEXT NOT NULL) WITHOUT ROWID;
    `);
    const format = this.#meta('format');
    if (format === undefined) this.#setMeta('format', FORMAT);
    else if (format !== FORMAT) throw new Error(`the journal has format ${format}, this edge knows ${FORMAT}`);
    this.#put = this.#database.prepare(
      'INSERT INTO sandbox (id, body) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET body = excluded.body',
    );
    this.#delete = this.#database.prepare('DELETE FROM sandbox WHERE id = ?');
    this.#counts = new CompositionCounts(this.#database, { halfLifeMs });
  }

  /** Reads everything and notes the boot id of the node. */
  open(bootId: string): JournalContents {
    const before = this.#meta('bootId');
    const bodies = this.#database
      .prepare('SELECT body FROM sandbox')
      .all()
      .map((row) => String(row.body));
    // Written even when it is the same: the first write makes the log, and no create shall wait for that.
    this.#setMeta('bootId', bootId);
    return { bootId: before, bodies };
  }

  /** One transaction, one sync of the disk. */
  commit(batch: JournalBatch): void {
    this.#database.exec('BEGIN IMMEDIATE');
    try {
      for (const { sandboxId, body } of batch.puts) this.#put.run(sandboxId, body);
      for (const sandboxId of batch.deletes) this.#delete.run(sandboxId);
      for (const { names, sandboxes, lastMs } of batch.counts) this.#counts.raise(names, sandboxes, lastMs);
      this.#database.exec('COMMIT');
    } catch (error) {
      if (this.#database.isTransaction) this.#database.exec('ROLLBACK');
      this.#counts.rolledBack();
      throw error;
    }
  }

  compositions(query: CompositionPageQuery): CountedPage {
    return this.#counts.page(query);
  }

  [Symbol.dispose](): void {
    this.#database.close();
  }

  #meta(name: string): string | undefined {
    const row = this.#database.prepare('SELECT value FROM meta WHERE name = ?').get(name);
    return row === undefined ? undefined : String(row.value);
  }

  #setMeta(name: string, value: string): void {
    this.#database
      .prepare('INSERT INTO meta (name, value) VALUES (?, ?) ON CONFLICT (name) DO UPDATE SET value = excluded.value')
      .run(name, value);
  }
}
