/** The methods of the launcher (docs/wire.md); what comes back is checked. */
import { limits, PlatformError, type ProfileName } from '@dsec/contract';
import { type Static, Type } from 'typebox';

import { type Answer, answer, closed } from './answer.ts';
import { type DeniedAct, deniedAct } from './behaviour-answers.ts';
import { MessageStream } from './message-stream.ts';
import type { WireClient } from './wire/client.ts';
import type { StreamOptions, WireStream } from './wire/stream-api.ts';

const MAX_SANDBOXES = 65_536;
/** A path longer than this is no address of a unix socket. */
const MAX_SOCKET_PATH = 107;

const sandboxId = Type.String({ pattern: '^[a-z0-9]{1,24}$' });
const count = Type.Integer({ minimum: 0, maximum: Number.MAX_SAFE_INTEGER });
const pid = Type.Integer({ minimum: 1, maximum: 0x7fff_ffff });
const signal = Type.Integer({ minimum: 1, maximum: 64 });
const exitCode = Type.Integer({ minimum: 0, maximum: 255 });

const NodeInfoSchema = closed({
  version: Type.String({ maxLength: 64 }),
  kernel: Type.String({ maxLength: 256 }),
  cgroup: Type.Union([Type.Literal(1), Type.Literal(2)]),
  quota: Type.Union([Type.Literal('btrfs'), Type.Literal('none')]),
  slots: count,
  live: count,
  /** Sandboxes made ahead that nobody has yet. */
  blanks: count,
  /** Those of them that have a root filesystem already. */
  furnished: Type.Optional(count),
  diskTotalBytes: count,
  diskFreeBytes: count,
});
export type NodeInfo = Static<typeof NodeInfoSchema>;

const CreatedSchema = closed({
  id: sandboxId,
  pid,
  socket: Type.String({ minLength: 1, maxLength: MAX_SOCKET_PATH }),
  /** Tripwires that are no file of its root, and so are not watched. */
  absentTripwires: Type.Optional(Type.Array(Type.String(), { maxItems: limits.tripwires })),
});
export type CreatedSandbox = Static<typeof CreatedSchema>;

const ExitSchema = closed({
  exitCode: Type.Optional(exitCode),
  signal: Type.Optional(signal),
  oomKills: Type.Optional(count),
});
const ListedSchema = closed({
  id: sandboxId,
  pid: Type.Integer({ minimum: 0, maximum: 0x7fff_ffff }),
  state: Type.Union([Type.Literal('live'), Type.Literal('exited')]),
  createdAtMs: Type.Number(),
  exit: Type.Optional(ExitSchema),
});
export type ListedSandbox = Static<typeof ListedSchema>;

const UsageSchema = closed({
  memoryBytes: count,
  memoryPeakBytes: count,
  cpuUsec: count,
  pids: count,
  diskBytes: count,
  oomKills: count,
});
export type SandboxUsage = Static<typeof UsageSchema>;

const ChangesReadySchema = closed({
  socket: Type.String({ minLength: 1, maxLength: MAX_SOCKET_PATH }),
  /** How long the sandbox stood still, in microseconds. */
  frozenUs: count,
});
export type ChangesReady = Static<typeof ChangesReadySchema>;
const ChangesSentSchema = closed({ entries: count, bytes: count });
export type ChangesSent = Static<typeof ChangesSentSchema>;

const ExitedSchema = closed({
  exited: closed({
    id: sandboxId,
    exitCode: Type.Optional(exitCode),
    signal: Type.Optional(signal),
    oomKills: count,
  }),
});
/** The first process of a sandbox has ended. */
export type ExitedSandbox = Static<typeof ExitedSchema>['exited'];

const nodeInfo = answer(NodeInfoSchema);
const created = answer(CreatedSchema);
const listed = answer(closed({ sandboxes: Type.Array(ListedSchema, { maxItems: MAX_SANDBOXES }) }));
const usage = answer(UsageSchema);
const changesReady = answer(ChangesReadySchema);
const changesSent = answer(ChangesSentSchema);
const exited = answer(ExitedSchema);
const none = answer(closed({}));

