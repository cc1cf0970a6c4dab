/** Files of a sandbox as the public API shows them. */
import { Type, type Static } from 'typebox';
import { PathSchema, UserSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;

export const FileEntrySchema = Type.Object(
  {
    name: Type.String({ description: 'Last part of the path; what is not UTF-8 shows as U+FFFD.' }),
    nameBase64: Type.Optional(Type.String({ description: 'The bytes of the name, when `name` is not exact.' })),
    path: Type.String(),
    kind: Type.Union(
      (['file', 'directory', 'symlink', 'fifo', 'socket', 'block', 'char'] as const).map((kind) => Type.Literal(kind)),
    ),
    sizeBytes: Type.Integer(),
    mode: Type.Integer({ description: 'Permission bits, 07777.' }),
    uid: Type.Integer(),
    gid: Type.Integer(),
    mtimeMs: Type.Number(),
    target: Type.Optional(Type.String({ description: 'Of a symlink.' })),
  },
  { description: 'One file, directory or link.' },
);
/** One file, directory or link of a sandbox. */
export type FileEntry = Omit<Static<typeof FileEntrySchema>, 'kind'> & {
  readonly kind: 'file' | 'directory' | 'symlink' | 'fifo' | 'socket' | 'block' | 'char';
};

export const FileListSchema = Type.Object({ entries: Type.Array(FileEntrySchema), truncated: Type.Boolean() }, closed);

export const MkdirSchema = Type.Object(
  {
    path: PathSchema,
    user: Type.Optional(UserSchema),
    mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o7777 })),
    parents: Type.Optional(Type.Boolean()),
  },
  closed,
);
export const MoveSchema = Type.Object(
  { from: PathSchema, to: PathSchema, user: Type.Optional(UserSchema), overwrite: Type.Optional(Type.Boolean()) },
  closed,
);
export const ChangeSchema = Type.Object(
  {
    path: PathSchema,
    user: Type.Optional(UserSchema),
    mode: Type.Optional(Type.Integer({ minimum: 0, maximum: 0o7777 })),
    owner: Type.Optional(UserSchema),
  },
  { ...closed, description: 'Changes mode, owner, or both.' },
);
export const SymlinkSchema = Type.Object(
  { path: PathSchema, target: PathSchema, user: Type.Optional(UserSchema) },
  closed,
);

export const SignLinkSchema = Type.Object(
  {
    operation: Type.Union([Type.Literal('read'), Type.Literal('write')]),
    path: PathSchema,
    user: Type.Optional(UserSchema),
    expiresInSeconds: Type.Integer({ minimum: 1, maximum: 604_800 }),
  },
  {
    ...closed,
    description: 'Asks for a link to one file that works without a key, for one operation, until it expires.',
  },
);
export const SignedLinkSchema = Type.Object({ url: Type.String(), expiresAtMs: Type.Integer() }, closed);

/** One line of the NDJSON answer of a watch. */
export type WatchLine =
  | { readonly ready: true }
  | { readonly events: readonly FileEvent[] }
  | { readonly overflow: true }
  | { readonly keepalive: true };
export interface FileEvent {
  readonly kind: 'create' | 'modify' | 'remove' | 'move' | 'attrib';
  readonly path: string;
  readonly to?: string;
}
