import { causeKinds, causeOf } from '@dsec/contract';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import {
  causeIn,
  initialState,
  isFailure,
  isLive,
  isOver,
  publicState,
  transition,
  type Effect,
  type MachineState,
  type Phase,
  type SandboxEvent,
  type SandboxEventType,
} from './sandbox-machine.ts';

/** One cell: the phase that follows, the kind of cause it then has, and the effects. */
type Cell = readonly [Phase, string | null, ...Effect[]];

const ending = ['journal', 'disconnect', 'destroy'] as const;
const over = ['journal', 'release'] as const;

const examples: { readonly [T in SandboxEventType]: Extract<SandboxEvent, { readonly type: T }> } = {
  created: { type: 'created' },
  create_failed: { type: 'create_failed', cause: causeOf('image', 'a layer is broken') },
  cancelled: { type: 'cancelled' },
  stop_requested: { type: 'stop_requested' },
  ttl_ended: { type: 'ttl_ended' },
  idle_ended: { type: 'idle_ended' },
  channel_lost: { type: 'channel_lost', detail: 'the channel broke' },
  exited: { type: 'exited', exit: { signal: 9 } },
  adopted: { type: 'adopted' },
  lost: { type: 'lost', rebooted: true },
  cleanup_done: { type: 'cleanup_done' },
  cleanup_failed: { type: 'cleanup_failed' },
};

const states: Readonly<Record<Phase, MachineState>> = {
  creating: { phase: 'creating' },
  running: { phase: 'running' },
  stopping: { phase: 'stopping', cause: causeOf('stopped', '') },
  stopped: { phase: 'stopped', cause: causeOf('stopped', '') },
  failing: { phase: 'failing', cause: causeOf('oom', '') },
  failed: { phase: 'failed', cause: causeOf('oom', '') },
};

/** The whole machine. The type demands every cell. */
const table: Readonly<Record<Phase, Readonly<Record<SandboxEventType, Cell>>>> = {
  creating: {
    created: ['running', null, 'arm'],
    create_failed: ['failing', 'image', ...ending],
    cancelled: ['stopping', 'cancelled', ...ending],
    stop_requested: ['stopping', 'stopped', ...ending],
    ttl_ended: ['stopping', 'ttl', ...ending],
    idle_ended: ['creating', null],
    channel_lost: ['failing', 'runtime', ...ending],
    exited: ['failing', 'runtime', ...ending],
    adopted: ['running', null, 'arm'],
    lost: ['failing', 'node_lost', ...ending],
    cleanup_done: ['creating', null],
    cleanup_failed: ['creating', null],
  },
  running: {
    created: ['running', null],
    create_failed: ['running', null],
    cancelled: ['running', null],
    stop_requested: ['stopping', 'stopped', ...ending],
    ttl_ended: ['stopping', 'ttl', ...ending],
    idle_ended: ['stopping', 'idle', ...ending],
    channel_lost: ['failing', 'runtime', ...ending],
    exited: ['failing', 'runtime', ...ending],
    adopted: ['running', null, 'arm'],
    lost: ['failing', 'node_lost', ...ending],
    cleanup_done: ['running', null],
    cleanup_failed: ['running', null],
  },
  stopping: {
    created: ['stopping', 'stopped'],
    create_failed: ['stopping', 'stopped'],
    cancelled: ['stopping', 'stopped'],
    stop_requested: ['stopping', 'stopped'],
    ttl_ended: ['stopping', 'stopped'],
    idle_ended: ['stopping', 'stopped'],
    channel_lost: ['stopping', 'stopped'],
    exited: ['stopping', 'stopped'],
    adopted: ['stopping', 'stopped', 'destroy'],
    lost: ['stopping', 'stopped', 'destroy'],
    cleanup_done: ['stopped', 'stopped', ...over],
    cleanup_failed: ['stopping', 'stopped', 'retry'],
  },
  failing: {
    created: ['failing', 'oom'],
    create_failed: ['failing', 'oom'],
    cancelled: ['failing', 'oom'],
    stop_requested: ['failing', 'oom'],
    ttl_ended: ['failing', 'oom'],
    idle_ended: ['failing', 'oom'],
    channel_lost: ['failing', 'oom'],
    exited: ['failing', 'oom'],
    adopted: ['failing', 'oom', 'destroy'],
    lost: ['failing', 'oom', 'destroy'],
    cleanup_done: ['failed', 'oom', ...over],
    cleanup_failed: ['failing', 'oom', 'retry'],
  },
  stopped: everyEventIgnored('stopped', 'stopped'),
  failed: everyEventIgnored('failed', 'oom'),
};

function everyEventIgnored(phase: Phase, kind: string): Record<SandboxEventType, Cell> {
  const cell: Cell = [phase, kind];
  return {
    created: cell,
    create_failed: cell,
    cancelled: cell,
    stop_requested: cell,
    ttl_ended: cell,
    idle_ended: cell,
    channel_lost: cell,
    exited: cell,
    adopted: cell,
    lost: cell,
    cleanup_done: cell,
    cleanup_failed: cell,
  };
}

