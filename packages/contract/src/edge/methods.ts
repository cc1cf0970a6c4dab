/**
 * What an apiserver asks of an edge, over the wire protocol. The methods of aether (`exec.*`, `session.*`, `file.*`, `tree.*`,
 * `port.connect`, `processes`) are asked under their own names with `sandboxId` added to the params; the edge checks that one field,
 * fills `env`, `user` and `cwd` of `exec.start` and `session.open` from the sandbox, and relays the rest unread.
 */
import { Type, type Static } from 'typebox';
import { limits } from '../limits.ts';
import { BehaviourCursorSchema, behaviourKinds, BehaviourKindSchema } from '../public/behaviour.ts';
import { DigestSchema, EnvironmentConfigSchema, EnvironmentImageSchema } from '../public/environment.ts';
import { LayerReleaseSchema } from '../public/layer-release.ts';
import { PackRequestSchema } from '../public/pack.ts';
import { PhaseRequestSchema, PolicyUpdateSchema } from '../public/policy.ts';
import {
  CreateSandboxSchema,
  EnvironmentNameSchema,
  MetadataSchema,
  SandboxIdSchema,
  SandboxPatchSchema,
  SandboxSchema,
  type SandboxInfo,
} from '../public/sandbox.ts';

const closed = { additionalProperties: false } as const;

/** Who asks: set by the apiserver after it has checked the key. */
export const PrincipalSchema = Type.Object(
  { keyId: Type.String({ maxLength: 64 }), project: Type.String({ maxLength: 64 }) },
  closed,
);
export type Principal = Static<typeof PrincipalSchema>;

export const IdempotencySchema = Type.Object(
  {
    key: Type.String({ minLength: 1, maxLength: limits.idempotencyKeyChars }),
    fingerprint: Type.String({ maxLength: 64 }),
  },
  closed,
);

/** Who asks for the policy of a sandbox: its maker, or the key of a builder of its project. */
const PolicyPrincipalSchema = Type.Object(
  {
    ...PrincipalSchema.properties,
    isBuilder: Type.Boolean({ description: 'May change what others of the project have made.' }),
  },
  closed,
);
export type PolicyPrincipal = Static<typeof PolicyPrincipalSchema>;

const SandboxParams = Type.Object({ sandboxId: SandboxIdSchema }, closed);

/**
 * What somebody asked the edge for on a connection on which no apiserver has proved itself: the permissions of the socket let it in, and nothing of it is in
 * the audit log otherwise.
 */
export const StrangerOperationSchema = Type.Object(
  {
    atMs: Type.Integer(),
    method: Type.String({ maxLength: 64 }),
    sandboxId: Type.Optional(Type.String({ maxLength: 64 })),
    claimedKeyId: Type.Optional(Type.String({ maxLength: 64 })),
    missed: Type.Integer({ minimum: 0, description: 'So many came before it that are not told.' }),
  },
  closed,
);
export type StrangerOperation = Static<typeof StrangerOperationSchema>;

