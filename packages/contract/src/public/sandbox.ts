/** Sandboxes as the public API shows them. Times are milliseconds since the epoch, sizes are in the unit that the name says. */
import { Type, type Static } from 'typebox';
import { CauseSchema, type Cause } from '../cause.ts';
import { limits } from '../limits.ts';
import { PolicyRequestSchema, PolicySchema, ServiceRulesSchema, type Policy, type PolicyRequest } from './policy.ts';

const closed = { additionalProperties: false } as const;

export const SandboxIdSchema = Type.String({
  pattern: '^[a-z0-9]{1,24}$',
  description: 'Id of a sandbox, as a create returned it.',
});
export const EnvironmentNameSchema = Type.String({
  pattern: '^[A-Za-z0-9][A-Za-z0-9._/:-]{0,254}$',
  description: 'Name of an environment.',
});
/** A name that a shell can hold; `=`, NUL and shell characters are refused. */
export const EnvKeyPattern = '^[A-Za-z_][A-Za-z0-9_.-]{0,255}$';
export const EnvSchema = Type.Record(
  Type.String({ pattern: EnvKeyPattern }),
  Type.String({ maxLength: limits.envValueBytes, pattern: '^[^\\u0000]*$' }),
  {
    maxProperties: limits.envEntries,
    additionalProperties: false,
    description: 'Environment variables; values are passed byte for byte.',
  },
);
export const MetadataSchema = Type.Record(
  Type.String({ pattern: '^[^\\u0000-\\u001f]{1,128}$' }),
  Type.String({ maxLength: limits.metadataValueChars }),
  {
    maxProperties: limits.metadataEntries,
    additionalProperties: false,
    description: "The caller's own labels; lists can be filtered by them.",
  },
);
export const UserSchema = Type.String({
  pattern: '^[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}(:[A-Za-z0-9_][A-Za-z0-9_.-]{0,63})?$',
  description: 'A name, a uid, `uid:gid` or `name:group`.',
});
export const PathSchema = Type.String({ minLength: 1, maxLength: limits.pathBytes, pattern: '^[^\\u0000]+$' });
export const BackendSchema = Type.Union(
  [Type.Literal('container'), Type.Literal('microvm'), Type.Literal('fullvm'), Type.Literal('fncall')],
  {
    description: 'How the sandbox is isolated. The caller chooses; nothing is downgraded.',
  },
);

export const CreateSandboxSchema = Type.Object(
  {
    environment: EnvironmentNameSchema,
    workspace: Type.Optional({
      ...EnvironmentNameSchema,
      description: 'Name of a workspace: the files of one task, above the environment.',
    }),
    toolkits: Type.Optional(
      Type.Array(EnvironmentNameSchema, {
        maxItems: limits.toolkits,
        description: 'Names of toolkits, above everything else; of two that have one file the later counts.',
      }),
    ),
    backend: Type.Optional(BackendSchema),
    memoryMib: Type.Optional(Type.Integer({ ...limits.memoryMib, description: 'Memory limit, MiB.' })),
    cpuMillis: Type.Optional(Type.Integer({ ...limits.cpuMillis, description: 'CPU limit, thousandths of a core.' })),
    diskMib: Type.Optional(Type.Integer({ ...limits.diskMib, description: 'Quota of the writable layer, MiB.' })),
    pids: Type.Optional(Type.Integer({ ...limits.pids, description: 'Most processes and threads.' })),
    ttlSeconds: Type.Optional(
      Type.Integer({
        ...limits.ttlSeconds,
        description: 'The sandbox is stopped this long after its creation, whatever it does.',
      }),
    ),
    ttlRunningStopSeconds: Type.Optional(
      Type.Integer({
        ...limits.ttlRunningStopSeconds,
        description: 'Idle timeout. A running command, an open stream or pty counts as busy; polling does not.',
      }),
    ),
    policy: Type.Optional(PolicyRequestSchema),
    networkRules: Type.Optional({
      ...ServiceRulesSchema,
      description: 'Short for `policy.network.services`: mirror service → reachable. What is not named is closed.',
    }),
    user: Type.Optional(UserSchema),
    env: Type.Optional(EnvSchema),
    workdir: Type.Optional(PathSchema),
    hostname: Type.Optional(Type.String({ pattern: '^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$' })),
    metadata: Type.Optional(MetadataSchema),
  },
  { ...closed, description: 'What a sandbox is made of.' },
);
/** The unions of literals of a policy lose their names in the derived type. */
export type CreateSandbox = Omit<Static<typeof CreateSandboxSchema>, 'policy'> & { readonly policy?: PolicyRequest };

