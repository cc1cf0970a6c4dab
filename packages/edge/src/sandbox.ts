/** One sandbox as the edge holds it: its record, its place in the machine, and what has to be given back at its end. */
import { causeOf, networkInForce, PlatformError, type Cause, type SandboxInfo } from '@dsec/contract';
import type { Channel } from '@dsec/backends';
import type { Reservation } from './admission.ts';
import type { Creation } from './creation.ts';
import type { DetachedExecs } from './detached-execs.ts';
import { Latch } from './latch.ts';
import type { Lifetime } from './lifetimes.ts';
import type { RuleHold } from './policy/rule-budget.ts';
import { causeIn, initialState, isFailure, isLive, isOver, publicState, type MachineState } from './sandbox-machine.ts';
import type { SandboxRecord } from './sandbox-record.ts';

/** What is known of the network device of a sandbox. */
export type UplinkState = 'none' | 'open' | 'unknown';

export class Sandbox {
  record: SandboxRecord;
  state: MachineState;
  /** The open channel; undefined while it is created, between two channels, and once it has ended. */
  channel: Channel | undefined;
  /** Settles when the channel that broke is replaced or the sandbox has ended; undefined while nothing is wrong. */
  recovery: Promise<void> | undefined;
  lifetime: Lifetime | undefined;
  reservation: Reservation | undefined;
  /** What its policy holds of the rules of the node. */
  rules: RuleHold | undefined;
  uplink: UplinkState = 'none';
  /** Its /etc/resolv.conf has the resolver of the node. */
  isResolverNamed = false;
  detached: DetachedExecs | undefined;
  /** Streams that apiservers have open into it. */
  relayed = 0;
  /** The backend is making it; its cleanup waits for that. Never rejects. */
  making: Promise<void> | undefined;
  /** Out-of-memory kills as of the last look at its usage: only more of them can be why it ended. */
  oomKillsSeen = 0;
  /** Its end is durable. */
  readonly endRecorded = new Latch();
  /** It has left the live phases. */
  readonly ended = new Latch();
  /** Nothing of it is left on the node. */
  readonly over = new Latch();
  /** The create that callers wait for. */
  creation: Creation | undefined;

  constructor(record: SandboxRecord, state: MachineState = initialState) {
    this.record = record;
    this.state = state;
  }

  get sandboxId(): string {
    return this.record.sandboxId;
  }

  get isLive(): boolean {
    return isLive(this.state);
  }

  get isOver(): boolean {
    return isOver(this.state);
  }

  /** As the API shows it. */
  info(): SandboxInfo {
    const { record } = this;
    return {
      sandboxId: record.sandboxId,
      environment: record.environment,
      workspace: record.workspace ?? null,
      toolkits: record.toolkits ?? [],
      backend: record.backend,
      state: publicState(this.state),
      cause: causeIn(this.state),
      createdAtMs: record.createdAtMs,
      endedAtMs: record.endedAtMs,
      ttlEndsAtMs: record.ttlEndsAtMs,
      idleEndsAtMs: this.isLive ? (this.lifetime?.idleEndsAtMs ?? null) : null,
      memoryMib: record.memoryMib,
      cpuMillis: record.cpuMillis,
      diskMib: record.diskMib,
      pids: record.pids,
      ttlRunningStopSeconds: record.ttlRunningStopSeconds,
      user: record.user,
      workdir: record.workdir,
      hostname: record.hostname,
      policy: { profile: record.policy.profile, phase: record.policy.phase, version: record.policy.version },
      networkRules: { ...networkInForce(record.policy).services },
      metadata: record.metadata,
    };
  }

  /** Why nothing can be asked of it now. */
  refusal(): PlatformError {
    const cause = causeIn(this.state);
    if (cause === null) {
      return new PlatformError('sandbox_not_ready', `sandbox ${this.sandboxId} is not ready yet`, {
        details: { sandboxId: this.sandboxId },
      });
    }
    return endedError(this.sandboxId, cause);
  }
}

/** What is said of a sandbox that ended for this cause. */
export const endedError = (sandboxId: string, cause: Cause): PlatformError =>
  new PlatformError(
    isFailure(cause) ? 'sandbox_failed' : 'sandbox_ended',
    isFailure(cause) ? `sandbox ${sandboxId} has failed` : `sandbox ${sandboxId} has ended`,
    { details: { sandboxId, cause: cause.kind, infrastructure: cause.infrastructure, detail: cause.detail } },
  );

/** The state that a record stands for. */
export function stateOfRecord(record: SandboxRecord): MachineState {
  switch (record.phase) {
    case 'creating':
    case 'running':
      return { phase: record.phase };
    case 'stopping':
    case 'stopped':
    case 'failing':
    case 'failed':
      return { phase: record.phase, cause: record.cause ?? causeOf('internal', 'Its record has no cause.') };
  }
}