export interface SandboxCreateParams {
  readonly id: string;
  /** Digests, top first. */
  readonly layers: readonly string[];
  /** The set that they were merged into; needed for more than one. */
  readonly set?: string;
  readonly hostname: string;
  /** Whom programs inside ask for names; without one nobody. */
  readonly nameserver?: string;
  readonly memoryBytes: number;
  readonly cpuMillis: number;
  readonly pids: number;
  readonly diskBytes: number;
  /** What its processes may do. @default 'default' */
  readonly profile?: ProfileName;
  /** Files whose touch is told. @default none */
  readonly tripwires?: readonly string[];
}

/** Sandboxes that end, as they do, until it is reset. */
export type LauncherEvents = MessageStream<ExitedSandbox>;

/** The changes of a sandbox, which wait at a socket to be read. */
export class LauncherChanges {
  readonly ready: ChangesReady;
  readonly #stream: WireStream;

  constructor(ready: ChangesReady, stream: WireStream) {
    this.ready = ready;
    this.#stream = stream;
    // Whoever reads the bytes asks for it when they have ended.
    stream.result.catch(() => undefined);
  }

  /**
   * What the launcher says at the end: only then are the bytes that were read the whole archive.
   * @throws PlatformError `archive_unsafe`, `cancelled`, `internal`, `connection_lost`
   */
  async sent(): Promise<ChangesSent> {
    return changesSent(await this.#stream.result, this.#stream.method);
  }

  /** Loses interest. Idempotent. */
  reset(): void {
    this.#stream.reset();
  }
}

export class LauncherClient {
  readonly #wire: WireClient;

  constructor(wire: WireClient) {
    this.#wire = wire;
  }

  nodeInfo(options?: StreamOptions): Promise<NodeInfo> {
    return this.#call('node.info', {}, nodeInfo, options);
  }

  /** Resolves when aether runs and listens. */
  async sandboxCreate(params: SandboxCreateParams, options?: StreamOptions): Promise<CreatedSandbox> {
    const sandbox = await this.#call('sandbox.create', params, created, options);
    if (sandbox.id !== params.id) {
      throw new PlatformError('protocol_error', 'The launcher answered with another sandbox than was asked for.');
    }
    return sandbox;
  }

  /** Resolves when nothing of it is left; one that is not there is no error. */
  async sandboxDestroy(id: string, options?: StreamOptions): Promise<void> {
    await this.#call('sandbox.destroy', { id }, none, options);
  }

  async sandboxList(options?: StreamOptions): Promise<readonly ListedSandbox[]> {
    return (await this.#call('sandbox.list', {}, listed, options)).sandboxes;
  }

  sandboxUsage(id: string, options?: StreamOptions): Promise<SandboxUsage> {
    return this.#call('sandbox.usage', { id }, usage, options);
  }

  /**
   * Holds a sandbox still for a moment and offers what it has written since its creation, as it was in that moment.
   * @throws PlatformError `sandbox_not_found`, `sandbox_not_ready`, `too_many_requests`, `disk_full`
   */
  async sandboxChanges(id: string, options?: StreamOptions): Promise<LauncherChanges> {
    const stream = this.#wire.open('sandbox.changes', { id }, options);
    const first = await stream.next();
    // Without a message the stream ended by an error, which is thrown here.
    if (first.done === true) await stream.result;
    if (first.done !== true && first.value.type === 'message') {
      return new LauncherChanges(changesReady(first.value.value, stream.method), stream);
    }
    stream.reset();
    throw new PlatformError('protocol_error', 'The launcher did not say where the changes are.');
  }

  events(options?: StreamOptions): LauncherEvents {
    return new MessageStream(this.#wire.open('events', {}, options), (value, method) => exited(value, method).exited);
  }

  /** What programs tried and were denied, and touches of tripwires, as they happen. */
  behaviour(options?: StreamOptions): MessageStream<DeniedAct> {
    return new MessageStream(this.#wire.open('behaviour', {}, options), deniedAct);
  }

  async layerForget(digest: string, options?: StreamOptions): Promise<void> {
    await this.#call('layer.forget', { digest }, none, options);
  }

  /** @throws PlatformError `layer_in_use` while a sandbox stands on it */
  async setForget(set: string, options?: StreamOptions): Promise<void> {
    await this.#call('set.forget', { set }, none, options);
  }

  async #call<T>(method: string, params: object, check: Answer<T>, options?: StreamOptions): Promise<T> {
    return check(await this.#wire.call(method, params, options), method);
  }
}
