/** Something that a program of a sandbox tried and was denied, or a tripwire that it touched, as whatever saw it tells. */
import type { BehaviourKind } from '@dsec/contract';

export interface ActingProcess {
  /** Ids inside the sandbox. */
  readonly pid: number;
  /** Nearest first. */
  readonly ancestors: readonly number[];
  readonly session: number;
  readonly uid: number;
  readonly comm: string;
  readonly argv: readonly string[];
}

export interface Act {
  readonly sandboxId: string;
  readonly atMs: number;
  readonly kind: BehaviourKind;
  readonly call?: string | undefined;
  readonly argument?: string | undefined;
  readonly path?: string | undefined;
  readonly name?: string | undefined;
  /** The number of the record. */
  readonly type?: number | undefined;
  readonly address?: string | undefined;
  readonly port?: number | undefined;
  readonly protocol?: string | undefined;
  readonly outcome: string;
  /** How many it stands for. */
  readonly count: number;
  readonly process?: ActingProcess | undefined;
}

/** Hears of acts. What comes is bounded, but of the sandbox's choosing. */
export interface ActObserver {
  onAct(act: Act): void;
  /** So many acts before the next were not told: this side was slow. */
  onActsLost(count: number): void;
}
