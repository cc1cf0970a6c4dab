/** The journal's record of one sandbox: everything that a restarted edge has to know of it. */
import {
  BackendSchema,
  CauseSchema,
  EnvSchema,
  limits,
  MetadataSchema,
  PlatformError,
  PolicySchema,
  SandboxIdSchema,
  type Cause,
  type Policy,
} from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { phases, type Phase } from './sandbox-machine.ts';

export const RECORD_VERSION = 2;

const SandboxRecordSchema = Type.Object(
  {
    version: Type.Literal(RECORD_VERSION),
    sandboxId: SandboxIdSchema,
    project: Type.String(),
    keyId: Type.String(),
    /** `creating` until the end: a create writes once, and whether it came to its end the node itself knows. */
    phase: Type.Union(phases.map((phase) => Type.Literal(phase))),
    cause: Type.Union([CauseSchema, Type.Null()]),
    createdAtMs: Type.Integer(),
    endedAtMs: Type.Union([Type.Integer(), Type.Null()]),
    ttlEndsAtMs: Type.Integer(),
    ttlRunningStopSeconds: Type.Integer(),
    environment: Type.String(),
    workspace: Type.Optional(Type.String()),
    toolkits: Type.Optional(Type.Array(Type.String(), { maxItems: limits.toolkits })),
    backend: BackendSchema,
    /** Top first. Empty once it has ended. */
    layers: Type.Array(Type.String()),
    memoryMib: Type.Integer(),
    cpuMillis: Type.Integer(),
    diskMib: Type.Integer(),
    pids: Type.Integer(),
    user: Type.String(),
    workdir: Type.String(),
    hostname: Type.String(),
    /** Empty once it has ended: it may hold secrets. */
    env: EnvSchema,
    /** Without its rules once it has ended. */
    policy: PolicySchema,
    metadata: MetadataSchema,
    idempotency: Type.Union([
      Type.Object(
        {
          key: Type.String({ maxLength: limits.idempotencyKeyChars }),
          fingerprint: Type.String(),
          /** Its place in the bulk create, and how many that made; 0 of 1 for a single create. */
          index: Type.Integer(),
          count: Type.Integer(),
        },
        { additionalProperties: false },
      ),
      Type.Null(),
    ]),
  },
  { additionalProperties: false },
);

type Parsed = Static<typeof SandboxRecordSchema>;
export type SandboxRecord = Readonly<
  Omit<Parsed, 'phase' | 'cause' | 'policy'> & { phase: Phase; cause: Cause | null; policy: Policy }
>;

const parser = compileSchema(SandboxRecordSchema);

export const encodeRecord = (record: SandboxRecord): string => JSON.stringify(record);

/** What is kept of the policy of a sandbox that has ended: its rules may be many, and reach nothing any more. */
export const endedPolicy = ({ profile, network, tripwires, version, changedAtMs }: Policy): Policy => ({
  profile,
  network: { ...network, default: 'deny', rules: [] },
  phase: null,
  ...(tripwires === undefined ? {} : { tripwires }),
  version,
  changedAtMs,
});

/**
 * Upgrades what an older version wrote.
 * @throws PlatformError `internal` for a record of a newer version, or one that does not parse: nothing is dropped in silence
 */
export function decodeRecord(text: string): SandboxRecord {
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw new PlatformError('internal', 'a record of the journal is not JSON', { cause });
  }
  // The unions of literals lose their names in the derived type.
  return parser.parse(upgraded(value), { what: 'a record of the journal', code: 'internal' }) as SandboxRecord;
}

/** Version 1 had the short form of a policy alone, and no service could be opened. */
function upgraded(value: unknown): unknown {
  if (typeof value !== 'object' || value === null || !('version' in value) || value.version !== 1) return value;
  const { networkRules: services, createdAtMs, ...rest } = value as Record<string, unknown>;
  const policy = {
    profile: 'default',
    network: { default: 'deny', rules: [], services, ipLiterals: true },
    phase: null,
    version: 1,
    changedAtMs: createdAtMs,
  };
  return { ...rest, createdAtMs, policy, version: RECORD_VERSION };
}