export const sandboxStates = ['creating', 'running', 'stopping', 'stopped', 'failed'] as const;
export type SandboxState = (typeof sandboxStates)[number];

export const SandboxSchema = Type.Object(
  {
    sandboxId: SandboxIdSchema,
    environment: Type.String(),
    workspace: Type.Union([Type.String(), Type.Null()]),
    toolkits: Type.Array(Type.String()),
    backend: BackendSchema,
    state: Type.Union(sandboxStates.map((state) => Type.Literal(state))),
    cause: Type.Union([CauseSchema, Type.Null()], { description: 'Why it ended; null while it lives.' }),
    createdAtMs: Type.Integer(),
    endedAtMs: Type.Union([Type.Integer(), Type.Null()]),
    ttlEndsAtMs: Type.Integer({ description: 'When `ttlSeconds` ends it.' }),
    idleEndsAtMs: Type.Union([Type.Integer(), Type.Null()], {
      description: 'When it ends if nothing happens; null while it is busy.',
    }),
    memoryMib: Type.Integer(),
    cpuMillis: Type.Integer(),
    diskMib: Type.Integer(),
    pids: Type.Integer(),
    ttlRunningStopSeconds: Type.Integer(),
    user: Type.String(),
    workdir: Type.String(),
    hostname: Type.String(),
    policy: Type.Pick(PolicySchema, ['profile', 'phase', 'version'], {
      ...closed,
      description: 'Which policy is in force; its rules are shown by themselves.',
    }),
    networkRules: Type.Record(Type.String(), Type.Boolean(), {
      description: 'The services that the policy in force names.',
    }),
    metadata: Type.Record(Type.String(), Type.String()),
  },
  { ...closed, description: 'A sandbox. Environment variables are never shown: they may be secrets.' },
);
/** A sandbox as the API shows it. */
export type SandboxInfo = Omit<Static<typeof SandboxSchema>, 'state' | 'cause' | 'policy'> & {
  readonly state: SandboxState;
  readonly cause: Cause | null;
  readonly policy: Pick<Policy, 'profile' | 'phase' | 'version'>;
};

export const BulkCreateSchema = Type.Object(
  { count: Type.Integer({ minimum: 1, maximum: limits.bulk }), template: CreateSandboxSchema },
  {
    ...closed,
    description: 'Creates `count` like sandboxes. The answer is NDJSON, one BulkItem a line in the order of readiness.',
  },
);
export type BulkCreate = Omit<Static<typeof BulkCreateSchema>, 'template'> & { readonly template: CreateSandbox };

export const SandboxPatchSchema = Type.Object(
  {
    ttlSeconds: Type.Optional(Type.Integer({ ...limits.ttlSeconds, description: 'Counted from now.' })),
    ttlRunningStopSeconds: Type.Optional(Type.Integer({ ...limits.ttlRunningStopSeconds })),
    extendOnly: Type.Optional(Type.Boolean({ description: 'Never brings the end nearer. Default false.' })),
  },
  { ...closed, minProperties: 1 },
);
export type SandboxPatch = Static<typeof SandboxPatchSchema>;

export const BulkStopSchema = Type.Object(
  {
    sandboxIds: Type.Optional(Type.Array(SandboxIdSchema, { maxItems: limits.bulk })),
    metadata: Type.Optional(MetadataSchema),
  },
  { ...closed, description: 'Stops the named sandboxes, or all whose metadata has these entries.' },
);
export type BulkStop = Static<typeof BulkStopSchema>;

export const UsageSchema = Type.Object(
  {
    memoryBytes: Type.Integer(),
    memoryPeakBytes: Type.Integer(),
    cpuUsec: Type.Integer(),
    pids: Type.Integer(),
    diskBytes: Type.Integer(),
    oomKills: Type.Integer(),
  },
  { ...closed, description: 'What a live sandbox uses now.' },
);
export type Usage = Static<typeof UsageSchema>;
