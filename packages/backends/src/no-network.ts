/** A node that gives sandboxes no network: whatever is closed works, and whatever opens something is refused with the reason. */
import { PlatformError } from '@dsec/contract';
import type { NetworkControl, NetworkOffer } from './network-control.ts';

export class NoNetwork implements NetworkControl {
  readonly offer: NetworkOffer & { readonly isOffered: false };

  /** `reason` is for people: what the node lacks. */
  constructor(reason: string) {
    this.offer = { isOffered: false, reason };
  }

  start(): void {
    // It is never ready.
  }

  open(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  change(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  /** An uplink that is left from before stays, under the policy that the kernel has: that must not be taken for closed. */
  close(): Promise<never> {
    return Promise.reject(this.#refusal());
  }

  list(): Promise<readonly string[]> {
    return Promise.resolve([]);
  }

  [Symbol.asyncDispose](): Promise<void> {
    return Promise.resolve();
  }

  #refusal(): PlatformError {
    return new PlatformError('network_unavailable', 'this node gives sandboxes no network', {
      details: { reason: this.offer.reason },
    });
  }
}
