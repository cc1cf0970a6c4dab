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
    summary: 'For programs that nobody trusts, and that need no sandbox of their own.',
    processes: [
      'setuid programs and capabilities of files give nothing',
      'root has the few capabilities that a package manager needs',
      'no user namespaces',
      'what tells of the host below /proc and /sys is covered',
    ],
    network: { ...closedNetwork, ipLiterals: false },
    refuses: { defaultAllow: true, ipLiterals: true },
  },
  default: {
    summary: 'For agents: root inside installs packages and becomes other users.',
    processes: ['setuid programs work', 'user namespaces work, and so do browsers and bubblewrap'],
    network: closedNetwork,
    refuses: { defaultAllow: false, ipLiterals: false },
  },
  builder: {
    summary: 'For building images: as default, and filesystems that programs serve.',
    processes: ['setuid programs and user namespaces work', '/dev/fuse is there'],
    network: closedNetwork,
    refuses: { defaultAllow: false, ipLiterals: false },
  },
};
