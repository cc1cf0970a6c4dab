/** Where addresses are opened that an allowed name has resolved to. */
import type { PortRange } from './policy/port-ranges.ts';

export interface Pin {
  readonly address: string;
  /** By which it was allowed. */
  readonly name: string;
  readonly ttlMs: number;
  readonly ranges: readonly PortRange[];
}

export interface PinSink {
  /**
   * Opens addresses for a sandbox whose policy has this generation, and for no other.
   * @throws PlatformError `policy_stale` when the policy has changed meanwhile
   */
  add(sandbox: string, generation: number, pins: readonly Pin[]): Promise<void>;
}
