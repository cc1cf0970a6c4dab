import { PolicySchema, type Policy, type PolicyPhase, type PolicyUpdate } from '@dsec/contract';
import { segment, type Api } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { parserOf } from './http/schema.ts';

const parsePolicy = parserOf<typeof PolicySchema, Policy>(PolicySchema, 'policy of a sandbox');

/** What a change of a policy is based on. */
export interface PolicyChangeOptions extends CallOptions {
  /** Refuses the change unless this version is in force. @default any */
  readonly version?: number;
}

/**
 * What a sandbox may reach, and what its processes may do. A policy is in force before the first command runs, and can be replaced while the sandbox
 * runs, by the key that made it or that of a builder: never by that of an agent inside. Every change makes its version one more; one that is refused
 * or fails leaves the policy before in force.
 */
export class SandboxPolicy {
  readonly #api: Api;
  readonly #sandboxId: string;

  /** @internal Use `sandbox.policy`. */
  constructor(api: Api, sandboxId: string) {
    this.#api = api;
    this.#sandboxId = sandboxId;
  }

  /** The policy in force. @throws PlatformError `sandbox_not_found`, `sandbox_ended`, `sandbox_failed` */
  async get(options: CallOptions = {}): Promise<Policy> {
    const what = `asking for the policy of sandbox ${this.#sandboxId}`;
    return this.#api.json(
      { method: 'GET', path: this.#path('policy'), what, repeatable: 'always' },
      parsePolicy,
      options,
    );
  }

  /**
   * Replaces the whole policy; resolves when it is in force, on open connections too. A member that is absent has its default, so that `set({})` closes
   * everything. Without `phase` the sandbox stays in its phase, which the new policy must then have. The profile is fixed at the creation.
   *
   * Denials win over permissions. A name is allowed for ports 80 and 443 unless the rule says others; `*.name` is for all names below it.
   *
   * @throws PlatformError `permission_denied`; `policy_stale` with `details.version` when another version is in force; `invalid_argument` with
   *   `details.field`; `service_unknown` with `details.services`; `network_unavailable` where the node gives sandboxes no network;
   *   `sandbox_not_ready` during its creation; `sandbox_ended`, `sandbox_failed`
   *
   * @example
   * ```ts
   * const { version } = await sandbox.policy.get();
   * const changed = await sandbox.policy.set({ network: { rules: [{ action: 'deny', to: '10.0.0.0/8' }] }, version });
   * console.log(changed.version - version); // 1
   * ```
   */
  async set(policy: PolicyUpdate, options: CallOptions = {}): Promise<Policy> {
    const what = `changing the policy of sandbox ${this.#sandboxId}`;
    return this.#api.json(
      // A repetition of a change that is based on a version would be told that it is stale.
      {
        method: 'PUT',
        path: this.#path('policy'),
        what,
        json: policy,
        repeatable: policy.version === undefined ? 'always' : 'unsent',
      },
      parsePolicy,
      options,
    );
  }

  /**
   * Enters a phase that the policy has, or leaves it with null; resolves when its network policy is in force. Being in it already is no change.
   *
   * @throws PlatformError as `set`
   *
   * @example
   * ```ts
   * await sandbox.policy.set({ phases: { setup: { services: { pypi: false } }, solve: {} }, phase: 'setup' });
   * const { phase } = await sandbox.policy.phase('solve');
   * console.log(phase); // solve
   * ```
   */
  async phase(phase: PolicyPhase | null, options: PolicyChangeOptions = {}): Promise<Policy> {
    const { version, ...call } = options;
    const json = { phase, ...(version === undefined ? {} : { version }) };
    const what = `changing the phase of sandbox ${this.#sandboxId}`;
    return this.#api.json(
      {
        method: 'POST',
        path: this.#path('phase'),
        what,
        json,
        repeatable: version === undefined ? 'always' : 'unsent',
      },
      parsePolicy,
      call,
    );
  }

  #path(route: string): string {
    return `/sandboxes/${segment(this.#sandboxId)}/${route}`;
  }
}
