import {
  appendFileSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { envVariable, ManualClock, MemoryLogger, SystemClock } from '@dsec/kit';
import fc from 'fast-check';
import { afterEach, beforeEach, describe, expect, test } from 'vitest';
import { AuditLog, FLUSH_MS, type AuditLogOptions } from './audit-log.ts';
import { readAudit, type AuditFilter } from './audit-reader.ts';
import { verifyAudit } from './verify-audit.ts';

let directory: string;
let clock: ManualClock;
beforeEach(() => {
  directory = mkdtempSync(join(tmpdir(), 'audit-'));
  clock = new ManualClock(1000);
});
afterEach(() => rmSync(directory, { recursive: true }));

const open = (options: Partial<AuditLogOptions> = {}): Promise<AuditLog> =>
  AuditLog.open({ directory, clock, logger: new MemoryLogger(), ...options });
const files = (): string[] =>
  readdirSync(directory)
    .toSorted()
    .map((name) => join(directory, name));
const newest = (): string => files().at(-1) ?? '';
const text = (): string =>
  files()
    .map((path) => readFileSync(path, 'utf8'))
    .join('');
const lines = (): string[] => text().trimEnd().split('\n');
const add = (log: AuditLog, count: number, more: object = {}): void => {
  for (let index = 0; index < count; index++)
    log.append({ operation: 'exec.start', outcome: 'ok', sandboxId: `s${index}`, keyId: 'k', ...more });
};
const whats = (items: readonly { readonly what: string }[]): string[] => items.map(({ what }) => what);
const write = (path: string, change: (text: string) => string): void =>
  writeFileSync(path, change(readFileSync(path, 'utf8')));

describe('an audit log', () => {
  test('is written together, soon after it is dirty, and has no timer when it is idle', async () => {
    await using log = await open();
    expect(clock.pendingTimers).toBe(0);
    const before = lines().length;
    add(log, 3);
    expect([lines().length, clock.nextTimerMs]).toEqual([before, FLUSH_MS]);
    await clock.advance(FLUSH_MS);
    await expect.poll(() => lines().length).toBe(before + 3);
    await log.flush();
    expect(clock.pendingTimers).toBe(0);
    expect(statSync(newest()).mode & 0o777).toBe(0o600);
  });

  test('is a chain that goes on where it was left, and says whether it was closed', async () => {
    for (const _ of [1, 2]) {
      await using log = await open();
      add(log, 5);
    }
    const left = await open();
    add(left, 5);
    await left.flush();
    // As after a kill: nobody has closed it.
    await using after = await open();
    await after.flush();
    const verdict = await verifyAudit(directory);
    expect(verdict).toMatchObject({ records: 7 + 7 + 6 + 1, firstSeq: 1, problemCount: 0, head: after.head });
    expect(whats(verdict.marks)).toEqual([expect.stringContaining('was killed')]);
    await left[Symbol.asyncDispose]().catch(() => undefined);
  });

  test('goes on behind a line that a kill has cut, and says what it was', async () => {
    const first = await open();
    add(first, 4);
    await first[Symbol.asyncDispose]();
    truncateSync(newest(), statSync(newest()).size - 20);
    expect(whats((await verifyAudit(directory)).marks)).toEqual(['the last line is not whole']);
    await using log = await open();
    add(log, 2);
    await log.flush();
    const verdict = await verifyAudit(directory);
    expect([verdict.problems, verdict.head]).toEqual([[], log.head]);
    expect(whats(verdict.marks)).toEqual([
      expect.stringMatching(/^a line of \d+ bytes was not written whole/),
      expect.stringContaining('was killed'),
    ]);
    const { records } = await readAudit(directory, {}, { limit: 100 });
    expect(records.map(({ seq }) => seq)).toEqual(
      Array.from({ length: log.head.seq }, (_, index) => log.head.seq - index),
    );
  });

  test('whose last bytes are anything is gone on with: fuzz', async () => {
    const log = await open();
    add(log, 3);
    await log[Symbol.asyncDispose]();
    const whole = readFileSync(newest());
    const tail = fc.tuple(fc.uint8Array({ maxLength: 200 }), fc.nat(whole.length));
    const time = new SystemClock();
    const endsMs = time.monotonicMs() + Number(envVariable('DSEC_FUZZ_SECONDS') ?? 1) * 1000;
    while (time.monotonicMs() < endsMs) {
      for (const [garbage, cutAt] of fc.sample(tail, 20)) {
        writeFileSync(newest(), Buffer.concat([whole.subarray(0, cutAt), garbage]));
        const again = await open();
        add(again, 1);
        await again[Symbol.asyncDispose]();
        expect((await verifyAudit(directory)).head).toEqual(again.head);
        await readAudit(directory, {}, { limit: 10 });
      }
    }
  });

  test('is kept in so many files of about so many bytes, and one that is taken away shows', async () => {
    {
      await using log = await open({ fileBytes: 4096, files: 3 });
      for (let round = 0; round < 20; round++) {
        add(log, 20);
        await log.flush();
      }
    }
    expect(files()).toHaveLength(3);
    for (const path of files()) expect(statSync(path).size).toBeLessThan(4096 + 20 * 250);
    const verdict = await verifyAudit(directory);
    expect([verdict.files, verdict.problemCount]).toEqual([3, 0]);
    expect(verdict.firstSeq).toBeGreaterThan(1);
    const [, middle = ''] = files();
    rmSync(middle);
    expect(whats((await verifyAudit(directory)).problems)[0]).toContain('the file begins with record');
  });

  test('tells of what waits for a disk that refuses, and of what was too much', { timeout: 30_000 }, async () => {
    const logger = new MemoryLogger();
    const blocked = await open({ logger, directory: join(directory, 'full') });
    await blocked.flush();
    rmSync(join(directory, 'full'), { recursive: true });
    add(blocked, 1);
    // Its file has no name any more and none can be made.
    await expect(blocked.flush()).rejects.toThrow('ENOENT');
    const big = { detail: { text: 'x'.repeat(250) } };
    let accepted = 0;
    while (blocked.append({ operation: 'a', outcome: 'ok', ...big }) !== 0) accepted++;
    expect(accepted).toBeLessThan(60_000);
    expect(logger.records.filter(({ event }) => event === 'audit.write')).toHaveLength(1);
  });
});

describe('what was done to an audit log', () => {
  beforeEach(async () => {
    await using log = await open();
    add(log, 10);
  });

  test.each<[string, () => void, string]>([
    ['a changed word', () => write(newest(), (all) => all.replace('"s4"', '"s5"')), 'is not chained'],
    [
      'a record that was taken out',
      () => write(newest(), (all) => all.split('\n').toSpliced(4, 1).join('\n')),
      'follows record',
    ],
    [
      'a record that was put in',
      () =>
        write(newest(), (all) =>
          all
            .split('\n')
            .toSpliced(4, 0, all.split('\n')[3] ?? '')
            .join('\n'),
        ),
      'follows record',
    ],
    ['a line that is none', () => write(newest(), (all) => all.replace('{"seq":5', '{"seq":x')), 'is no record'],
    [
      'records in another order',
      () =>
        write(newest(), (all) => {
          const [a = '', b = '', c = '', d = '', ...rest] = all.split('\n');
          return [a, b, d, c, ...rest].join('\n');
        }),
      'is not chained',
    ],
  ])('shows: %s', async (_what, tamper, problem) => {
    expect((await verifyAudit(directory)).problemCount).toBe(0);
    tamper();
    const { problems } = await verifyAudit(directory);
    expect(whats(problems).join('\n')).toContain(problem);
  });

  test('shows against an earlier head: a cut end, and a log that was written anew', async () => {
    const { head } = await verifyAudit(directory);
    expect((await verifyAudit(directory, head)).hasAnchor).toBe(true);
    const all = readFileSync(newest(), 'utf8');
    writeFileSync(newest(), `${all.split('\n').slice(0, -3).join('\n')}\n`);
    const cut = await verifyAudit(directory, head);
    expect([cut.hasAnchor, whats(cut.problems)]).toEqual([false, [expect.stringContaining('was cut off')]]);
    rmSync(newest());
    {
      await using anew = await open();
      add(anew, 10, { sandboxId: 'other' });
    }
    const forged = await verifyAudit(directory, head);
    expect([forged.hasAnchor, whats(forged.problems)]).toEqual([false, [expect.stringContaining('not the one')]]);
    expect((await verifyAudit(directory)).problemCount).toBe(0);
  });

  test.each<[string, () => void]>([
    ['written to', () => appendFileSync(newest(), '{"seq":1}\n')],
    ['cut', () => truncateSync(newest(), 100)],
    ['taken away', () => rmSync(newest())],
  ])('is told by a server that runs: %s', async (_what, tamper) => {
    await using log = await open();
    tamper();
    add(log, 1);
    await log.flush();
    expect(text()).toContain('"operation":"audit.touched"');
    expect((await verifyAudit(directory)).problemCount).toBeGreaterThan(0);
  });
});

describe('pages of an audit log', () => {
  const all = async (filter: AuditFilter, limit: number): Promise<number[]> => {
    const seqs: number[] = [];
    let cursor: string | undefined;
    do {
      const page = await readAudit(directory, filter, { cursor, limit });
      expect(page.records.length).toBeLessThanOrEqual(limit);
      seqs.push(...page.records.map(({ seq }) => seq));
      cursor = page.cursor ?? undefined;
    } while (cursor !== undefined);
    return seqs;
  };

  test('have every record once, newest first, across files and whatever comes meanwhile', async () => {
    await using log = await open({ fileBytes: 4096, files: 100 });
    for (let round = 0; round < 10; round++) {
      add(log, 20);
      await log.flush();
      await clock.advance(1000);
    }
    const { seq } = log.head;
    const expected = Array.from({ length: seq }, (_, index) => seq - index);
    for (const limit of [1000, 7, 1]) expect(await all({}, limit)).toEqual(expected);
    const first = await readAudit(directory, {}, { limit: 5 });
    add(log, 3);
    await log.flush();
    const second = await readAudit(directory, {}, { limit: 5, cursor: first.cursor ?? '' });
    expect(second.records.map((record) => record.seq)).toEqual(expected.slice(5, 10));
    expect(await all({ sandboxId: 's7' }, 3)).toHaveLength(10);
    expect(await all({ operation: 'audit.open' }, 3)).toEqual([1]);
    expect(await all({ keyId: 'nobody' }, 3)).toEqual([]);
    expect(await all({ sandboxId: 's7', sinceMs: 1000 + 8000 }, 3)).toHaveLength(2);
  });

  test('of a sandbox have what many were asked for together', async () => {
    await using log = await open();
    log.append({ operation: 'sandbox.stopMany', outcome: 'ok', sandboxIds: ['a', 'b'] });
    await log.flush();
    expect(await all({ sandboxId: 'b' }, 10)).toHaveLength(1);
    expect(await all({ sandboxId: 'c' }, 10)).toEqual([]);
  });

  test.each(['1-3', '1-99999999', '1', 'x-1', ''])('are refused for a cursor of no page: %s', async (cursor) => {
    await using log = await open();
    await log.flush();
    await expect(readAudit(directory, {}, { cursor, limit: 1 })).rejects.toMatchObject({ code: 'invalid_argument' });
  });
});
