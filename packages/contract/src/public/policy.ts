/**
 * The policy of a sandbox as data: what its processes may do (`profile`, fixed at its creation) and what it may reach (`network`, changed live by its
 * owner, as a whole or by phase). `tripwires` are files whose touch is an event, fixed too.
 *
 * The meaning of rules:
 * - A denial wins over every permission, whatever their order and however much narrower the permission is.
 * - A rule without `ports` is for all ports of addresses, and for 80 and 443 of names. Without `protocol` a permission is for TCP, a denial for all.
 * - `*.example.com` is every name below `example.com`, at any depth, and not `example.com` itself.
 * - `anyProtocol` is for programs whose server speaks first (SSH, SMTP, databases), which say no name: at its ports the addresses of that one name are reached, whatever the connection
 *   carries, and with them whoever shares them. It is never so without being said.
 * - Names can only be allowed: whoever knows the address of a denied name would reach it. By name, TCP is checked again at connect (TLS SNI or HTTP Host), and UDP never reaches port 443: QUIC hides the name.
 * - `default: "allow"` opens the public internet: private networks stay closed unless a rule names them.
 * - Never reachable: the host, other sandboxes, link-local and metadata addresses, multicast (`neverReachable`).
 */
import { Type, type TSchema } from 'typebox';
import { limits } from '../limits.ts';

const closed = { additionalProperties: false } as const;

export const networkProtocols = ['tcp', 'udp', 'icmp'] as const;
export type NetworkProtocol = (typeof networkProtocols)[number];

export const policyPhases = ['setup', 'solve', 'verify'] as const;
/** Of the work in a sandbox, as its owner names it: fetch, work without the network, check. */
export type PolicyPhase = (typeof policyPhases)[number];

export const profileNames = ['strict', 'default', 'builder'] as const;
/** See `policyProfiles`. */
export type ProfileName = (typeof profileNames)[number];

const literals = <T extends string>(values: readonly T[], description: string) =>
  Type.Union(
    values.map((value) => Type.Literal(value)),
    { description },
  );

const PORT = { minimum: 1, maximum: 65_535 } as const;
export const NetworkRuleSchema = Type.Object(
  {
    action: literals(['allow', 'deny'], 'A denial wins over every permission.'),
    to: Type.String({
      minLength: 1,
      maxLength: limits.destinationChars,
      description: 'An address, a CIDR, a name, or `*.name` for all names below it.',
    }),
    ports: Type.Optional(
      Type.Array(Type.Union([Type.Integer(PORT), Type.String({ pattern: '^[1-9][0-9]{0,4}-[1-9][0-9]{0,4}$' })]), {
        minItems: 1,
        maxItems: limits.rulePorts,
        description: 'Ports, or ranges `low-high`. Default: all of addresses, 80 and 443 of names. Not for icmp.',
      }),
    ),
    protocol: Type.Optional(
      literals(
        networkProtocols,
        'Default: tcp of a permission, all of a denial. `icmp` is the echo of ping, and only by address.',
      ),
    ),
    anyProtocol: Type.Optional(
      Type.Boolean({
        description:
          'Of a permission for one name, with `ports` other than 80 and 443: connections there are not looked at, for programs whose server speaks first, such as SSH. ' +
          'Whoever shares an address of the name is reached at these ports. Default false: the name is checked at connect.',
      }),
    ),
  },
  closed,
);
/** The unions of literals lose their names in the derived type. */
export interface NetworkRule {
  readonly action: 'allow' | 'deny';
  readonly to: string;
  readonly ports?: readonly (number | string)[];
  /** @default 'tcp' of a permission, all of a denial */
  readonly protocol?: NetworkProtocol;
  /** Of a permission for one name: what connections to these ports carry is not looked at. @default false */
  readonly anyProtocol?: boolean;
}

/** Mirror services by the names that the operator gave them. */
export const ServiceRulesSchema = Type.Record(Type.String({ pattern: '^[a-z0-9][a-z0-9_.-]{0,63}$' }), Type.Boolean(), {
  maxProperties: limits.services,
  additionalProperties: false,
  description: 'Mirror service → reachable. What is not named is closed.',
});

export const NetworkPolicySchema = Type.Object(
  {
    default: Type.Optional(
      literals(['deny', 'allow'], 'What no rule names. Default deny; `allow` is the public internet.'),
    ),
    rules: Type.Optional(Type.Array(NetworkRuleSchema, { maxItems: limits.networkRules })),
    services: Type.Optional(ServiceRulesSchema),
    ipLiterals: Type.Optional(
      Type.Boolean({
        description:
          'Whether an address may be reached that no answer of the resolver gave. Default true; false in the profile strict.',
      }),
    ),
  },
  { ...closed, description: 'What a sandbox may reach. Default: nothing.' },
);
/** As a caller writes it. */
export interface NetworkPolicyRequest {
  readonly default?: 'deny' | 'allow';
  readonly rules?: readonly NetworkRule[];
  readonly services?: Readonly<Record<string, boolean>>;
  readonly ipLiterals?: boolean;
}
/** Complete and checked (`completeNetworkPolicy`): every `to` is written in the one way of `formatDestination`. */
export type NetworkPolicy = Required<NetworkPolicyRequest>;

