/** The named profiles of a policy: what each means for the processes of a sandbox (the launcher builds it) and for its network. */
import type { NetworkPolicy, ProfileName } from './public/policy.ts';

export interface PolicyProfile {
  /** For whom. */
  readonly summary: string;
  /** What holds for processes inside, root included. */
  readonly processes: readonly string[];
  /** What holds where a policy says nothing. */
  readonly network: NetworkPolicy;
  /** What a network policy of this profile may not say. */
  readonly refuses: { readonly defaultAllow: boolean; readonly ipLiterals: boolean };
}

const closedNetwork: NetworkPolicy = { default: 'deny', rules: [], services: {}, ipLiterals: true };

export const policyProfiles: Readonly<Record<ProfileName, PolicyProfile>> = {
  strict: {
    summary: 'For code that nobody trusts: least kernel surface, and the network by name only.',
    processes: [
      'no new privileges: setuid programs and file capabilities give nothing',
      'no user namespaces, mounts or tracing of others inside',
    ],
    network: { ...closedNetwork, ipLiterals: false },
    refuses: { defaultAllow: true, ipLiterals: true },
  },
  default: {
    summary: 'For agents: root inside may install packages and change users.',
    processes: ['setuid programs work inside', 'no user namespaces or mounts inside'],
    network: closedNetwork,
    refuses: { defaultAllow: false, ipLiterals: false },
  },
  builder: {
    summary: 'For builds and tools that isolate on their own, such as bubblewrap.',
    processes: ['setuid programs work inside', 'user namespaces, and mounts in them, are allowed'],
    network: closedNetwork,
    refuses: { defaultAllow: false, ipLiterals: false },
  },
};
