import { describe, expect, it } from 'vitest';
import { aRecord } from '../tests/records.ts';
import { IdempotencyIndex, type Claim } from './idempotency.ts';
import { Sandbox } from './sandbox.ts';

const claim = (changes: Partial<Claim> = {}): Claim => ({ key: 'k', fingerprint: 'f', index: 0, count: 2, ...changes });
const sandbox = (sandboxId: string, of: Claim) => new Sandbox(aRecord(sandboxId, { idempotency: of }));

describe('the index of idempotency keys', () => {
  it('finds each sandbox of a bulk create by its place, in its own project only', () => {
    const index = new IdempotencyIndex();
    const [first, second] = [sandbox('sa', claim()), sandbox('sb', claim({ index: 1 }))];
    index.add(first);
    index.add(second);
    expect(index.find('p', claim())).toBe(first);
    expect(index.find('p', claim({ index: 1 }))).toBe(second);
    expect(index.find('other', claim())).toBeUndefined();
  });

  it('refuses the key for another request or another number', () => {
    const index = new IdempotencyIndex();
    index.add(sandbox('sa', claim()));
    for (const other of [{ fingerprint: 'g' }, { count: 1 }]) {
      expect(() => index.find('p', claim(other))).toThrow('another request');
    }
  });

  it('forgets a key with its last sandbox, and lets nobody else take it away', () => {
    const index = new IdempotencyIndex();
    const [failed, made] = [sandbox('sa', claim()), sandbox('sb', claim())];
    index.add(failed);
    index.add(made);
    index.remove(failed);
    expect(index.find('p', claim())).toBe(made);
    index.remove(made);
    expect(index.size).toBe(0);
    expect(index.find('p', claim({ fingerprint: 'g' }))).toBeUndefined();
  });
});
