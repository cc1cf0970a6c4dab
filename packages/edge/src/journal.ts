/**
 * The journal: every sandbox of this edge, durable. Group commit: while one transaction is on its way to the disk, all that is written
 * waits, and goes together as the next; so any number of concurrent writers pays for one sync.
 */
import { PlatformError } from '@dsec/contract';
import { compositionKey, type CompositionPageQuery, type CountedPage } from './composition-counts.ts';
import type { JournalBatch, JournalContents, JournalCount, JournalPut } from './journal-store.ts';
import { decodeRecord, encodeRecord, type SandboxRecord } from './sandbox-record.ts';

/** Most records in one transaction, so that none is held up by a long one. */
const MAX_BATCH = 1024;
/** Most records that wait; admission keeps creates far below it. */
const MAX_WAITING = 65_536;
/** Most questions that wait. */
const MAX_QUESTIONS = 64;

/** What a journal writes to; the thread, or the store itself in tests and measurements. */
export interface JournalSink {
  open(path: string, bootId: string, halfLifeMs?: number): Promise<JournalContents>;
  commit(batch: JournalBatch): Promise<void>;
  compositions(query: CompositionPageQuery): Promise<CountedPage>;
  close(): Promise<void>;
}

interface Waiting {
  /** Undefined deletes. */
  body: string | undefined;
  /** The names that this sandbox is counted under, when it is new. */
  readonly begun: { readonly names: string; readonly atMs: number } | undefined;
  readonly done: PromiseWithResolvers<undefined>;
}

interface Question {
  readonly query: CompositionPageQuery;
  readonly answer: PromiseWithResolvers<CountedPage>;
}

export interface JournalOpened {
  /** Boot id of the node when the journal was last open; undefined for a new one. */
  readonly bootId: string | undefined;
  readonly records: readonly SandboxRecord[];
}

export class Journal implements AsyncDisposable {
  readonly #sink: JournalSink;
  #waiting = new Map<string, Waiting>();
  #questions: Question[] = [];
  #running: Promise<void> | undefined;

  constructor(sink: JournalSink) {
    this.#sink = sink;
  }

  /**
   * @param halfLifeMs of the counts of compositions; default: 30 days
   * @throws PlatformError `internal` when the file cannot be opened, or has a record that this edge cannot read
   */
  async open(path: string, bootId: string, halfLifeMs?: number): Promise<JournalOpened> {
    const { bootId: before, bodies } = await this.#sink.open(path, bootId, halfLifeMs);
    return { bootId: before, records: bodies.map(decodeRecord) };
  }

  /** The first record of a sandbox; it is counted with the same write. @throws PlatformError as {@link Journal.write} */
  begin(record: SandboxRecord): Promise<void> {
    const { environment, workspace = null, toolkits = [], createdAtMs: atMs } = record;
    const names = compositionKey({ environment, workspace, toolkits });
    return this.#enqueue(record.sandboxId, encodeRecord(record), { names, atMs });
  }

  /**
   * Resolves when the record is durable. A later record of the same sandbox takes the place of one that still waits.
   * @throws PlatformError `disk_full`, `unavailable` when too many wait, `internal`
   */
  write(record: SandboxRecord): Promise<void> {
    return this.#enqueue(record.sandboxId, encodeRecord(record));
  }

  /** Resolves when the record is gone. */
  forget(sandboxId: string): Promise<void> {
    return this.#enqueue(sandboxId, undefined);
  }

  /** How many sandboxes were begun on which names. @throws PlatformError `unavailable` when too many ask, `internal` */
  compositions(query: CompositionPageQuery): Promise<CountedPage> {
    if (this.#questions.length >= MAX_QUESTIONS)
      return Promise.reject(new PlatformError('unavailable', 'too many questions wait for the journal'));
    const answer = Promise.withResolvers<CountedPage>();
    this.#questions.push({ query, answer });
    this.#running ??= this.#drain();
    return answer.promise;
  }

  /** Resolves when nothing waits. */
  async idle(): Promise<void> {
    while (this.#running !== undefined) await this.#running;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.idle();
    await this.#sink.close();
  }

  #enqueue(sandboxId: string, body: string | undefined, begun?: Waiting['begun']): Promise<void> {
    let waiting = this.#waiting.get(sandboxId);
    if (waiting === undefined) {
      if (this.#waiting.size >= MAX_WAITING)
        return Promise.reject(new PlatformError('unavailable', 'too many records wait for the journal'));
      waiting = { body, begun, done: Promise.withResolvers<undefined>() };
      this.#waiting.set(sandboxId, waiting);
    } else {
      waiting.body = body;
    }
    this.#running ??= this.#drain();
    return waiting.done.promise;
  }

  async #drain(): Promise<void> {
    // Everything that one turn of the event loop writes goes together, and behind what it sends to the launcher: the disk and the launcher
    // then work at the same time.
    await new Promise((resolve) => setImmediate(resolve));
    while (this.#waiting.size > 0 || this.#questions.length > 0) {
      await this.#answer();
      if (this.#waiting.size === 0) continue;
      const group = this.#take();
      try {
        await this.#sink.commit(batchOf(group));
        for (const { done } of group.values()) done.resolve(undefined);
      } catch (error) {
        for (const { done } of group.values()) done.reject(error);
      }
    }
    this.#running = undefined;
  }

  /** One question between two transactions. */
  async #answer(): Promise<void> {
    const question = this.#questions.shift();
    if (question === undefined) return;
    const { query, answer } = question;
    await this.#sink.compositions(query).then(answer.resolve, answer.reject);
  }

  #take(): Map<string, Waiting> {
    if (this.#waiting.size <= MAX_BATCH) {
      const all = this.#waiting;
      this.#waiting = new Map();
      return all;
    }
    const group = new Map([...this.#waiting.entries()].slice(0, MAX_BATCH));
    for (const sandboxId of group.keys()) this.#waiting.delete(sandboxId);
    return group;
  }
}

function batchOf(group: ReadonlyMap<string, Waiting>): JournalBatch {
  const puts: JournalPut[] = [];
  const deletes: string[] = [];
  const counts = new Map<string, JournalCount>();
  for (const [sandboxId, { body, begun }] of group) {
    if (begun !== undefined) {
      const { sandboxes = 0, lastMs = 0 } = counts.get(begun.names) ?? {};
      counts.set(begun.names, {
        names: begun.names,
        sandboxes: sandboxes + 1,
        lastMs: Math.max(lastMs, begun.atMs),
      });
    }
    if (body === undefined) deletes.push(sandboxId);
    else puts.push({ sandboxId, body });
  }
  return { puts, deletes, counts: [...counts.values()] };
}
