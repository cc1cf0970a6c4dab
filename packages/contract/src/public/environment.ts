/** Environments and API keys as the public API shows them. */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { EnvironmentNameSchema, EnvSchema } from './sandbox.ts';

const closed = { additionalProperties: false } as const;

export const DigestSchema = Type.String({ pattern: '^sha256:[0-9a-f]{64}$' });

/** What the image says about how its processes run. */
export const EnvironmentConfigSchema = Type.Object(
  {
    env: EnvSchema,
    user: Type.String({ maxLength: 256 }),
    workdir: Type.String({ maxLength: 4095 }),
    entrypoint: Type.Array(Type.String()),
    cmd: Type.Array(Type.String()),
    labels: Type.Record(Type.String(), Type.String()),
    exposedPorts: Type.Optional(
      Type.Array(Type.String({ pattern: '^[0-9]{1,5}/(tcp|udp|sctp)$' }), {
        maxItems: 1024,
        description: 'What the image says that its programs listen on: for people and tools, it opens nothing.',
      }),
    ),
  },
  closed,
);
export type EnvironmentConfig = Static<typeof EnvironmentConfigSchema>;

export const EnvironmentImageSchema = Type.Object(
  {
    layers: Type.Array(DigestSchema, { minItems: 1, maxItems: limits.layers, description: 'Top first.' }),
    config: EnvironmentConfigSchema,
    architecture: Type.String({ maxLength: 32 }),
    sizeBytes: Type.Integer({ minimum: 0 }),
  },
  { ...closed, description: 'Layers, top first, and the configuration of the image.' },
);
export type EnvironmentImage = Static<typeof EnvironmentImageSchema>;

export const environmentKinds = ['base', 'workspace', 'toolkit'] as const;
/** What the layers are for: a root filesystem, the files of one task above it, or tools above both. Paper, section on composition. */
export type EnvironmentKind = (typeof environmentKinds)[number];
export const EnvironmentKindSchema = Type.Union(
  environmentKinds.map((kind) => Type.Literal(kind)),
  {
    description: 'A root filesystem, the files of one task above it, or tools above both. Default base.',
  },
);

export const entrypointModes = ['ignore', 'run'] as const;
/** Whether a sandbox begins with the program of its image. */
export type EntrypointMode = (typeof entrypointModes)[number];
const EntrypointModeSchema = Type.Union(
  entrypointModes.map((mode) => Type.Literal(mode)),
  {
    description:
      'Whether ENTRYPOINT and CMD of the image run in every sandbox from its beginning, as the exec `entrypoint`. Default ignore.',
  },
);

export const EnvironmentPutSchema = Type.Object(
  {
    name: EnvironmentNameSchema,
    image: EnvironmentImageSchema,
    kind: Type.Optional(EnvironmentKindSchema),
    entrypoint: Type.Optional(EntrypointModeSchema),
    description: Type.Optional(Type.String({ maxLength: 1024 })),
  },
  closed,
);
/** The union of literals loses their names in the derived type. */
export type EnvironmentPut = Omit<Static<typeof EnvironmentPutSchema>, 'kind' | 'entrypoint'> & {
  readonly kind?: EnvironmentKind;
  readonly entrypoint?: EntrypointMode;
};

export const EnvironmentSchema = Type.Object(
  {
    name: Type.String(),
    kind: EnvironmentKindSchema,
    entrypoint: EntrypointModeSchema,
    description: Type.String(),
    createdAtMs: Type.Integer(),
    image: EnvironmentImageSchema,
  },
  closed,
);
export type Environment = Omit<Static<typeof EnvironmentSchema>, 'kind' | 'entrypoint'> & {
  readonly kind: EnvironmentKind;
  readonly entrypoint: EntrypointMode;
};

/** The id of the exec that is ENTRYPOINT and CMD of the image. */
export const ENTRYPOINT_EXEC_ID = 'entrypoint';

export const KeyCreateSchema = Type.Object(
  {
    name: Type.String({ pattern: '^[A-Za-z0-9][A-Za-z0-9 ._@-]{0,127}$' }),
    readOnly: Type.Optional(Type.Boolean()),
    builder: Type.Optional(Type.Boolean()),
  },
  closed,
);
export const KeySchema = Type.Object(
  {
    keyId: Type.String(),
    name: Type.String(),
    readOnly: Type.Boolean(),
    builder: Type.Boolean({ description: 'May make layers and environments out of sandboxes.' }),
    createdAtMs: Type.Integer(),
    revokedAtMs: Type.Union([Type.Integer(), Type.Null()]),
  },
  { ...closed, description: 'An API key without its secret.' },
);
export type KeyInfo = Static<typeof KeySchema>;
export const NewKeySchema = Type.Object(
  { key: Type.String({ description: 'The secret; it is shown this once.' }), info: KeySchema },
  closed,
);

/** The body of every failed request. */
export const ErrorBodySchema = Type.Object(
  {
    error: Type.Object(
      {
        code: Type.String(),
        message: Type.String(),
        details: Type.Record(Type.String(), Type.Unknown()),
        retryable: Type.Boolean(),
        infrastructure: Type.Boolean(),
        fix: Type.String(),
        requestId: Type.String(),
      },
      closed,
    ),
  },
  closed,
);
export type ErrorBody = Static<typeof ErrorBodySchema>;
