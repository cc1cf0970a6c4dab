/**
 * Why a sandbox ended. Every ended sandbox has exactly one cause, and each cause says whether it was infrastructure: an attempt that
 * ended for an infrastructure cause must be run again, never scored.
 */
import { Type, type Static } from 'typebox';

/** Cause → was it the platform's fault. The order is that of the documentation. */
export const causeTable = {
  completed: false,
  stopped: false,
  ttl: false,
  idle: false,
  oom: false,
  disk: false,
  pids: false,
  policy: false,
  cancelled: false,
  node_lost: true,
  image: true,
  runtime: true,
  internal: true,
} as const satisfies Record<string, boolean>;

export type CauseKind = keyof typeof causeTable;

export const causeKinds = Object.keys(causeTable) as readonly CauseKind[];

export const CauseSchema = Type.Object(
  {
    kind: Type.Union(causeKinds.map((kind) => Type.Literal(kind))),
    infrastructure: Type.Boolean({ description: 'The platform was at fault: run the attempt again, do not score it.' }),
    detail: Type.String({ maxLength: 1024, description: 'One sentence for a person.' }),
  },
  { additionalProperties: false, description: 'Why a sandbox ended.' },
);

/** Why a sandbox ended: `kind`, whether it was infrastructure, and one sentence of detail. */
export type Cause = Omit<Static<typeof CauseSchema>, 'kind'> & { readonly kind: CauseKind };

export const causeOf = (kind: CauseKind, detail: string): Cause => ({
  kind,
  infrastructure: causeTable[kind],
  detail: detail.slice(0, 1024),
});
