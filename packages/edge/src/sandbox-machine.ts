/**
 * The life of a sandbox as a pure function. Nothing here waits, reads a clock or touches the node: `transition` says what the next
 * phase is and which effects the lifecycle has to carry out.
 *
 *     creating --created--> running --(stop, ttl, idle, completed)--> stopping --cleanup_done--> stopped
 *        |                     |
 *        +------ (any end) ----+------(exit, channel, loss)---------> failing  --cleanup_done--> failed
 *
 * `failing` is shown to callers as `failed`: the sandbox is over and says why, while its remains are still being removed. Pausing,
 * paused and resuming will stand between `running` and itself; they are live phases and change none of the invariants.
 *
 * Invariants (the tests name them by number):
 *  1. A live phase (creating, running) has no cause; every other phase has exactly one.
 *  2. The first cause wins: no event replaces a cause.
 *  3. No event leads from an ended phase back to a live one, and none leaves stopped or failed.
 *  4. `release` is emitted exactly once on every path, on entering stopped or failed, and never before a `destroy`.
 *  5. Whether an end is a failure depends on its cause alone.
 *  6. Every change of phase out of a live one, and every entry into stopped or failed, is journalled.
 *  7. Whatever its order of events, a sandbox that has left the live phases reaches stopped or failed by `cleanup_done` alone.
 */
import { causeOf, type Cause, type CauseKind, type SandboxState } from '@dsec/contract';

export const phases = ['creating', 'running', 'stopping', 'stopped', 'failing', 'failed'] as const;
export type Phase = (typeof phases)[number];

export type MachineState =
  | { readonly phase: 'creating' | 'running' }
  | { readonly phase: 'stopping' | 'stopped' | 'failing' | 'failed'; readonly cause: Cause };

/** How the first process of a sandbox ended, and which limit the kernel's counters say it met. */
export interface Exit {
  readonly exitCode?: number | undefined;
  readonly signal?: number | undefined;
  readonly hint?: 'oom' | 'disk' | 'pids' | undefined;
}

export type SandboxEvent =
  /** The backend made it and aether answered. */
  | { readonly type: 'created' }
  | { readonly type: 'create_failed'; readonly cause: Cause }
  /** The caller of the create lost interest before it was answered. */
  | { readonly type: 'cancelled' }
  | { readonly type: 'stop_requested' }
  | { readonly type: 'ttl_ended' }
  | { readonly type: 'idle_ended' }
  /** The channel to aether broke and could not be opened again, or what came out of it is not the protocol. */
  | { readonly type: 'channel_lost'; readonly detail: string }
  | { readonly type: 'exited'; readonly exit: Exit }
  /** After a restart: the node still has it. */
  | { readonly type: 'adopted' }
  /** After a restart: the node no longer has it. */
  | { readonly type: 'lost'; readonly rebooted: boolean }
  | { readonly type: 'cleanup_done' }
  | { readonly type: 'cleanup_failed' };
export type SandboxEventType = SandboxEvent['type'];

export type Effect =
  /** Write the record; what it shows is acknowledged only when it is durable. */
  | 'journal'
  /** Let ttl and idle timeout run. */
  | 'arm'
  /** End every stream of the sandbox and its channel. */
  | 'disconnect'
  /** Remove it from the node. */
  | 'destroy'
  /** Remove it again, after a pause. */
  | 'retry'
  /** Give back what admission reserved. */
  | 'release';

export interface Transition {
  readonly state: MachineState;
  readonly effects: readonly Effect[];
}

export const initialState: MachineState = { phase: 'creating' };

const failures: ReadonlySet<CauseKind> = new Set<CauseKind>([
  'oom',
  'disk',
  'pids',
  'node_lost',
  'image',
  'runtime',
  'internal',
]);

/** Whether a sandbox that ended for this cause failed, or was stopped. */
export const isFailure = (cause: Cause): boolean => failures.has(cause.kind);

export const isLive = (state: MachineState): boolean => state.phase === 'creating' || state.phase === 'running';

/** Nothing of it is left on the node. */
export const isOver = (state: MachineState): boolean => state.phase === 'stopped' || state.phase === 'failed';

export const causeIn = (state: MachineState): Cause | null => ('cause' in state ? state.cause : null);

/** The phase as the API shows it. */
export const publicState = (state: MachineState): SandboxState => (state.phase === 'failing' ? 'failed' : state.phase);

