import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { DeadlineHeap } from './deadline-heap.ts';

const key = fc.integer({ min: 0, max: 12 });
const command = fc.oneof(
  fc.record({ do: fc.constant('set' as const), key, atMs: fc.integer({ min: 0, max: 50 }) }),
  fc.record({ do: fc.constant('delete' as const), key }),
  fc.record({ do: fc.constant('take' as const), nowMs: fc.integer({ min: 0, max: 50 }) }),
);

describe('the deadline heap', () => {
  it('does what a map searched for its least deadline would do', () => {
    fc.assert(
      fc.property(fc.array(command, { maxLength: 120 }), (commands) => {
        const heap = new DeadlineHeap<number>();
        const model = new Map<number, number>();
        for (const action of commands) {
          if (action.do === 'set') {
            heap.set(action.key, action.atMs);
            model.set(action.key, action.atMs);
          } else if (action.do === 'delete') {
            heap.delete(action.key);
            model.delete(action.key);
          } else {
            const taken = heap.takeDue(action.nowMs);
            const least = Math.min(...model.values());
            if (taken === undefined) expect(least).toBeGreaterThan(action.nowMs);
            else {
              expect(model.get(taken)).toBe(least);
              model.delete(taken);
            }
          }
          expect(heap.size).toBe(model.size);
          expect(heap.nextMs ?? Infinity).toBe(Math.min(...model.values()));
          for (const [each, atMs] of model) expect(heap.deadlineOf(each)).toBe(atMs);
        }
      }),
      { numRuns: 300 },
    );
  });
});
