import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { causeOf } from '@dsec/contract';
import { Process, SystemClock } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, it } from 'vitest';
import type { CountedPage } from './composition-counts.ts';
import { Journal, type JournalSink } from './journal.ts';
import type { JournalBatch } from './journal-store.ts';
import { JournalThread } from './journal-thread.ts';
import { decodeRecord, encodeRecord, type SandboxRecord } from './sandbox-record.ts';
import { aRecord } from '../tests/records.ts';

const record = aRecord;

let directory = '';
beforeEach(async () => {
  directory = await mkdtemp(join(tmpdir(), 'dsec-journal-'));
});
afterEach(() => rm(directory, { recursive: true }));

const fail = (error: Error): never => {
  throw error;
};
const openJournal = async (bootId = 'boot-1') => {
  const journal = new Journal(await JournalThread.start(fail));
  const opened = await journal.open(join(directory, 'journal.db'), bootId);
  return { journal, opened };
};

const turn = (): Promise<void> => new Promise((resolve) => setImmediate(resolve));

/** Commits only when told. */
class HeldSink implements JournalSink {
  readonly batches: JournalBatch[] = [];
  readonly #held: PromiseWithResolvers<void>[] = [];

  open(): Promise<{ bootId: undefined; bodies: string[] }> {
    return Promise.resolve({ bootId: undefined, bodies: [] });
  }

  commit(batch: JournalBatch): Promise<void> {
    this.batches.push(batch);
    const held = Promise.withResolvers<void>();
    this.#held.push(held);
    return held.promise;
  }

  compositions(): Promise<CountedPage> {
    return Promise.resolve({ compositions: [], cursor: undefined });
  }

  close(): Promise<void> {
    return Promise.resolve();
  }

  async settle(error?: Error): Promise<void> {
    const held = this.#held.shift();
    if (error === undefined) held?.resolve();
    else held?.reject(error);
    await turn();
  }
}

describe('the journal', () => {
  it('gives back what was written, the last record of each sandbox, and the boot id of before', async () => {
    const first = await openJournal();
    expect(first.opened).toEqual({ bootId: undefined, records: [] });
    await first.journal.write(record('sa'));
    await first.journal.write(record('sb'));
    await first.journal.write(record('sa', { phase: 'stopped', cause: causeOf('idle', 'x'), endedAtMs: 9 }));
    await first.journal.write(record('sc'));
    await first.journal.forget('sc');
    await first.journal[Symbol.asyncDispose]();
    const second = await openJournal('boot-2');
    expect(second.opened.bootId).toBe('boot-1');
    expect([...second.opened.records].toSorted((a, b) => a.sandboxId.localeCompare(b.sandboxId))).toEqual([
      record('sa', { phase: 'stopped', cause: causeOf('idle', 'x'), endedAtMs: 9 }),
      record('sb'),
    ]);
    await second.journal[Symbol.asyncDispose]();
  });

  it('writes all of one turn as one transaction, and then all that came while it was on its way', async () => {
    const sink = new HeldSink();
    const journal = new Journal(sink);
    const write = (index: number): Promise<void> => journal.write(record(`s${index}`));
    const writes = Array.from({ length: 100 }, (_, index) => write(index));
    expect(sink.batches).toEqual([]);
    await turn();
    expect(sink.batches.map(({ puts }) => puts.length)).toEqual([100]);
    writes.push(write(100));
    await turn();
    writes.push(write(101));
    await sink.settle();
    expect(sink.batches.map(({ puts }) => puts.length)).toEqual([100, 2]);
    await sink.settle();
    await Promise.all(writes);
    await journal[Symbol.asyncDispose]();
  });

  it('acknowledges nothing before its transaction, and writes only the last of several records of one sandbox', async () => {
    const sink = new HeldSink();
    const journal = new Journal(sink);
    const acknowledged: string[] = [];
    const write = (name: string, phase: SandboxRecord['phase']) =>
      journal.write(record('sa', { phase })).then(() => acknowledged.push(name));
    const all = [write('first', 'creating')];
    await turn();
    all.push(write('second', 'running'), write('third', 'stopping'));
    await sink.settle();
    expect(acknowledged).toEqual(['first']);
    await sink.settle();
    expect(acknowledged).toEqual(['first', 'second', 'third']);
    expect(sink.batches.map(({ puts }) => puts.map(({ body }) => decodeRecord(body).phase))).toEqual([
      ['creating'],
      ['stopping'],
    ]);
    await Promise.all(all);
  });

  it('tells each writer of a failed transaction, and goes on with the next', async () => {
    const sink = new HeldSink();
    const journal = new Journal(sink);
    const failed = journal.write(record('sa'));
    await turn();
    const worked = journal.write(record('sb'));
    await Promise.all([expect(failed).rejects.toThrow('full'), sink.settle(new Error('full'))]);
    await sink.settle();
    await worked;
  });

  it('bounds the size of one transaction', async () => {
    const sink = new HeldSink();
    const journal = new Journal(sink);
    const writes = Array.from({ length: 2500 }, (_, index) => journal.write(record(`s${index}`)));
    for (let round = 0; round < 4; round++) await sink.settle();
    await Promise.all(writes);
    expect(sink.batches.map(({ puts }) => puts.length)).toEqual([1024, 1024, 452]);
  });

  it('refuses a record that it cannot read instead of dropping it', () => {
    expect(() => decodeRecord('{')).toThrow('not JSON');
    expect(() => decodeRecord(JSON.stringify({ ...record('sa'), version: 3 }))).toThrow('version');
    expect(decodeRecord(encodeRecord(record('sa')))).toEqual(record('sa'));
  });

  it('says that it cannot open a file that is no journal', async () => {
    const journal = new Journal(await JournalThread.start(fail));
    await expect(journal.open('/proc/version', 'boot')).rejects.toMatchObject({ code: 'internal' });
    await journal[Symbol.asyncDispose]();
  });
});