const CompleteNetworkPolicySchema = Type.Required(NetworkPolicySchema, {
  ...closed,
  description: 'What a sandbox may reach.',
});

const TripwiresSchema = Type.Array(
  Type.String({
    minLength: 2,
    maxLength: limits.tripwireBytes,
    // Absolute and normal: no empty part, no `.`, no `..`, no slash at the end; no control characters.
    pattern: '^(?:/(?!\\.{1,2}(?:/|$))[^/\\u0000-\\u001f\\u007f]+)+$',
  }),
  {
    maxItems: limits.tripwires,
    description:
      'Files and directories that no honest run touches: touching one is an event (not a denial). Absolute, without `.` and `..`; fixed at the creation. Default: none.',
  },
);

const phasesOf = <T extends TSchema>(policy: T) =>
  Type.Optional(
    Type.Object(
      { setup: Type.Optional(policy), solve: Type.Optional(policy), verify: Type.Optional(policy) },
      {
        ...closed,
        description: 'What `network` gives way to in a phase. A phase that is not here cannot be entered.',
      },
    ),
  );
const PhaseSchema = Type.Union([...policyPhases.map((phase) => Type.Literal(phase)), Type.Null()], {
  description: 'The phase that it is in; null: `network` holds.',
});

export const PolicyRequestSchema = Type.Object(
  {
    profile: Type.Optional(literals(profileNames, 'What processes may do; fixed at the creation. Default: `default`.')),
    network: Type.Optional(NetworkPolicySchema),
    phases: phasesOf(NetworkPolicySchema),
    phase: Type.Optional(PhaseSchema),
    tripwires: Type.Optional(TripwiresSchema),
  },
  { ...closed, description: 'The policy that a sandbox is created with.' },
);
export type PolicyPhases = Readonly<Partial<Record<PolicyPhase, NetworkPolicy>>>;
export interface PolicyRequest {
  readonly profile?: ProfileName;
  readonly network?: NetworkPolicyRequest;
  readonly phases?: Readonly<Partial<Record<PolicyPhase, NetworkPolicyRequest>>>;
  readonly phase?: PolicyPhase | null;
  /** Files and directories whose touch is an event: absolute paths without `.` and `..`. Fixed at the creation. */
  readonly tripwires?: readonly string[];
}

export const PolicyUpdateSchema = Type.Object(
  {
    ...PolicyRequestSchema.properties,
    version: Type.Optional(
      Type.Integer({
        minimum: 1,
        description: 'The version that this change is based on; another one in force refuses it. Default: any.',
      }),
    ),
  },
  {
    ...closed,
    description:
      'Replaces the whole policy: a member that is absent has its default. `profile` and `tripwires` may only repeat what the sandbox has. ' +
      'Without `phase` the sandbox stays in its phase, which the new policy must then have.',
  },
);
export interface PolicyUpdate extends PolicyRequest {
  readonly version?: number;
}

export const PhaseRequestSchema = Type.Object(
  { phase: PhaseSchema, version: PolicyUpdateSchema.properties.version },
  { ...closed, description: 'Enters a phase of the policy, or leaves it.' },
);
export interface PhaseRequest {
  readonly phase: PolicyPhase | null;
  readonly version?: number;
}

export const PolicySchema = Type.Object(
  {
    profile: literals(profileNames, 'What processes may do.'),
    network: CompleteNetworkPolicySchema,
    phases: phasesOf(CompleteNetworkPolicySchema),
    phase: PhaseSchema,
    tripwires: Type.Optional(TripwiresSchema),
    version: Type.Integer({ minimum: 1, description: '1 at the creation; every change makes it one more.' }),
    changedAtMs: Type.Integer({ description: 'When this version came into force.' }),
  },
  { ...closed, description: 'The policy in force.' },
);
/** The policy in force. */
export interface Policy {
  readonly profile: ProfileName;
  readonly network: NetworkPolicy;
  readonly phases?: PolicyPhases;
  readonly phase: PolicyPhase | null;
  /** Absent: none. */
  readonly tripwires?: readonly string[];
  readonly version: number;
  readonly changedAtMs: number;
}

/** What holds of it now: that of the phase, else `network`. */
export const networkInForce = ({
  network,
  phases,
  phase,
}: Pick<Policy, 'network' | 'phases' | 'phase'>): NetworkPolicy =>
  (phase === null ? undefined : phases?.[phase]) ?? network;