const eventArbitrary: fc.Arbitrary<SandboxEvent> = fc.oneof(
  fc.constantFrom(...Object.values(examples)),
  fc.record({
    type: fc.constant('create_failed' as const),
    cause: fc.constantFrom(...causeKinds.map((kind) => causeOf(kind, 'x'))),
  }),
  fc.record({
    type: fc.constant('exited' as const),
    exit: fc.record({
      exitCode: fc.option(fc.integer({ min: 0, max: 255 }), { nil: undefined }),
      signal: fc.option(fc.integer({ min: 1, max: 64 }), { nil: undefined }),
      hint: fc.constantFrom(undefined, 'oom' as const, 'disk' as const, 'pids' as const),
    }),
  }),
  fc.record({ type: fc.constant('lost' as const), rebooted: fc.boolean() }),
);

const path = fc.array(eventArbitrary, { maxLength: 40 });

describe('the sandbox machine', () => {
  for (const [phase, row] of Object.entries(table)) {
    for (const [type, [next, kind, ...effects]] of Object.entries(row)) {
      it(`in ${phase}, ${type} leads to ${next}${effects.length > 0 ? ` with ${effects.join(', ')}` : ''}`, () => {
        const result = transition(states[phase as Phase], examples[type as SandboxEventType]);
        expect(result.state.phase).toBe(next);
        expect(causeIn(result.state)?.kind ?? null).toBe(kind);
        expect(result.effects).toEqual(effects);
      });
    }
  }

  it('shows a failing sandbox as failed and every other phase as it is', () => {
    expect(Object.values(states).map(publicState)).toEqual([
      'creating',
      'running',
      'stopping',
      'stopped',
      'failed',
      'failed',
    ]);
  });

  it('names the limit that the first process met, and calls a clean end of a running sandbox completed', () => {
    const kindOf = (state: MachineState, exit: Extract<SandboxEvent, { type: 'exited' }>['exit']) =>
      causeIn(transition(state, { type: 'exited', exit }).state)?.kind;
    expect(kindOf(states.running, { exitCode: 0 })).toBe('completed');
    expect(kindOf(states.creating, { exitCode: 0 })).toBe('runtime');
    expect(kindOf(states.running, { exitCode: 1 })).toBe('runtime');
    for (const hint of ['oom', 'disk', 'pids'] as const) expect(kindOf(states.running, { signal: 9, hint })).toBe(hint);
    expect(kindOf(states.running, {})).toBe('runtime');
  });

  it('says that a sandbox lost by a reboot is infrastructure, and one that only vanished too', () => {
    for (const rebooted of [true, false]) {
      const cause = causeIn(transition(states.running, { type: 'lost', rebooted }).state);
      expect(cause).toMatchObject({ kind: rebooted ? 'node_lost' : 'runtime', infrastructure: true });
    }
  });
});

describe('on every path through the machine', () => {
  /** Runs the events and hands each step to `check`. */
  const along = (
    events: readonly SandboxEvent[],
    check: (before: MachineState, after: MachineState, effects: readonly Effect[]) => void,
  ) => {
    let state = initialState;
    for (const event of events) {
      const result = transition(state, event);
      check(state, result.state, result.effects);
      state = result.state;
    }
    return state;
  };

  it('1, 2, 5: the first cause comes with the end, stays, and alone decides whether it is a failure', () => {
    fc.assert(
      fc.property(path, (events) => {
        along(events, (before, after) => {
          const cause = causeIn(after);
          expect(cause === null).toBe(isLive(after));
          if (causeIn(before) !== null) expect(cause).toBe(causeIn(before));
          if (cause !== null) expect(publicState(after) === 'failed').toBe(isFailure(cause));
        });
      }),
    );
  });

  it('3: an ended sandbox never lives again and nothing leaves stopped or failed', () => {
    fc.assert(
      fc.property(path, (events) => {
        along(events, (before, after, effects) => {
          if (!isLive(before)) expect(isLive(after)).toBe(false);
          if (isOver(before)) {
            expect(after).toBe(before);
            expect(effects).toEqual([]);
          }
        });
      }),
    );
  });

  it('4, 6: what admission reserved is released once, after a destroy, and each end is journalled', () => {
    fc.assert(
      fc.property(path, (events) => {
        let released = 0;
        let destroyed = 0;
        const last = along(events, (before, after, effects) => {
          destroyed += effects.filter((effect) => effect === 'destroy').length;
          if (effects.includes('release')) {
            released += 1;
            expect(destroyed).toBeGreaterThan(0);
          }
          if (isLive(before) !== isLive(after) || isOver(before) !== isOver(after))
            expect(effects).toContain('journal');
        });
        expect(released).toBe(isOver(last) ? 1 : 0);
      }),
    );
  });

  it('7: once ended, cleanup_done alone brings it to its end', () => {
    fc.assert(
      fc.property(path, (events) => {
        const state = along([...events, { type: 'stop_requested' }], () => undefined);
        expect(isOver(transition(state, { type: 'cleanup_done' }).state)).toBe(true);
      }),
    );
  });
});