describe('what was begun', () => {
  it('is counted by its names, once for each sandbox, and stays counted when the sandbox is forgotten', async () => {
    const { journal } = await openJournal();
    const names = { workspace: 'w', toolkits: ['t', 'u'] };
    await Promise.all([
      journal.begin(record('sa')),
      journal.begin(record('sb', { createdAtMs: 7 })),
      journal.begin(record('sc', names)),
      journal.write(record('sa', { phase: 'stopped', cause: causeOf('idle', 'x'), endedAtMs: 9 })),
    ]);
    await journal.write(record('sb', { phase: 'stopping', cause: causeOf('idle', 'x') }));
    await journal.forget('sa');
    await journal.begin(record('sd', { ...names, toolkits: ['u', 't'] }));
    const plain = {
      environment: 'debian',
      workspace: null,
      toolkits: [],
      sandboxes: 2,
      recentSandboxes: 2,
      lastCreatedAtMs: 7,
    };
    const stacked = { environment: 'debian', ...names, sandboxes: 1, recentSandboxes: 1, lastCreatedAtMs: 1 };
    const page = await journal.compositions({ after: 0, limit: 2, nowMs: 9 });
    expect(page.compositions).toEqual([plain, stacked]);
    expect(await journal.compositions({ after: page.cursor ?? 0, limit: 2, nowMs: 9 })).toEqual({
      compositions: [{ ...stacked, toolkits: ['u', 't'] }],
      cursor: undefined,
    });
    await journal[Symbol.asyncDispose]();
  });
});

describe('a journal whose process is killed', () => {
  it('has every record that was acknowledged, at whatever moment it was killed', { timeout: 120_000 }, async () => {
    const acknowledged = new Set<string>();
    for (let round = 0; round < 8; round++) {
      const writer = await Process.start(
        [
          process.execPath,
          '--disable-warning=ExperimentalWarning',
          join(import.meta.dirname, '../tests/journal-writer.ts'),
          join(directory, 'journal.db'),
          String(round),
        ],
        { clock: new SystemClock(), stdout: 'pipe' },
      );
      let text = '';
      for await (const chunk of writer.stdout) {
        text += String(chunk);
        // Another moment each round: between the first acknowledgement and some hundred later.
        if (text.length > 16 + round * 900) writer.signal('SIGKILL');
      }
      await writer.exited;
      for (const line of text.split('\n').slice(0, -1)) acknowledged.add(line);
    }
    const { journal, opened } = await openJournal();
    const found = new Set(opened.records.map(({ sandboxId }) => sandboxId));
    expect(acknowledged.size).toBeGreaterThan(100);
    expect([...acknowledged].filter((sandboxId) => !found.has(sandboxId))).toEqual([]);
    const { compositions } = await journal.compositions({ after: 0, limit: 10, nowMs: 9 });
    expect(compositions.map(({ environment, sandboxes }) => [environment, sandboxes])).toEqual([
      ['debian', found.size],
    ]);
    await journal[Symbol.asyncDispose]();
  });
});
