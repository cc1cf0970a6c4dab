/** The journal's record of one sandbox: everything that a restarted edge has to know of it. */
import {
  BackendSchema,
  CauseSchema,
  EnvSchema,
  limits,
  MetadataSchema,
  PlatformError,
  SandboxIdSchema,
  type Cause,
} from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { phases, type Phase } from './sandbox-machine.ts';

export const RECORD_VERSION = 1;

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
    networkRules: Type.Record(Type.String(), Type.Boolean()),
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
export type SandboxRecord = Readonly<Omit<Parsed, 'phase' | 'cause'> & { phase: Phase; cause: Cause | null }>;

const parser = compileSchema(SandboxRecordSchema);

export const encodeRecord = (record: SandboxRecord): string => JSON.stringify(record);

/**
 * Upgrades what an older version wrote. There is one version; the next adds its step here.
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
  return parser.parse(value, { what: 'a record of the journal', code: 'internal' }) as SandboxRecord;
}
