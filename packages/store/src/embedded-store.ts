/**
 * The store of one machine: one SQLite file that one process owns. A write has reached the disk when its promise resolves. A log of the last
 * changes feeds the watches, so that a slow watcher costs no memory: one that falls too far behind is told to range anew.
 */
import { DatabaseSync, type StatementSync } from 'node:sqlite';
import { PlatformError } from '@dsec/contract';
import { checkKey, checkOperations, checkPrefix } from './bounds.ts';
import {
  MAX_RANGE,
  type Condition,
  type Entry,
  type Operation,
  type RangeOptions,
  type RangePage,
  type Store,
  type StoreEvent,
  type TxnResult,
  type WatchBatch,
  type WatchOptions,
  type WriteOptions,
  type WriteResult,
} from './store.ts';

export interface EmbeddedStoreOptions {
  /** Database file; `:memory:` keeps nothing. */
  readonly path: string;
  /** Changes kept for watches. Default 10,000. */
  readonly history?: number;
}

const DEFAULT_HISTORY = 10_000;
/** Most events that a watch takes at once. */
const WATCH_BATCH = 256;
const SCHEMA_VERSION = 1;
/** Sorts after every key that begins with the prefix before it. */
const AFTER_KEYS = '\x7f';

const SCHEMA = `
  CREATE TABLE entry (
    key TEXT PRIMARY KEY, value TEXT NOT NULL, create_revision INTEGER NOT NULL, mod_revision INTEGER NOT NULL
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE change (
    revision INTEGER NOT NULL, key TEXT NOT NULL, value TEXT, create_revision INTEGER NOT NULL, PRIMARY KEY (revision, key)
  ) STRICT, WITHOUT ROWID;
  CREATE TABLE state (id INTEGER PRIMARY KEY CHECK (id = 1), revision INTEGER NOT NULL, compacted INTEGER NOT NULL) STRICT;
  INSERT INTO state VALUES (1, 0, 0);
`;

interface EntryRow {
  readonly key: string;
  readonly value: string;
  readonly create_revision: number;
  readonly mod_revision: number;
}

interface ChangeRow {
  readonly revision: number;
  readonly key: string;
  readonly value: string | null;
  readonly create_revision: number;
}

const toEntry = (row: EntryRow): Entry => ({
  key: row.key,
  value: row.value,
  createRevision: row.create_revision,
  modRevision: row.mod_revision,
});

const toEvent = (row: ChangeRow): StoreEvent =>
  row.value === null
    ? { kind: 'delete', key: row.key, revision: row.revision }
    : {
        kind: 'put',
        entry: { key: row.key, value: row.value, createRevision: row.create_revision, modRevision: row.revision },
      };

/** `Store` on `node:sqlite`. */
export class EmbeddedStore implements Store {
  readonly #db: DatabaseSync;
  readonly #history: number;
  readonly #statements: Statements;
  readonly #wakers = new Set<() => void>();
  #revision: number;
  #compacted: number;
  #isOpen = true;

  private constructor(db: DatabaseSync, history: number) {
    this.#db = db;
    this.#history = history;
    this.#statements = prepare(db);
    const state = db.prepare('SELECT revision, compacted FROM state').get();
    this.#revision = Number(state?.revision);
    this.#compacted = Number(state?.compacted);
  }

  /**
   * Opens or makes the file.
   * @throws PlatformError `already_running` when another process has it open
   */
  static open(options: EmbeddedStoreOptions): EmbeddedStore {
    const db = new DatabaseSync(options.path);
    try {
      db.exec('PRAGMA locking_mode = EXCLUSIVE; PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL;');
      migrate(db);
      return new EmbeddedStore(db, options.history ?? DEFAULT_HISTORY);
    } catch (cause) {
      db.close();
      if (cause instanceof Error && /database is locked/.test(cause.message)) {
        throw new PlatformError('already_running', 'another process has the store open', { cause });
      }
      throw cause;
    }
  }

