/** pack_diff: what a live sandbox has written becomes a layer with a name. */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { EnvironmentSchema, type Environment } from './environment.ts';
import { EnvironmentNameSchema, EnvSchema, PathSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;

export const packKinds = ['workspace', 'toolkit', 'environment'] as const;
/**
 * What the changes become: a new version of the workspace that the sandbox stood on (or its first), a toolkit, or a whole environment of all that the
 * sandbox stood on and the changes above.
 */
export type PackKind = (typeof packKinds)[number];

/** Packing rules that a caller may allow to be broken. */
export const packAllowances = ['setuid', 'capabilities', 'mutable-state', 'run-state'] as const;
export type PackAllowance = (typeof packAllowances)[number];

const paths = (description: string) =>
  Type.Optional(Type.Array(PathSchema, { maxItems: limits.packPaths, description }));

const ScrubSchema = Type.Object(
  {
    defaults: Type.Optional(
      Type.Boolean({ description: 'Leave out what the default rules name: histories, caches, residue. Default true.' }),
    ),
    omit: paths('Absolute paths that are left out as well, with what is below them.'),
    keep: paths('Absolute paths that no default rule applies to.'),
  },
  closed,
);
const LimitsSchema = Type.Object(
  {
    maxBytes: Type.Optional(
      Type.Integer({ minimum: 0, maximum: 64 * 2 ** 30, description: 'Of all files. Default 8 GiB.' }),
    ),
    maxEntries: Type.Optional(Type.Integer({ minimum: 0, maximum: 4_000_000, description: 'Default 500,000.' })),
  },
  closed,
);

export const PackRequestSchema = Type.Object(
  {
    name: EnvironmentNameSchema,
    kind: Type.Optional(
      Type.Union(
        packKinds.map((kind) => Type.Literal(kind)),
        { description: 'Default workspace.' },
      ),
    ),
    paths: paths('Absolute paths: only what is at or below one of them. Default: everything.'),
    scrub: Type.Optional(ScrubSchema),
    limits: Type.Optional(LimitsSchema),
    allow: Type.Optional(
      Type.Array(Type.Union(packAllowances.map((rule) => Type.Literal(rule))), {
        maxItems: packAllowances.length,
        description: 'Packing rules that may be broken.',
      }),
    ),
    dryRun: Type.Optional(Type.Boolean({ description: 'Only report; nothing is packed. Default false.' })),
    description: Type.Optional(Type.String({ maxLength: 1024 })),
    env: Type.Optional(EnvSchema),
    workdir: Type.Optional(PathSchema),
  },
  closed,
);
/** The unions of literals lose their names in the derived type. */
export type PackRequest = Omit<Static<typeof PackRequestSchema>, 'kind' | 'allow'> & {
  readonly kind?: PackKind;
  readonly allow?: readonly PackAllowance[];
};

const count = Type.Integer({ minimum: 0 });
const levels = ['pass', 'warn', 'fail'] as const;
/** How a rule found the changes. `fail` refuses the pack; `warn` only tells. */
export type PackLevel = (typeof levels)[number];
const kinds = ['directory', 'file', 'hard-link', 'symlink', 'fifo', 'socket', 'whiteout'] as const;
/** What a change is; a whiteout says that a name of the layers below is gone. */
export type ChangeKind = (typeof kinds)[number];

/** What one packing rule found. */
export interface PackCheck {
  readonly rule: string;
  readonly level: PackLevel;
  readonly message: string;
  /** How many entries met it; of a bounded rule, how many or how much there is. */
  readonly count: number;
  /** The first of them; bytes that are not UTF-8 show as U+FFFD. */
  readonly paths: readonly string[];
}

/** One entry of a dry run. */
export interface ListedChange {
  /** Absolute; bytes that are not UTF-8 show as U+FFFD. */
  readonly path: string;
  readonly kind: ChangeKind;
  readonly sizeBytes: number;
  /** The rule that leaves it out; null: it is packed. */
  readonly omittedBy: string | null;
}

/** What a pack is, or would be. */
export interface PackReport {
  /** What goes into the layer: entries, and bytes of files (holes counted). */
  readonly entries: number;
  readonly bytes: number;
  /** What is left out, by rule, the most first. */
  readonly omitted: readonly { readonly by: string; readonly entries: number; readonly bytes: number }[];
  readonly checks: readonly PackCheck[];
  /** Of a dry run: the first entries. */
  readonly listed?: readonly ListedChange[];
  /** There are more than are listed. */
  readonly truncated?: boolean;
}

export const PackReportSchema = Type.Object(
  {
    entries: Type.Integer({ minimum: 0, description: 'Files, directories, links and deletions in the layer.' }),
    bytes: Type.Integer({ minimum: 0, description: 'Of its files, holes counted.' }),
    omitted: Type.Array(Type.Object({ by: Type.String(), entries: count, bytes: count }, closed), {
      description:
        'What is left out, by rule, the most first. `platform`: what each sandbox has of its own; `path`: what was not asked for.',
    }),
    checks: Type.Array(
      Type.Object(
        {
          rule: Type.String(),
          level: Type.Union(levels.map((level) => Type.Literal(level))),
          message: Type.String(),
          count,
          paths: Type.Array(Type.String(), { description: 'The first of those that it is about.' }),
        },
        closed,
      ),
      { description: 'What the packing rules found. One that failed refuses the pack.' },
    ),
    listed: Type.Optional(
      Type.Array(
        Type.Object(
          {
            path: Type.String(),
            kind: Type.Union(kinds.map((kind) => Type.Literal(kind))),
            sizeBytes: count,
            omittedBy: Type.Union([Type.String(), Type.Null()], { description: 'The rule that leaves it out.' }),
          },
          closed,
        ),
        { description: 'Of a dry run.' },
      ),
    ),
    truncated: Type.Optional(Type.Boolean({ description: 'There are more than are listed.' })),
  },
  closed,
);

/** The last line of an answer to a pack. */
export const PackedSchema = Type.Object(
  {
    environment: Type.Union([EnvironmentSchema, Type.Null()], { description: 'What was named; null after a dry run.' }),
    report: PackReportSchema,
    frozenMs: Type.Number({ minimum: 0, description: 'How long the sandbox stood still.' }),
  },
  closed,
);
export interface Packed {
  readonly environment: Environment | null;
  readonly report: PackReport;
  readonly frozenMs: number;
}

/** What goes on, for whoever waits. */
export const PackProgressSchema = Type.Object(
  { step: Type.String({ maxLength: 256 }), doneBytes: Type.Optional(count) },
  closed,
);
export type PackProgress = Static<typeof PackProgressSchema>;
