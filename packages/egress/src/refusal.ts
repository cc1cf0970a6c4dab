/** What is refused to sandboxes, and the event that tells of it. */
import type { CausingProcess } from '@dsec/native-link';

/** Why the resolver or a service refused something. */
export type RefusalReason =
  /** No rule allows the name. */
  | 'name'
  /** The name is allowed, but not records of this type. */
  | 'type'
  /** More questions than the sandbox may ask. */
  | 'rate'
  /** More different names below a wildcard than there may be. */
  | 'wildcard'
  /** The answer pointed where the sandbox may not go, such as to a private network. */
  | 'address'
  /** More addresses than may be open at once. */
  | 'pins'
  /** No well-formed question. */
  | 'malformed'
  /** A service refused a request, such as for a version that is too new. */
  | 'service';

/** A question or a request that is refused here. */
export interface Refusal {
  readonly id: string;
  readonly kind: 'name' | 'service';
  /** The name that was asked for, or what of a service; absent where there is none. */
  readonly name?: string;
  /** The type of the record as its number; absent where there is none. */
  readonly type?: number;
  readonly reason: RefusalReason;
}

/** A packet or a connection that egressd or the gate has refused. */
export interface RefusedConnect {
  readonly id: string;
  readonly kind: 'connect';
  readonly name?: string;
  readonly address?: string;
  readonly port?: number;
  readonly protocol?: string;
  readonly reason: string;
}

export type RefusalEvent = (Refusal | RefusedConnect) & {
  readonly atMs: number;
  /** How many refusals it stands for: those alike, and those of the sandbox that were beyond its budget before. */
  readonly count: number;
  readonly process?: CausingProcess;
};