  get(key: string): Promise<Entry | undefined> {
    return this.#do(() => {
      checkKey(key);
      return this.#read(key);
    });
  }

  range(prefix: string, options: RangeOptions = {}): Promise<RangePage> {
    return this.#do(() => {
      checkPrefix(prefix);
      const limit = Math.min(options.limit ?? MAX_RANGE, MAX_RANGE);
      const after = options.cursor ?? '';
      checkPrefix(after);
      const rows = this.#statements.range.all(prefix, prefix + AFTER_KEYS, after, limit + 1) as unknown as EntryRow[];
      const entries = rows.slice(0, limit).map(toEntry);
      return { entries, cursor: rows.length > limit ? entries.at(-1)?.key : undefined, revision: this.#revision };
    });
  }

  put(key: string, value: string, options: WriteOptions = {}): Promise<WriteResult> {
    return this.#write({ kind: 'put', key, value }, options);
  }

  delete(key: string, options: WriteOptions = {}): Promise<WriteResult> {
    return this.#write({ kind: 'delete', key }, options);
  }

  txn(conditions: readonly Condition[], operations: readonly Operation[]): Promise<TxnResult> {
    return this.#do(() => {
      for (const { key } of conditions) checkKey(key);
      checkOperations(operations);
      const holds = conditions.every(({ key, revision }) => (this.#read(key)?.modRevision ?? 0) === revision);
      return holds ? { ok: true, revision: this.#commit(operations) } : { ok: false };
    });
  }

  async *watch(prefix: string, options: WatchOptions): AsyncGenerator<WatchBatch, void, undefined> {
    checkPrefix(prefix);
    const { signal } = options;
    let next = options.fromRevision ?? this.#revision + 1;
    while (!signal.aborted && this.#isOpen) {
      if (next <= this.#compacted) {
        next = this.#revision + 1;
        yield { kind: 'compacted', revision: this.#revision };
        continue;
      }
      if (next > this.#revision) {
        await this.#change(signal);
        continue;
      }
      const { events, revision } = this.#changes(prefix, next);
      next = revision + 1;
      if (events.length > 0) yield { kind: 'events', events, revision };
    }
  }

  close(): Promise<void> {
    if (this.#isOpen) {
      this.#isOpen = false;
      this.#wake();
      this.#db.close();
    }
    return Promise.resolve();
  }

  [Symbol.asyncDispose](): Promise<void> {
    return this.close();
  }

  /** Changes of whole revisions, up to about `WATCH_BATCH`. */
  #changes(prefix: string, from: number): { readonly events: readonly StoreEvent[]; readonly revision: number } {
    const bounds = [prefix, prefix + AFTER_KEYS] as const;
    const rows = this.#statements.changes.all(from, ...bounds, WATCH_BATCH) as unknown as ChangeRow[];
    const last = rows.at(-1);
    if (last === undefined || rows.length < WATCH_BATCH) return { events: rows.map(toEvent), revision: this.#revision };
    // The last revision may have been cut in the middle of a transaction.
    const rest = this.#statements.rest.all(last.revision, last.key, ...bounds) as unknown as ChangeRow[];
    return { events: [...rows, ...rest].map(toEvent), revision: last.revision };
  }

  #write(operation: Operation, options: WriteOptions): Promise<WriteResult> {
    return this.#do(() => {
      checkOperations([operation]);
      if (options.ifRevision !== undefined) {
        const current = this.#read(operation.key);
        if ((current?.modRevision ?? 0) !== options.ifRevision) return { ok: false, current };
      }
      return { ok: true, revision: this.#commit([operation]) };
    });
  }

  #commit(operations: readonly Operation[]): number {
    const { put, remove, log, trim, save } = this.#statements;
    const revision = this.#revision + 1;
    const compacted = Math.max(this.#compacted, revision - this.#history);
    let changed = 0;
    this.#db.exec('BEGIN IMMEDIATE');
    try {
      for (const operation of operations) {
        const created = this.#read(operation.key)?.createRevision;
        if (operation.kind === 'delete' && created === undefined) continue;
        changed++;
        const value = operation.kind === 'put' ? operation.value : null;
        if (value === null) remove.run(operation.key);
        else put.run(operation.key, value, created ?? revision, revision);
        log.run(revision, operation.key, value, created ?? revision);
      }
      if (changed > 0) {
        if (compacted > this.#compacted) trim.run(compacted);
        save.run(revision, compacted);
      }
      this.#db.exec('COMMIT');
    } catch (error) {
      this.#db.exec('ROLLBACK');
      throw error;
    }
    if (changed === 0) return this.#revision;
    this.#revision = revision;
    this.#compacted = compacted;
    this.#wake();
    return revision;
  }

  #read(key: string): Entry | undefined {
    const row = this.#statements.get.get(key) as unknown as EntryRow | undefined;
    return row === undefined ? undefined : toEntry(row);
  }

  #wake(): void {
    for (const waker of this.#wakers) waker();
  }

  #change(signal: AbortSignal): Promise<void> {
    return new Promise((resolve) => {
      const done = (): void => {
        this.#wakers.delete(done);
        signal.removeEventListener('abort', done);
        resolve();
      };
      this.#wakers.add(done);
      signal.addEventListener('abort', done, { once: true });
    });
  }

  async #do<T>(operation: () => T): Promise<T> {
    if (!this.#isOpen) throw new PlatformError('unavailable', 'the store is closed');
    return await Promise.resolve(operation());
  }
}

function migrate(db: DatabaseSync): void {
  const version = Number(db.prepare('PRAGMA user_version').get()?.user_version);
  if (version === SCHEMA_VERSION) return;
  if (version !== 0) {
    throw new PlatformError('config_invalid', 'the store was written by another version', {
      details: { field: 'path', version },
    });
  }
  db.exec(`BEGIN EXCLUSIVE; ${SCHEMA} PRAGMA user_version = ${SCHEMA_VERSION}; COMMIT;`);
}

interface Statements {
  readonly get: StatementSync;
  readonly range: StatementSync;
  readonly put: StatementSync;
  readonly remove: StatementSync;
  readonly log: StatementSync;
  readonly trim: StatementSync;
  readonly save: StatementSync;
  readonly changes: StatementSync;
  readonly rest: StatementSync;
}

function prepare(db: DatabaseSync): Statements {
  return {
    get: db.prepare('SELECT * FROM entry WHERE key = ?'),
    range: db.prepare('SELECT * FROM entry WHERE key >= ? AND key < ? AND key > ? ORDER BY key LIMIT ?'),
    put: db.prepare(
      'INSERT INTO entry VALUES (?, ?, ?, ?) ON CONFLICT (key) DO UPDATE SET value = excluded.value, mod_revision = excluded.mod_revision',
    ),
    remove: db.prepare('DELETE FROM entry WHERE key = ?'),
    log: db.prepare('INSERT INTO change VALUES (?, ?, ?, ?)'),
    trim: db.prepare('DELETE FROM change WHERE revision <= ?'),
    save: db.prepare('UPDATE state SET revision = ?, compacted = ?'),
    changes: db.prepare(
      'SELECT * FROM change WHERE revision >= ? AND key >= ? AND key < ? ORDER BY revision, key LIMIT ?',
    ),
    rest: db.prepare('SELECT * FROM change WHERE revision = ? AND key > ? AND key >= ? AND key < ? ORDER BY key'),
  };
}
