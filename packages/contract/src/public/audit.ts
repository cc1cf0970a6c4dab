/** The audit log: who did what, by whom it was let in, and what came of it. */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';

const closed = { additionalProperties: false } as const;
const text = { maxLength: limits.auditTextChars } as const;
const count = { minimum: 0 } as const;

const CredentialSchema = Type.Union([Type.Literal('key'), Type.Literal('link'), Type.Literal('port-token')], {
  description: 'What let it in.',
});
export type AuditCredential = Static<typeof CredentialSchema>;

/** Verbs of the CLI that work on the machine of a server as root, by themselves. */
export const auditedVerbs = [
  'up',
  'down',
  'env.build',
  'env.pull',
  'env.prune',
  'env.rm',
  'env.upload',
  'env.relayout',
  'env.sync',
  'env.collect',
] as const;
export type AuditedVerb = (typeof auditedVerbs)[number];

/** Small facts of one operation: no contents, no secrets. */
export const AuditDetailSchema = Type.Record(
  Type.String({ pattern: '^[A-Za-z0-9]{1,32}$' }),
  Type.Union([Type.String(text), Type.Number(), Type.Boolean()]),
  { maxProperties: limits.auditDetails },
);

export const AuditRecordSchema = Type.Object(
  {
    seq: Type.Integer({ minimum: 1, description: 'Counts the records of an installation, from 1, without a gap.' }),
    prev: Type.String({
      description: 'sha256, in base64url, of the line before: what was cut or changed shows. Empty in the first.',
    }),
    atMs: Type.Integer({ description: 'When it was written: after the operation, but for `begun`.' }),
    operation: Type.String({
      description:
        'What was done, such as `sandbox.create`. `edge.stranger`: somebody asked the edge past the apiserver.',
    }),
    outcome: Type.String({
      description:
        '`ok`, the code of the error, `cancelled` when the client went before the answer was whole, or `begun` of what takes long: its end is another record.',
    }),
    status: Type.Optional(Type.Integer({ description: 'Of the HTTP answer.' })),
    durationMs: Type.Optional(Type.Number(count)),
    requestId: Type.Optional(Type.String({ description: 'As in the answer and in the log of the apiserver.' })),
    method: Type.Optional(Type.String()),
    route: Type.Optional(Type.String({ description: 'Pattern of the path.' })),
    credential: Type.Optional(CredentialSchema),
    keyId: Type.Optional(Type.String({ description: 'The principal: the key that it came with.' })),
    keyName: Type.Optional(Type.String()),
    project: Type.Optional(Type.String()),
    remote: Type.Optional(Type.String({ description: 'Address of the client; `unix`: the socket on the machine.' })),
    sandboxId: Type.Optional(Type.String()),
    sandboxIds: Type.Optional(Type.Array(Type.String(), { maxItems: limits.bulk })),
    execId: Type.Optional(Type.String()),
    sessionId: Type.Optional(Type.String()),
    environment: Type.Optional(Type.String()),
    subjectKeyId: Type.Optional(Type.String({ description: 'The key that was made or revoked.' })),
    replay: Type.Optional(
      Type.Literal(true, {
        description: 'The principal has come with this idempotency key before, since the apiserver was started.',
      }),
    ),
    begunSeq: Type.Optional(Type.Integer({ minimum: 1, description: 'Of the record of its begin.' })),
    detail: Type.Optional(AuditDetailSchema),
  },
  { ...closed, description: 'One operation, as docs/audit.md says.' },
);
export type AuditRecord = Static<typeof AuditRecordSchema>;

export const AuditPageSchema = Type.Object(
  {
    records: Type.Array(AuditRecordSchema, {
      description: 'Newest first. A page may have less than it may, even none.',
    }),
    cursor: Type.Union([Type.String(), Type.Null()], { description: 'For the next page; null: there is none.' }),
  },
  closed,
);
export type AuditPage = Static<typeof AuditPageSchema>;

/** What a verb of the CLI tells of itself. */
export const AuditNoteSchema = Type.Object(
  {
    verb: Type.Union(auditedVerbs.map((verb) => Type.Literal(verb))),
    outcome: Type.String({ pattern: '^[a-z_]{1,64}$', description: '`ok`, or the code of the error.' }),
    environment: Type.Optional(Type.String({ maxLength: 255 })),
    detail: Type.Optional(AuditDetailSchema),
  },
  closed,
);
export type AuditNote = Omit<Static<typeof AuditNoteSchema>, 'verb'> & { readonly verb: AuditedVerb };
