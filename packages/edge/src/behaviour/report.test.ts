import type { Act } from '@dsec/backends';
import { BehaviourEventSchema, behaviourKinds, BehaviourReportSchema, limits } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { MAX_REPORT_BYTES } from './bounds.ts';
import { RecentCommands } from './recent-commands.ts';
import { Report } from './report.ts';
import { processOf, toldOf } from './told.ts';

const schema = compileSchema(BehaviourReportSchema);
const act = (more: Partial<Act>): Act => ({
  sandboxId: 's1',
  atMs: 10,
  kind: 'call',
  outcome: 'EPERM',
  count: 1,
  ...more,
});
const add = (report: Report, more: Partial<Act>, by: Parameters<Report['add']>[0]['by'] = {}): void =>
  report.add({ told: toldOf(act(more)), atMs: more.atMs ?? 10, count: more.count ?? 1, by }, MAX_REPORT_BYTES);

describe('what is told of an act', () => {
  it.each<[string, Partial<Act>]>([
    ['bpf', { call: 'bpf' }],
    ['ioctl TIOCSTI', { call: 'ioctl', argument: 'TIOCSTI' }],
    ['/proc/keys', { kind: 'open', path: '/proc/keys' }],
    ['/root/key', { kind: 'tripwire', path: '/root/key', argument: 'execute' }],
    ['tcp 192.0.2.7:443', { kind: 'connect', protocol: 'tcp', address: '192.0.2.7', port: 443 }],
    ['udp [2001:db8::1]:53', { kind: 'connect', protocol: 'udp', address: '2001:db8::1', port: 53 }],
    ['icmp 192.0.2.7', { kind: 'connect', protocol: 'icmp', address: '192.0.2.7' }],
    ['tcp 192.0.2.7:443 a.test', { kind: 'connect', protocol: 'tcp', address: '192.0.2.7', port: 443, name: 'a.test' }],
    ['a.test TXT', { kind: 'name', name: 'a.test', type: 16 }],
    ['a.test TYPE999', { kind: 'name', name: 'a.test', type: 999 }],
    ['pypi.internal/simple/x', { kind: 'service', name: 'pypi.internal/simple/x' }],
  ])('%s', (what, more) => {
    expect(toldOf(act(more)).what).toBe(what);
  });
});

describe('a report', () => {
  it('counts the like of it together, with the first and the last time and who did it', () => {
    const report = new Report('s1', ['/root/key']);
    const process = { pid: 7, uid: 0, comm: 'a', argv: ['a'] };
    add(report, { call: 'bpf', atMs: 20, count: 3 }, { process, execId: 'e1', command: ['sh', '-c', 'a'] });
    add(
      report,
      { call: 'bpf', atMs: 10 },
      { process: { ...process, pid: 8 }, execId: 'e1', command: ['sh', '-c', 'a'] },
    );
    add(report, { call: 'bpf', atMs: 30 }, { process, execId: 'e2' });
    add(report, { call: 'keyctl' });
    const shown = report.show();
    expect(schema.is(shown)).toBe(true);
    expect(shown).toMatchObject({ counts: { call: 6, open: 0 }, withoutEntry: 0, tripwires: ['/root/key'] });
    expect(shown.entries).toMatchObject([
      { what: 'bpf', count: 5, firstAtMs: 10, lastAtMs: 30, samples: [{ execId: 'e1' }, { execId: 'e2' }] },
      { what: 'keyctl', count: 1, samples: [{ atMs: 10 }] },
    ]);
  });

  it('is bounded in entries, and counts what has none', () => {
    const report = new Report('s1');
    const count = limits.behaviourEntries + 50;
    for (let index = 0; index < count; index++)
      add(report, { kind: 'name', name: `${index}.evil.test`, type: 1, count: 2 });
    add(report, { kind: 'name', name: '0.evil.test', type: 1 });
    const { counts, entries, withoutEntry } = report.show();
    expect([counts.name, entries.length, withoutEntry]).toEqual([2 * count + 1, limits.behaviourEntries, 100]);
    expect(entries[0]?.count).toBe(3);
  });

  it('is bounded in bytes, whatever programs call themselves', () => {
    const report = new Report('s1');
    const long = 'x'.repeat(4096);
    for (let index = 0; index < 1000; index++) {
      const process = processOf({
        pid: 1,
        ancestors: [],
        session: 1,
        uid: 0,
        comm: long,
        argv: [`${index}${long}`, long],
      });
      add(report, { kind: 'open', path: `${index % 100}${long}` }, { process, command: [long] });
    }
    expect(report.bytes).toBeLessThanOrEqual(MAX_REPORT_BYTES);
    expect(JSON.stringify(report.show()).length).toBeLessThan(2 * MAX_REPORT_BYTES);
    expect(report.show().counts.open).toBe(1000);
    expect(report.show().withoutEntry).toBeGreaterThan(0);
  });

  it('comes back from its text, and goes on', () => {
    const report = new Report('s1');
    report.absentTripwires = ['/gone'];
    add(report, { call: 'bpf' }, { process: { pid: 7, uid: 0, comm: 'a', argv: ['a'] }, execId: 'e1' });
    const again = Report.parse(JSON.stringify(report.show()));
    expect(again?.show()).toEqual(report.show());
    expect(again?.bytes).toBe(report.bytes);
    if (again !== undefined) add(again, { call: 'bpf' });
    expect(again?.show().entries[0]?.count).toBe(2);
    for (const text of ['', 'x', '{}', '[]', 'null', '{"sandboxId":"s1"}']) expect(Report.parse(text)).toBeUndefined();
  });
});