/** Params of each method of the edge itself. */
export const edgeParams = {
  /** ok {}: from now on this connection is of the apiserver, which has the secret alone. `permission_denied` otherwise */
  'edge.prove': Type.Object({ secret: Type.String({ maxLength: 128 }) }, closed),
  /** MESSAGE StrangerOperation ...: those of before that nobody was told of, and what comes; ends by RESET. For a proved connection */
  'edge.strangers': Type.Object({}, closed),
  /** ok EdgeStatus */
  'edge.info': Type.Object({}, closed),
  /** ok SandboxInfo, when the first exec works. `count` is absent: one sandbox. */
  'sandbox.create': Type.Object(
    {
      principal: PrincipalSchema,
      request: CreateSandboxSchema,
      image: EnvironmentImageSchema,
      idempotency: Type.Optional(IdempotencySchema),
    },
    closed,
  ),
  /** MESSAGE BulkItem ..., ok {created, failed}. RESET cancels what has not begun. */
  'sandbox.createMany': Type.Object(
    {
      principal: PrincipalSchema,
      request: CreateSandboxSchema,
      image: EnvironmentImageSchema,
      count: Type.Integer({ minimum: 1, maximum: limits.bulk }),
      idempotency: Type.Optional(IdempotencySchema),
    },
    closed,
  ),
  /** ok SandboxInfo */
  'sandbox.get': SandboxParams,
  /** ok SandboxPage */
  'sandbox.list': Type.Object(
    {
      project: Type.String(),
      metadata: Type.Optional(MetadataSchema),
      states: Type.Optional(Type.Array(SandboxSchema.properties.state, { maxItems: 8 })),
      cursor: Type.Optional(Type.String({ maxLength: 256 })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.pageSize.maximum })),
    },
    closed,
  ),
  /** ok SandboxInfo, when nothing of it is left. */
  'sandbox.stop': SandboxParams,
  /** MESSAGE BulkItem ..., ok {stopped, failed} */
  'sandbox.stopMany': Type.Object(
    {
      project: Type.String(),
      sandboxIds: Type.Optional(Type.Array(SandboxIdSchema, { maxItems: limits.bulk })),
      metadata: Type.Optional(MetadataSchema),
    },
    closed,
  ),
  /** ok SandboxInfo */
  'sandbox.patch': Type.Object({ sandboxId: SandboxIdSchema, patch: SandboxPatchSchema }, closed),
  /** ok Policy */
  'policy.get': Type.Object({ sandboxId: SandboxIdSchema, principal: PolicyPrincipalSchema }, closed),
  /** ok Policy, when it is in force and durable */
  'policy.set': Type.Object(
    { sandboxId: SandboxIdSchema, principal: PolicyPrincipalSchema, update: PolicyUpdateSchema },
    closed,
  ),
  /** ok Policy, when it is in force and durable */
  'policy.phase': Type.Object(
    { sandboxId: SandboxIdSchema, principal: PolicyPrincipalSchema, request: PhaseRequestSchema },
    closed,
  ),
  /** ok BehaviourReport, of one that has ended too */
  'behaviour.report': Type.Object({ sandboxId: SandboxIdSchema, project: Type.String({ maxLength: 64 }) }, closed),
  /** MESSAGE BehaviourLine ..., ok {} when it does not follow and all that is kept was sent. RESET ends it. */
  'behaviour.events': Type.Object(
    {
      project: Type.Optional(Type.String({ maxLength: 64, description: 'Default: of all projects.' })),
      sandboxId: Type.Optional(SandboxIdSchema),
      kinds: Type.Optional(Type.Array(BehaviourKindSchema, { minItems: 1, maxItems: behaviourKinds.length })),
      after: Type.Optional(
        Type.Union([BehaviourCursorSchema, Type.Literal('now')], { description: 'Default: all that is kept.' }),
      ),
      follow: Type.Optional(Type.Boolean({ description: 'Go on with what happens from now on. Default false.' })),
    },
    closed,
  ),
  /** ok Usage */
  'sandbox.usage': SandboxParams,
  /** ok LayersInUse: of these layers, and how many live sandboxes run from the environment of this name */
  'layer.usage': Type.Object(
    { environment: EnvironmentNameSchema, layers: Type.Array(DigestSchema, { maxItems: limits.layers }) },
    closed,
  ),
  /** ok ReleasedLayers, without what environments name */
  'layer.release': LayerReleaseSchema,
  /** ok CompositionPage */
  'composition.list': Type.Object(
    {
      cursor: Type.Optional(Type.String({ pattern: '^[0-9]{1,16}$' })),
      limit: Type.Optional(Type.Integer({ minimum: 1, maximum: limits.pageSize.maximum })),
    },
    closed,
  ),
  /** MESSAGE {frozenMs}, DATA ..., ok {}: what it has written since its creation, as an archive (`SandboxChanges` of the backends). */
  'sandbox.changes': SandboxParams,
  /** MESSAGE PackProgress ..., ok {image?, report, frozenMs, layers} */
  'sandbox.pack': Type.Object(
    {
      sandboxId: SandboxIdSchema,
      principal: PrincipalSchema,
      request: PackRequestSchema,
      config: EnvironmentConfigSchema,
      architecture: Type.String({ maxLength: 32 }),
      idempotency: Type.Optional(IdempotencySchema),
    },
    closed,
  ),
} as const;
export type EdgeMethod = keyof typeof edgeParams;

/** Params of each method of the packer of an edge. */
export const packerParams = {
  /** DATA ..., END: the archive of `sandbox.changes`; MESSAGE PackProgress ..., ok {image?, report} */
  pack: Type.Object(
    { request: PackRequestSchema, config: EnvironmentConfigSchema, architecture: Type.String({ maxLength: 32 }) },
    closed,
  ),
} as const;

/** Methods of aether that an edge relays. */
export const relayedMethods = [
  'exec.start',
  'exec.attach',
  'exec.stdin',
  'exec.signal',
  'exec.resize',
  'exec.get',
  'exec.list',
  'session.open',
  'session.close',
  'session.list',
  'file.stat',
  'file.list',
  'file.read',
  'file.write',
  'file.mkdir',
  'file.remove',
  'file.move',
  'file.chmod',
  'file.chown',
  'file.symlink',
  'file.watch',
  'tree.read',
  'tree.write',
  'port.connect',
  'processes',
] as const;
export type RelayedMethod = (typeof relayedMethods)[number];

/** Relayed methods whose open stream counts as activity of the sandbox for its idle timeout. */
export const busyMethods: ReadonlySet<RelayedMethod> = new Set<RelayedMethod>([
  'exec.start',
  'exec.attach',
  'exec.stdin',
  'file.watch',
  'file.read',
  'file.write',
  'tree.read',
  'tree.write',
  'port.connect',
]);

export interface SandboxPage {
  readonly sandboxes: readonly SandboxInfo[];
  readonly cursor: string | null;
}

/** One line of a bulk create or stop. */
export type BulkItem =
  | { readonly index: number; readonly sandbox: SandboxInfo }
  | {
      readonly index: number;
      readonly error: {
        readonly code: string;
        readonly message: string;
        readonly details: Readonly<Record<string, unknown>>;
      };
    };

export interface EdgeStatus {
  readonly edge: number;
  readonly live: number;
  readonly version: string;
  readonly capacity: Readonly<
    Record<'memoryMib' | 'pids' | 'diskMib' | 'sandboxes', { readonly limit: number; readonly used: number }>
  >;
}