export function transition(state: MachineState, event: SandboxEvent): Transition {
  switch (state.phase) {
    case 'creating':
      return whileCreating(state, event);
    case 'running':
      return whileRunning(state, event);
    case 'stopping':
    case 'failing':
      return whileEnding(state, event);
    case 'stopped':
    case 'failed':
      return ignored(state);
  }
}

function whileCreating(state: MachineState, event: SandboxEvent): Transition {
  switch (event.type) {
    case 'created':
    case 'adopted':
      return { state: { phase: 'running' }, effects: ['arm'] };
    case 'cancelled':
      return ended(causeOf('cancelled', 'The caller cancelled the creation.'));
    case 'exited':
      return ended(causeOfExit(event.exit, 'creating'));
    case 'create_failed':
    case 'stop_requested':
    case 'ttl_ended':
    case 'channel_lost':
    case 'lost':
      return ended(causeOfEnd(event));
    case 'idle_ended':
    case 'cleanup_done':
    case 'cleanup_failed':
      return ignored(state);
  }
}

function whileRunning(state: MachineState, event: SandboxEvent): Transition {
  switch (event.type) {
    case 'adopted':
      return { state, effects: ['arm'] };
    case 'exited':
      return ended(causeOfExit(event.exit, 'running'));
    case 'stop_requested':
    case 'ttl_ended':
    case 'idle_ended':
    case 'channel_lost':
    case 'lost':
      return ended(causeOfEnd(event));
    case 'created':
    case 'create_failed':
    case 'cancelled':
    case 'cleanup_done':
    case 'cleanup_failed':
      return ignored(state);
  }
}

function whileEnding(state: Extract<MachineState, { readonly cause: Cause }>, event: SandboxEvent): Transition {
  switch (event.type) {
    case 'cleanup_done':
      return {
        state: { phase: isFailure(state.cause) ? 'failed' : 'stopped', cause: state.cause },
        effects: ['journal', 'release'],
      };
    case 'cleanup_failed':
      return { state, effects: ['retry'] };
    case 'adopted':
    case 'lost':
      // A restart came between the end and its cleanup. Only the node itself can say that nothing is left, so it is asked either way.
      return { state, effects: ['destroy'] };
    case 'created':
    case 'create_failed':
    case 'cancelled':
    case 'stop_requested':
    case 'ttl_ended':
    case 'idle_ended':
    case 'channel_lost':
    case 'exited':
      return ignored(state);
  }
}

const ignored = (state: MachineState): Transition => ({ state, effects: [] });

function ended(cause: Cause): Transition {
  return {
    state: { phase: isFailure(cause) ? 'failing' : 'stopping', cause },
    effects: ['journal', 'disconnect', 'destroy'],
  };
}

type EndEvent = Extract<
  SandboxEvent,
  { readonly type: 'create_failed' | 'stop_requested' | 'ttl_ended' | 'idle_ended' | 'channel_lost' | 'lost' }
>;

function causeOfEnd(event: EndEvent): Cause {
  switch (event.type) {
    case 'create_failed':
      return event.cause;
    case 'stop_requested':
      return causeOf('stopped', 'It was stopped by a caller.');
    case 'ttl_ended':
      return causeOf('ttl', 'Its time to live was over.');
    case 'idle_ended':
      return causeOf('idle', 'Nothing used it for as long as its idle timeout.');
    case 'channel_lost':
      return causeOf('runtime', event.detail);
    case 'lost':
      return event.rebooted
        ? causeOf('node_lost', 'The node was restarted.')
        : causeOf('runtime', 'The node no longer had it when the edge came back.');
  }
}

function causeOfExit(exit: Exit, during: 'creating' | 'running'): Cause {
  switch (exit.hint) {
    case 'oom':
      return causeOf('oom', 'Its first process was killed because the sandbox had used up its memory.');
    case 'disk':
      return causeOf('disk', 'Its first process ended when the sandbox had used up its disk.');
    case 'pids':
      return causeOf('pids', 'Its first process ended when the sandbox had used up its processes.');
    case undefined:
      break;
  }
  if (exit.exitCode === 0 && during === 'running') return causeOf('completed', 'Its first process ended by itself.');
  const how =
    exit.signal === undefined
      ? `ended with exit code ${exit.exitCode ?? 'unknown'}`
      : `was killed by signal ${exit.signal}`;
  return causeOf('runtime', `Its first process ${how}.`);
}
