import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  capacityOf,
  checkPressure,
  Ledger,
  PID_RESERVE,
  resources,
  type Amounts,
  type Demand,
  type Reservation,
} from './admission.ts';

const limits: Amounts = { memoryMib: 1000, pids: 100, diskMib: 5000, sandboxes: 4 };
const small: Demand = { memoryMib: 10, pids: 1, diskMib: 10 };

function refusal(action: () => unknown): PlatformError {
  try {
    action();
  } catch (error) {
    if (PlatformError.is(error)) return error;
    throw error;
  }
  throw new Error('it was admitted');
}

describe('admission', () => {
  it('names the resource that is short, its limit, what is used and what was asked for', () => {
    const shortages = [
      ['memoryMib', { ...small, memoryMib: 991 }],
      ['pids', { ...small, pids: 100 }],
      ['diskMib', { ...small, diskMib: 4991 }],
    ] as const;
    for (const [resource, demand] of shortages) {
      const ledger = new Ledger(limits);
      ledger.reserve(small);
      const error = refusal(() => ledger.reserve(demand));
      expect(error.code).toBe('no_capacity');
      expect(error.status).toBe(507);
      expect(error.details).toEqual({
        resource,
        limit: limits[resource],
        current: small[resource],
        requested: demand[resource],
      });
    }
    const ledger = new Ledger(limits);
    for (let count = 0; count < limits.sandboxes; count++) ledger.reserve(small);
    expect(refusal(() => ledger.reserve(small)).details).toEqual({
      resource: 'sandboxes',
      limit: 4,
      current: 4,
      requested: 1,
    });
  });

  it('gives back exactly what was reserved, once', () => {
    const ledger = new Ledger(limits);
    const reservation = ledger.reserve(small);
    expect(ledger.used).toEqual({ ...small, sandboxes: 1 });
    expect([reservation.release(), reservation.release()]).toEqual([true, false]);
    expect(ledger.used).toEqual({ memoryMib: 0, pids: 0, diskMib: 0, sandboxes: 0 });
  });

  it('counts an adopted sandbox even where it would not be admitted, and then admits nothing', () => {
    const ledger = new Ledger({ ...limits, memoryMib: 5 });
    ledger.adopt(small);
    expect(ledger.used.memoryMib).toBe(10);
    expect(refusal(() => ledger.reserve({ ...small, memoryMib: 1 })).details.resource).toBe('memoryMib');
  });

  it('never promises more than its limits, holds nothing after a refusal, and is empty when all is released', () => {
    const amount = fc.integer({ min: 1, max: 600 });
    const step = fc.oneof(fc.record({ memoryMib: amount, pids: amount, diskMib: amount }), fc.nat({ max: 8 }));
    fc.assert(
      fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
        const ledger = new Ledger(limits);
        const held: { readonly reservation: Reservation; readonly demand: Demand }[] = [];
        for (const action of steps) {
          if (typeof action === 'number') {
            held.splice(action, 1)[0]?.reservation.release();
          } else {
            const before = ledger.used;
            try {
              held.push({ reservation: ledger.reserve(action), demand: action });
            } catch {
              expect(ledger.used).toEqual(before);
            }
          }
          for (const resource of resources) expect(ledger.used[resource]).toBeLessThanOrEqual(limits[resource]);
          expect(ledger.used.memoryMib).toBe(held.reduce((sum, { demand }) => sum + demand.memoryMib, 0));
          expect(ledger.used.sandboxes).toBe(held.length);
        }
        for (const { reservation } of held) reservation.release();
        expect(ledger.used).toEqual({ memoryMib: 0, pids: 0, diskMib: 0, sandboxes: 0 });
      }),
    );
  });
});

describe('capacity', () => {
  const node = { memoryMib: 1000, diskMib: 2000, pidMax: 32_768 };
  const factors = { sandboxes: 4096, memoryOvercommit: 8, diskOvercommit: 4, pidsOvercommit: 2 };

  it('is what the node has times its overcommit, with some pids kept for the node itself', () => {
    expect(capacityOf(node, factors)).toEqual({
      memoryMib: 8000,
      diskMib: 8000,
      pids: (32_768 - PID_RESERVE) * 2,
      sandboxes: 4096,
    });
  });

  it('is what the operator says where he says it', () => {
    expect(capacityOf(node, { ...factors, memoryMib: 10, diskMib: 20, pids: 30, sandboxes: 7 })).toEqual({
      memoryMib: 80,
      diskMib: 80,
      pids: 60,
      sandboxes: 7,
    });
  });
});

describe('the pressure check', () => {
  const floor = { minDiskFreeMib: 100, minMemoryAvailableMib: 50, maxMemoryStallPercent: 40 };
  const calm = { diskFreeMib: 100, memoryAvailableMib: 50, memoryStallPercent: 40 };

  it('admits at its limits and refuses beyond each of them by name', () => {
    expect(() => checkPressure(calm, floor)).not.toThrow();
    const tight = { diskFreeMib: 99, memoryAvailableMib: 49, memoryStallPercent: 41 } as const;
    for (const [resource, current] of Object.entries(tight)) {
      const error = refusal(() => checkPressure({ ...calm, [resource]: current }, floor));
      expect(error.code).toBe('no_capacity');
      expect(error.details).toMatchObject({ resource, current });
    }
  });
});
