/** What comes from the edge, and through it from inside a sandbox, is checked before it is passed on. */
import {
  CompositionPageSchema,
  ExecStatusSchema,
  FileEntrySchema,
  LayersInUseSchema,
  PlatformError,
  PolicySchema,
  ReleasedLayersSchema,
  SandboxSchema,
  SessionSchema,
  UsageSchema,
  type FileEntry,
  type Policy,
  type ReleasedLayers,
  type SandboxInfo,
} from '@dsec/contract';
import { compileSchema, type Parser } from '@dsec/kit';
import { Type, type Static, type TSchema } from 'typebox';

const closed = { additionalProperties: false } as const;

export const ProcessesSchema = Type.Object(
  {
    processes: Type.Array(
      Type.Object(
        {
          pid: Type.Integer(),
          ppid: Type.Integer(),
          uid: Type.Integer(),
          command: Type.String(),
          startedAtMs: Type.Number(),
          rssBytes: Type.Integer(),
        },
        closed,
      ),
      { maxItems: 4096 },
    ),
  },
  closed,
);
export const ExecListSchema = Type.Object({ execs: Type.Array(ExecStatusSchema) }, closed);
export const SessionListSchema = Type.Object({ sessions: Type.Array(SessionSchema) }, closed);
export const DeliveredSchema = Type.Object({ delivered: Type.Boolean() }, closed);
const BytesSchema = Type.Object({ bytes: Type.Integer() }, closed);
const ChangesReadySchema = Type.Object({ frozenMs: Type.Number({ minimum: 0 }) }, closed);
const EntriesSchema = Type.Object({ entries: Type.Integer() }, closed);
export const SandboxPageSchema = Type.Object(
  { sandboxes: Type.Array(SandboxSchema), cursor: Type.Union([Type.String(), Type.Null()]) },
  closed,
);
const PidSchema = Type.Object({ pid: Type.Integer() }, closed);
const ListedSchema = Type.Object({ count: Type.Integer(), truncated: Type.Boolean() }, closed);
const EntryBatchSchema = Type.Object({ entries: Type.Array(FileEntrySchema) }, closed);
const EntryMessageSchema = Type.Object({ entry: FileEntrySchema }, closed);
const StartedSchema = Type.Object(
  {
    started: Type.Object(
      { execId: Type.String(), pid: Type.Integer(), clientId: Type.Optional(Type.String({ maxLength: 64 })) },
      closed,
    ),
  },
  closed,
);
const GapSchema = Type.Object(
  {
    gap: Type.Object(
      {
        channel: Type.Union([Type.Literal(1), Type.Literal(2)]),
        from: Type.Integer({ minimum: 0 }),
        to: Type.Integer({ minimum: 0 }),
      },
      closed,
    ),
  },
  closed,
);
const ErrorSchema = Type.Object(
  { code: Type.String(), message: Type.String(), details: Type.Record(Type.String(), Type.Unknown()) },
  closed,
);
const BulkItemSchema = Type.Union([
  Type.Object({ index: Type.Integer({ minimum: 0 }), sandbox: SandboxSchema }, closed),
  Type.Object({ index: Type.Integer({ minimum: 0 }), error: ErrorSchema }, closed),
]);
const FileEventSchema = Type.Object(
  {
    kind: Type.Union((['create', 'modify', 'remove', 'move', 'attrib'] as const).map((kind) => Type.Literal(kind))),
    path: Type.String(),
    to: Type.Optional(Type.String()),
  },
  closed,
);
const WatchMessageSchema = Type.Union([
  Type.Object({ ready: Type.Literal(true) }, closed),
  Type.Object({ events: Type.Array(FileEventSchema) }, closed),
  Type.Object({ overflow: Type.Literal(true) }, closed),
]);

/** Checks an answer of `method`. */
export type Check<T> = (value: unknown, method: string) => T;

export function checkOf<S extends TSchema, T = Static<S>>(schema: S): Check<T> {
  const parser: Parser<Static<S>> = compileSchema(schema);
  return (value, method) => {
    if (parser.is(value)) return value as T;
    throw new PlatformError('protocol_error', `the answer to ${method} does not have its form`);
  };
}

export const checkSandbox = checkOf<typeof SandboxSchema, SandboxInfo>(SandboxSchema);
export const checkSandboxPage = checkOf(SandboxPageSchema);
export const checkPolicy = checkOf<typeof PolicySchema, Policy>(PolicySchema);
export const checkUsage = checkOf(UsageSchema);
export const checkLayersInUse = checkOf(LayersInUseSchema);
export const checkReleasedLayers = checkOf<typeof ReleasedLayersSchema, ReleasedLayers>(ReleasedLayersSchema);
export const checkCompositions = checkOf(CompositionPageSchema);
export const checkProcesses = checkOf(ProcessesSchema);
/** As much of it as is looked at. */
export type BulkItemAnswer = { readonly sandbox: { readonly sandboxId: string } } | { readonly error: object };
export const checkBulkItem = checkOf<typeof BulkItemSchema, BulkItemAnswer>(BulkItemSchema);
export const checkExecStatus = checkOf(ExecStatusSchema);
export const checkExecList = checkOf(ExecListSchema);
export const checkDelivered = checkOf(DeliveredSchema);
export const checkBytes = checkOf(BytesSchema);
export const checkPid = checkOf(PidSchema);
export const checkSessionList = checkOf(SessionListSchema);
export const checkEntry = checkOf<typeof FileEntrySchema, FileEntry>(FileEntrySchema);
export const checkEntryBatch = checkOf(EntryBatchSchema);
export const checkEntryMessage = checkOf(EntryMessageSchema);
export const checkListed = checkOf(ListedSchema);
export const checkChangesReady = checkOf(ChangesReadySchema);
export const checkEntries = checkOf(EntriesSchema);
export const checkWatchMessage = checkOf<typeof WatchMessageSchema, object>(WatchMessageSchema);
export const checkStarted = checkOf(StartedSchema);
export const checkGap = checkOf(GapSchema);
