import { mkdtemp, readdir, rm, writeFile } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { ManualClock, MemoryLogger } from '@dsec/kit';
import { afterEach, beforeEach, describe, expect, it, vi } from 'vitest';
import { aPolicy, aRecord } from '../../tests/records.ts';
import { Sandbox } from '../sandbox.ts';
import { FLUSH_MS, MAX_FLUSHED } from './bounds.ts';
import { ReportStore } from './report-store.ts';
import { Reports } from './reports.ts';

let directory: string;
let clock: ManualClock;
let logger: MemoryLogger;
let store: ReportStore;
let reports: Reports;
const everything = (): boolean => true;

beforeEach(async () => {
  directory = join(await mkdtemp(join(tmpdir(), 'dsec-reports-')), 'behaviour');
  clock = new ManualClock();
  logger = new MemoryLogger();
  store = new ReportStore(directory);
  await store.open(everything);
  reports = new Reports({ store, clock, logger });
});
afterEach(() => rm(join(directory, '..'), { recursive: true }));

const live = (sandboxId: string): Sandbox =>
  new Sandbox(aRecord(sandboxId, { policy: aPolicy({ tripwires: ['/key'] }) }));
const ended = (sandbox: Sandbox): void => {
  sandbox.state = { phase: 'stopped', cause: { kind: 'stopped', infrastructure: false, detail: '' } };
};
const add = (sandbox: Sandbox, what = 'bpf'): Promise<void> =>
  reports.add(sandbox, { told: { kind: 'call', what, outcome: 'EPERM' }, atMs: 1, count: 1, by: {} });
const files = async (): Promise<readonly string[]> => (await readdir(directory)).toSorted();
/** Another edge, which knows nothing but the files. */
const anew = (): Reports => new Reports({ store, clock, logger });

describe('reports', () => {
  it('are written a moment after they have changed, many changes at once, and nothing runs while none has', async () => {
    const write = vi.spyOn(store, 'write');
    const sandbox = live('s1');
    expect(clock.pendingTimers).toBe(0);
    for (let index = 0; index < 50; index++) await add(sandbox);
    expect([clock.pendingTimers, await files()]).toEqual([1, []]);
    await clock.advance(FLUSH_MS);
    await reports.flush();
    expect([write.mock.calls.length, clock.pendingTimers]).toEqual([1, 0]);
    expect(await files()).toEqual(['s1.json']);
    expect(await anew().show(sandbox)).toEqual(await reports.show(sandbox));
    expect(await reports.show(sandbox)).toMatchObject({ tripwires: ['/key'], counts: { call: 50 } });
  });

  it('of many sandboxes are written a bounded number at a time', async () => {
    const count = MAX_FLUSHED + 10;
    for (let index = 0; index < count; index++) await add(live(`s${index}`));
    await reports.flush();
    expect(await files()).toHaveLength(MAX_FLUSHED);
    expect(clock.pendingTimers).toBe(1);
    await reports[Symbol.asyncDispose]();
    expect(await files()).toHaveLength(count);
  });

  it('that cannot be written are written later', async () => {
    const write = vi.spyOn(store, 'write').mockRejectedValueOnce(new Error('the disk is full'));
    const sandbox = live('s1');
    await add(sandbox);
    await reports.flush();
    expect([await files(), clock.pendingTimers, logger.records.length]).toEqual([[], 1, 1]);
    await reports.flush();
    expect([await files(), clock.pendingTimers, write.mock.calls.length]).toEqual([['s1.json'], 0, 2]);
  });

  it('of sandboxes that have ended are in their files alone, and take what is told late', async () => {
    const sandbox = live('s1');
    const quiet = live('s2');
    await add(sandbox);
    await add(quiet);
    await reports.flush();
    await add(sandbox);
    for (const each of [sandbox, quiet]) {
      ended(each);
      await reports.noteOver(each);
    }
    const read = vi.spyOn(store, 'read');
    expect((await reports.show(sandbox)).counts.call).toBe(2);
    expect((await reports.show(quiet)).counts.call).toBe(1);
    expect(read).toHaveBeenCalledTimes(2);
    await add(sandbox);
    await reports.flush();
    expect((await anew().show(sandbox)).counts.call).toBe(3);
  });

  it('go with what the edge forgets, and files that are of none of its sandboxes at its start', async () => {
    await add(live('s1'));
    await add(live('s2'));
    await reports.flush();
    await reports.forget('s1');
    await reports.forget('never');
    expect(await files()).toEqual(['s2.json']);
    for (const name of ['s3.json', 's2.json.tmp.1', 'other']) await writeFile(join(directory, name), '{}');
    await store.open((sandboxId) => sandboxId === 's2');
    expect(await files()).toEqual(['s2.json']);
  });

  it('that nobody can read are begun anew', async () => {
    await writeFile(join(directory, 's1.json'), '{"sandboxId":');
    const sandbox = live('s1');
    await add(sandbox);
    expect((await reports.show(sandbox)).counts.call).toBe(1);
  });
});
