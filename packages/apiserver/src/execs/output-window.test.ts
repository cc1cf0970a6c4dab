import fc from 'fast-check';
import { describe, expect, test } from 'vitest';
import { MemoryBudget } from '../http/memory-budget.ts';
import { OutputWindow, textOf } from './output-window.ts';

const MIB = 1024 * 1024;

describe('a window', () => {
  test('keeps the first quarter and the newest rest, however the output comes', () => {
    fc.assert(
      fc.property(
        fc.array(fc.integer({ min: 0, max: 900 }), { maxLength: 60 }),
        fc.integer({ min: 4, max: 4000 }),
        (sizes, limit) => {
          const window = new OutputWindow(limit, new MemoryBudget(MIB).share());
          const whole = Buffer.from(
            Array.from({ length: sizes.reduce((sum, size) => sum + size, 0) }, (_, i) => i % 251),
          );
          let at = 0;
          for (const size of sizes) window.add(whole.subarray(at, (at += size)));
          const { bytes, dropped } = window.finish();
          const head = Math.floor(limit / 4);
          const expected =
            whole.length <= limit
              ? whole
              : Buffer.concat([whole.subarray(0, head), whole.subarray(whole.length - limit + head)]);
          expect(bytes.equals(expected)).toBe(true);
          expect(dropped).toBe(whole.length - expected.length);
        },
      ),
    );
  });

  test('takes no more memory than there is, and counts what it could not keep', () => {
    const budget = new MemoryBudget(4 * MIB);
    const windows = Array.from({ length: 8 }, () => new OutputWindow(16 * MIB, budget.share()));
    const piece = Buffer.alloc(32_768, 97);
    for (let i = 0; i < 320; i++) for (const window of windows) window.add(piece);
    const kept = windows.map((window) => window.finish());
    for (const { bytes, dropped } of kept) {
      expect(bytes.length + dropped).toBe(320 * piece.length);
      expect(bytes.length).toBeGreaterThanOrEqual(32_768);
    }
    expect(kept.reduce((sum, { bytes }) => sum + bytes.length, 0)).toBeLessThanOrEqual(4 * MIB + 8 * (65_536 + 32_768));
  });

  test('needs none of the budget for little output', () => {
    const budget = new MemoryBudget(0);
    const window = new OutputWindow(MIB, budget.share());
    window.add(Buffer.alloc(65_536, 98));
    expect(window.finish()).toEqual({ bytes: Buffer.alloc(65_536, 98), dropped: 0 });
  });

  test('holds on to nothing of what pieces were cut from', () => {
    const window = new OutputWindow(16 * MIB, new MemoryBudget(64 * MIB).share());
    const source = Buffer.alloc(65_536, 99);
    for (let i = 0; i < 20_000; i++) window.add(source.subarray(i, i + 1));
    // What was kept is a copy.
    source.fill(0);
    expect(window.finish().bytes.equals(Buffer.alloc(20_000, 99))).toBe(true);
  });
});

test('a share is given back once, and is then over', () => {
  const budget = new MemoryBudget(100);
  const share = budget.share();
  expect([share.take(60), share.take(60), budget.free]).toEqual([true, false, 40]);
  share.giveBack();
  share.giveBack();
  expect([budget.free, share.take(1)]).toEqual([100, false]);
});

describe('text', () => {
  test.each([
    ['text', Buffer.from('grüße'), 'grüße', false],
    ['bytes that are none', Buffer.from([0x61, 0xff]), 'a\ufffd', true],
    ['much text', Buffer.alloc(2 * MIB, 97), 'a'.repeat(2 * MIB), false],
    ['much that is none', Buffer.alloc(2 * MIB, 0xff), '', true],
    ['much that JSON makes six times as long', Buffer.alloc(2 * MIB), '', true],
  ])('of %s', (_name, bytes, text, hasBytes) => {
    const given = textOf(bytes);
    expect(given.text === text).toBe(true);
    expect(given.base64).toBe(hasBytes ? bytes.toString('base64') : undefined);
    expect(JSON.stringify(given).length).toBeLessThan(Math.max(64, 2.5 * bytes.length));
  });
});
