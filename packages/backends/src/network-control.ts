/**
 * What gives sandboxes of a node their network. A sandbox begins without any device; what is opened here gets one, under a policy that the kernel
 * enforces on the host's side. The edge says which policy holds; nothing here decides, and nothing here outlasts what the kernel has.
 */
import type { NetworkPolicy } from '@dsec/contract';
import type { StreamOptions } from '@dsec/native-link';
import type { ActObserver } from './act.ts';

export type NetworkOffer =
  | {
      readonly isOffered: true;
      /** Names of the mirror services that the operator has defined; undefined as long as the node has not said. */
      readonly services: readonly string[] | undefined;
      /** The one name server that answers its sandboxes; undefined as long as the node has not said. */
      readonly resolver: string | undefined;
    }
  /** `reason` is for people: what the node lacks. */
  | { readonly isOffered: false; readonly reason: string };

/** Where a sandbox stands on the node's network. */
export interface Uplink {
  /** Its own addresses. */
  readonly address4: string;
  readonly address6: string | undefined;
  /** The one name server that answers it. */
  readonly resolver: string;
}

export interface OpenOptions extends StreamOptions {
  /** @default 0: the sandbox is there */
  readonly waitMs?: number | undefined;
}

export interface CloseOptions extends StreamOptions {
  /** @default false */
  readonly isOver?: boolean;
}

export interface NetworkObserver extends ActObserver {
  /** The network answers from now on; comes again after each loss. Policies may have been lost with it: they are to be given again. */
  onReady(): void;
}

export interface NetworkControl extends AsyncDisposable {
  readonly offer: NetworkOffer;
  /** Begins to connect, and goes on as often as the connection is lost, until disposed. */
  start(observer: NetworkObserver): void;
  /**
   * Gives a sandbox its uplink, with this policy in force before the first packet passes; one that has an uplink keeps it and gets the policy. One that is
   * being made may come for `waitMs`; whoever gives that up closes it.
   * @throws PlatformError `network_unavailable`, `sandbox_not_found`, `service_unknown`, `invalid_argument` for a policy that the node cannot keep,
   *   `no_capacity`, `unavailable`, `timeout`, `connection_lost`; after the last three it may have happened
   */
  open(sandboxId: string, policy: NetworkPolicy, options?: OpenOptions): Promise<Uplink>;
  /**
   * Resolves when nothing of the policy before is in force any more, on open flows too. When it fails the one before stays in force.
   * @throws PlatformError as `open`; `sandbox_not_found` without an uplink
   */
  change(sandboxId: string, policy: NetworkPolicy, options?: StreamOptions): Promise<void>;
  /**
   * Takes the uplink and the policy away; a sandbox that has none is no error, nor one that is gone. `isOver`: nothing passes any more when this resolves, and the
   * device goes with the sandbox.
   * @throws PlatformError `network_unavailable`, `unavailable`, `timeout`, `connection_lost`
   */
  close(sandboxId: string, options?: CloseOptions): Promise<void>;
  /** The sandboxes that have an uplink. @throws PlatformError `unavailable`, `timeout`, `connection_lost` */
  list(options?: StreamOptions): Promise<readonly string[]>;
}
