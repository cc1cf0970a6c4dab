import { causeOf } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { aPolicy, aRecord } from '../tests/records.ts';
import { ENDED_KEPT_MS, MAX_ENDED, Registry } from './registry.ts';
import { Sandbox, stateOfRecord } from './sandbox.ts';
import type { SandboxRecord } from './sandbox-record.ts';

const sandboxOf = (...parameters: Parameters<typeof aRecord>): Sandbox => {
  const record = aRecord(...parameters);
  return new Sandbox(record, stateOfRecord(record));
};
const ended = (id: string, endedAtMs: number): Sandbox =>
  sandboxOf(id, { phase: 'stopped', cause: causeOf('stopped', ''), endedAtMs, createdAtMs: endedAtMs });

/** All pages, one after the other; `between` runs after each. */
function everyPage(registry: Registry, limit: number, between: () => void = () => undefined): readonly string[] {
  const ids: string[] = [];
  let cursor: string | undefined;
  do {
    const page = registry.list({ project: 'p' }, { cursor, limit });
    ids.push(...page.sandboxes.map(({ sandboxId }) => sandboxId));
    expect(page.sandboxes.length).toBeLessThanOrEqual(limit);
    cursor = page.cursor;
    between();
  } while (cursor !== undefined);
  return ids;
}

describe('the registry', () => {
  it('L19: filters by exact metadata, special characters included, by project and by state', () => {
    const registry = new Registry();
    const odd = { 'a=b&c %/ü': '☕ "x"', __proto__x: 'y' };
    registry.add(sandboxOf('sa', { metadata: odd }));
    registry.add(sandboxOf('sb', { metadata: { 'a=b&c %/ü': '☕' } }));
    registry.add(sandboxOf('sc', { metadata: odd, project: 'other' }));
    registry.add(ended('sd', 5));
    const find = (filter: Partial<Parameters<Registry['select']>[0]>) =>
      registry.select({ project: 'p', ...filter }).map(({ sandboxId }) => sandboxId);
    expect(find({ metadata: { 'a=b&c %/ü': '☕ "x"' } })).toEqual(['sa']);
    expect(find({ metadata: { 'a=b&c %/ü': '☕ ' } })).toEqual([]);
    expect(find({ metadata: { constructor: 'x' } })).toEqual([]);
    expect(find({ project: 'other' })).toEqual(['sc']);
    expect(find({ states: ['stopped'] })).toEqual(['sd']);
    expect(find({})).toEqual(['sa', 'sb', 'sd']);
  });

  it('L19: pages show exactly those that are there throughout, in the order of creation, whatever comes and goes', () => {
    const creation = fc.record({
      id: fc.stringMatching(/^[a-z0-9]{1,6}$/),
      createdAtMs: fc.integer({ min: 0, max: 30 }),
    });
    fc.assert(
      fc.property(
        fc.uniqueArray(creation, { maxLength: 60, selector: ({ id }) => id }),
        fc.integer({ min: 1, max: 7 }),
        fc.nat(60),
        (all, limit, kept) => {
          const registry = new Registry();
          const before = all.slice(0, kept);
          const later = all.slice(kept);
          for (const { id, createdAtMs } of before) registry.add(sandboxOf(id, { createdAtMs }));
          const ids = everyPage(registry, limit, () => {
            const next = later.pop();
            if (next !== undefined) registry.add(sandboxOf(next.id, { createdAtMs: next.createdAtMs }));
          });
          const order = (a: (typeof all)[number], b: (typeof all)[number]) =>
            a.createdAtMs - b.createdAtMs || (a.id < b.id ? -1 : 1);
          const expected = before.toSorted(order).map(({ id }) => id);
          expect(new Set(ids).size).toBe(ids.length);
          expect(ids.filter((id) => expected.includes(id))).toEqual(expected);
        },
      ),
    );
  });

  const metadata = Object.fromEntries(Array.from({ length: 64 }, (_, index) => [`key ${index}`, '"'.repeat(1024)]));
  const services = Object.fromEntries(
    Array.from({ length: 64 }, (_, index) => [`${10 + index}`.padEnd(64, 's'), false]),
  );
  const network = { default: 'deny', rules: [], services, ipLiterals: true } as const;
  const toolkits = Array.from({ length: 32 }, (_, index) => `${10 + index}`.padEnd(255, 't'));
  it.each<[string, number, Partial<SandboxRecord>]>([
    ['metadata', 40, { metadata }],
    ['services', 900, { policy: aPolicy({ network }) }],
    ['toolkits', 500, { toolkits }],
  ])('cuts a page that would not fit one answer for its %s, and goes on behind the cut', (_, count, changes) => {
    const registry = new Registry();
    for (let index = 0; index < count; index++) registry.add(sandboxOf(`s${1000 + index}`, changes));
    const page = registry.list({ project: 'p' }, { limit: 1000 });
    expect(page.sandboxes.length).toBeLessThan(count);
    expect(Buffer.byteLength(JSON.stringify(page.sandboxes.map((sandbox) => sandbox.info())))).toBeLessThan(
      4 * 1024 * 1024,
    );
    expect(everyPage(registry, 1000)).toHaveLength(count);
  });

  it('refuses a cursor that no list returned', () => {
    const registry = new Registry();
    for (const cursor of [
      '',
      'x',
      Buffer.from('1:A').toString('base64url'),
      Buffer.from(`${'9'.repeat(30)}:a`).toString('base64url'),
    ]) {
      expect(() => registry.list({ project: 'p' }, { cursor, limit: 1 })).toThrow('cursor');
    }
  });

  it('forgets ended sandboxes by age and by number, oldest first, and never a live one', () => {
    const registry = new Registry();
    registry.add(sandboxOf('live', { createdAtMs: 0 }));
    for (let index = 0; index < 5; index++) {
      const sandbox = ended(`old${index}`, index);
      registry.add(sandbox);
      registry.noteEnded(sandbox);
    }
    expect(registry.prune(ENDED_KEPT_MS + 1).map(({ sandboxId }) => sandboxId)).toEqual(['old0', 'old1']);
    for (let index = 0; index < MAX_ENDED; index++) {
      const sandbox = ended(`new${index}`, 10 + index);
      registry.add(sandbox);
      registry.noteEnded(sandbox);
    }
    expect(registry.prune(20).map(({ sandboxId }) => sandboxId)).toEqual(['old2', 'old3', 'old4']);
    expect(registry.endedCount).toBe(MAX_ENDED);
    expect(registry.get('live')).toBeDefined();
    expect(registry.get('old4')).toBeUndefined();
    expect(registry.select({ project: 'p' })).toHaveLength(MAX_ENDED + 1);
  });
});