describe('fuzz: acts', () => {
  it('of any content fit the contract', () => {
    const event = compileSchema(BehaviourEventSchema);
    const text = fc.option(fc.string({ unit: 'binary', maxLength: 3000 }), { nil: undefined });
    const acts = fc.record({
      kind: fc.constantFrom(...behaviourKinds),
      call: text,
      argument: text,
      path: text,
      name: text,
      address: text,
      protocol: text,
      type: fc.option(fc.nat(65_535), { nil: undefined }),
      port: fc.option(fc.nat(65_535), { nil: undefined }),
      outcome: fc.string({ unit: 'binary', maxLength: 100 }),
      argv: fc.array(fc.string({ unit: 'binary', maxLength: 500 }), { maxLength: 64 }),
    });
    fc.assert(
      fc.property(acts, ({ argv, ...more }) => {
        const process = processOf({ pid: 1, ancestors: [], session: 1, uid: 0, comm: argv[0] ?? '', argv });
        const told = { cursor: '1-1', atMs: 1, sandboxId: 's1', keyId: 'k', count: 1, ...toldOf(act(more)), process };
        expect(event.parse(told)).toBe(told);
        const report = new Report('s1');
        report.add({ told, atMs: 1, count: 1, by: { process } }, MAX_REPORT_BYTES);
        expect(Report.parse(JSON.stringify(report.show()))?.show()).toEqual(report.show());
      }),
      { numRuns: 300 },
    );
  });
});

describe('commands', () => {
  it('are remembered up to a bound, each cut, the newest of all sandboxes', () => {
    const commands = new RecentCommands(2);
    commands.note('s1', { execId: 'a', argv: ['sh', 'x'.repeat(10_000)] });
    commands.note('s1', { execId: 'b', shell: { script: 'echo hello' } });
    expect(commands.get('s1', 'a')?.join(' ').length).toBeLessThan(1024);
    expect(commands.get('s1', 'b')).toEqual(['echo hello']);
    expect(commands.get('s2', 'a')).toBeUndefined();
    commands.note('s2', { execId: 'a', argv: [1, 'true'] });
    commands.note('s2', { execId: 7, argv: ['true'] });
    expect([commands.size, commands.get('s1', 'a'), commands.get('s2', 'a')]).toEqual([2, undefined, ['true']]);
    expect(commands.orderOf('s1', 'b')).toBeLessThan(commands.orderOf('s2', 'a'));
  });
});
