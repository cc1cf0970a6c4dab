/**
 * Creates sandboxes: admission, then the journal and the backend at the same time, then the channel. A create is answered when commands
 * run in the sandbox and its record is durable; whatever goes wrong before, nothing of it is left.
 */
import type { Backend, BackendKind, Channel, SandboxSpec } from '@dsec/backends';
import {
  ENTRYPOINT_EXEC_ID,
  limits,
  networkInForce,
  PlatformError,
  type Cause,
  type CreateSandbox,
  type EnvironmentConfig,
  type EnvironmentImage,
  type Policy,
  type Principal,
  type SandboxIds,
} from '@dsec/contract';
import { Semaphore } from '@dsec/kit';
import { describeFailure, type CausedFailure } from './create-failure.ts';
import { Creation } from './creation.ts';
import type { Claim } from './idempotency.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { Policies } from './policy/policies.ts';
import { endedError, Sandbox } from './sandbox.ts';
import { causeIn } from './sandbox-machine.ts';
import { RECORD_VERSION, type SandboxRecord } from './sandbox-record.ts';

/** Creates that may wait for their turn: single ones, and the ones in turn of bulk creates. */
const MAX_WAITING = 8192;
/** How long the program of the image may take to begin. */
const ENTRYPOINT_TIMEOUT_MS = 30_000;
/** How long the node may take for one sandbox. */
const MAKE_TIMEOUT_MS = 60_000;

export interface CreateRequest {
  readonly principal: Principal;
  readonly request: CreateSandbox;
  readonly image: EnvironmentImage;
  readonly claim: Claim | undefined;
}

export interface CreatorParts {
  readonly lifecycle: Lifecycle;
  readonly backend: Backend;
  readonly policies: Policies;
  readonly ids: SandboxIds;
  readonly edge: number;
  /** Sandboxes that are made at the same time. */
  readonly concurrency: number;
  /** @throws PlatformError `no_capacity` when the node has too little left, whatever is promised */
  readonly checkPressure: () => void;
}

export class Creator {
  readonly #parts: CreatorParts;
  readonly #semaphore: Semaphore;

  constructor(parts: CreatorParts) {
    this.#parts = parts;
    this.#semaphore = new Semaphore({ permits: parts.concurrency, maxWaiting: MAX_WAITING });
  }

  /**
   * Begins a create, or finds the one that the same key began before: still under way, or done.
   * @throws PlatformError `backend_unsupported`, `invalid_argument`, `service_unknown`, `network_unavailable`, `idempotency_conflict`, `no_capacity`
   */
  begin(create: CreateRequest): Sandbox {
    const { lifecycle, backend, policies, checkPressure } = this.#parts;
    const { registry, idempotency, ledger } = lifecycle.parts;
    checkBackend(create.request, backend.kind);
    const policy = policies.first(create.request);
    const known = create.claim === undefined ? undefined : idempotency.find(create.principal.project, create.claim);
    if (known !== undefined) return known;
    checkPressure();
    const record = this.#recordOf(create, policy);
    const rules = policies.hold(policy);
    const sandbox = new Sandbox(record);
    try {
      sandbox.reservation = ledger.reserve(record);
    } catch (error) {
      rules.release();
      throw error;
    }
    sandbox.rules = rules;
    sandbox.creation = new Creation(() => lifecycle.apply(sandbox, { type: 'cancelled' }));
    registry.add(sandbox);
    idempotency.add(sandbox);
    lifecycle.watch(sandbox);
    void this.#create(sandbox, sandbox.creation, create.image.config);
    return sandbox;
  }

  /** Never rejects. */
  async #create(sandbox: Sandbox, creation: Creation, config: EnvironmentConfig): Promise<void> {
    const { lifecycle } = this.#parts;
    const { clock, logger, journal } = lifecycle.parts;
    const startedMs = clock.monotonicMs();
    const timings: Timings = {};
    const written = journal.begin(sandbox.record).then(() => {
      timings.journalMs = clock.monotonicMs() - startedMs;
    });
    const making = this.#make(sandbox, timings, config);
    sandbox.making = making.then(ignore, ignore);
    const [wrote, made] = await Promise.allSettled([written, making]);
    sandbox.making = undefined;
    const failure =
      made.status === 'rejected'
        ? describeFailure(made.reason)
        : wrote.status === 'rejected'
          ? describeFailure(wrote.reason, 'internal')
          : undefined;
    lifecycle.apply(
      sandbox,
      failure === undefined ? { type: 'created' } : { type: 'create_failed', cause: failure.cause },
    );
    const error = refusalOf(sandbox, failure);
    sandbox.creation = undefined;
    const fields = {
      sandboxId: sandbox.sandboxId,
      project: sandbox.record.project,
      environment: sandbox.record.environment,
      keyId: sandbox.record.keyId,
      profile: sandbox.record.policy.profile,
      policyVersion: sandbox.record.policy.version,
      durationMs: rounded(clock.monotonicMs() - startedMs),
      journalMs: rounded(timings.journalMs),
      layersMs: rounded(timings.layersMs),
      queueMs: rounded(timings.queueMs),
      backendMs: rounded(timings.backendMs),
      networkMs: rounded(timings.networkMs),
    };
    if (error === undefined) {
      logger.info('sandbox.create', { ...fields, outcome: 'ok' });
      creation.succeed(sandbox.info());
    } else {
      logger.warn('sandbox.create', { ...fields, outcome: error.code, error });
      creation.fail(error);
    }
  }

  /** Makes it on the node, opens its channel, and starts what its environment says. */
  async #make(sandbox: Sandbox, timings: Timings, config: EnvironmentConfig): Promise<void> {
    const { lifecycle, backend } = this.#parts;
    const { clock } = lifecycle.parts;
    const begunMs = clock.monotonicMs();
    const providing = backend.provide(sandbox.record.layers);
    // Before its turn: a slow store holds up none that need nothing of it.
    if (providing !== undefined) await Promise.race([providing, sandbox.ended.opened]);
    const queuedMs = clock.monotonicMs();
    timings.layersMs = queuedMs - begunMs;
    using _permit = await this.#semaphore.acquire();
    const startedMs = clock.monotonicMs();
    timings.queueMs = startedMs - queuedMs;
    // It may have been stopped while it waited.
    if (!sandbox.isLive) return;
    // Beside all else: its policy is in force before it is there.
    const uplink = lifecycle.parts.uplinks.begin(sandbox, networkInForce(sandbox.record.policy), MAKE_TIMEOUT_MS);
    const making = backend.create(
      specOf(sandbox.record, uplink?.resolver),
      lifecycle.channels.optionsFor(sandbox, MAKE_TIMEOUT_MS),
    );
    const { channel, absentTripwires } = await making.catch((error: unknown) => {
      uplink?.giveUp();
      throw error;
    });
    timings.backendMs = clock.monotonicMs() - startedMs;
    lifecycle.parts.behaviour.noteMade(sandbox, absentTripwires);
    const argv = [...config.entrypoint, ...config.cmd];
    try {
      // Before its first command, and before anybody hears of it.
      await uplink?.opened(channel);
      timings.networkMs = clock.monotonicMs() - startedMs - timings.backendMs;
      if (argv.length > 0) {
        lifecycle.parts.behaviour.commands.note(sandbox.sandboxId, { execId: ENTRYPOINT_EXEC_ID, argv });
        await begin(sandbox.record, channel, argv);
      }
    } catch (error) {
      await channel.close();
      throw error;
    }
    lifecycle.channels.install(sandbox, channel);
    if (argv.length > 0) sandbox.detached?.add(ENTRYPOINT_EXEC_ID);
  }

  #recordOf({ principal, request, image, claim }: CreateRequest, policy: Policy): SandboxRecord {
    const { ids, edge, lifecycle } = this.#parts;
    const { random, clock } = lifecycle.parts;
    const sandboxId = ids.create(edge, random.bytes(8));
    const nowMs = clock.now();
    return {
      version: RECORD_VERSION,
      sandboxId,
      project: principal.project,
      keyId: principal.keyId,
      phase: 'creating',
      cause: null,
      createdAtMs: nowMs,
      endedAtMs: null,
      ttlEndsAtMs: nowMs + (request.ttlSeconds ?? limits.ttlSeconds.default) * 1000,
      ttlRunningStopSeconds: request.ttlRunningStopSeconds ?? limits.ttlRunningStopSeconds.default,
      environment: request.environment,
      ...(request.workspace === undefined ? {} : { workspace: request.workspace }),
      ...(request.toolkits === undefined ? {} : { toolkits: request.toolkits }),
      backend: request.backend ?? 'container',
      layers: image.layers,
      memoryMib: request.memoryMib ?? limits.memoryMib.default,
      cpuMillis: request.cpuMillis ?? limits.cpuMillis.default,
      diskMib: request.diskMib ?? limits.diskMib.default,
      pids: request.pids ?? limits.pids.default,
      user: request.user ?? (image.config.user === '' ? 'root' : image.config.user),
      workdir: request.workdir ?? (image.config.workdir === '' ? '/' : image.config.workdir),
      hostname: request.hostname ?? sandboxId,
      env: { ...image.config.env, ...request.env },
      policy,
      metadata: request.metadata ?? {},
      idempotency: claim ?? null,
    };
  }
}

/** What a create spent its time on. */
interface Timings {
  /** Until the record was durable. */
  journalMs?: number;
  /** Bringing layers to the node. */
  layersMs?: number;
  /** Waiting for its turn. */
  queueMs?: number;
  /** The launcher's work and the channel. */
  backendMs?: number;
  /** What of its uplink and its policy came after that. */
  networkMs?: number;
}

const ignore = (): void => undefined;
const rounded = (ms: number | undefined): number => Math.round((ms ?? 0) * 1000) / 1000;

const specOf = (record: SandboxRecord, nameserver: string | undefined): SandboxSpec => ({
  sandboxId: record.sandboxId,
  layers: record.layers,
  hostname: record.hostname,
  nameserver,
  memoryMib: record.memoryMib,
  cpuMillis: record.cpuMillis,
  pids: record.pids,
  diskMib: record.diskMib,
  profile: record.policy.profile,
  tripwires: record.policy.tripwires ?? [],
});

/** Starts the program of the image; it is a command like those that come later. */
async function begin({ env, user, workdir }: SandboxRecord, channel: Channel, argv: readonly string[]): Promise<void> {
  await channel.start(
    { execId: ENTRYPOINT_EXEC_ID, argv, env, user, cwd: workdir },
    { timeoutMs: ENTRYPOINT_TIMEOUT_MS },
  );
}

/** Why the caller does not get a running sandbox; undefined when he does. */
function refusalOf(sandbox: Sandbox, failure: CausedFailure | undefined): PlatformError | undefined {
  const cause: Cause | null = causeIn(sandbox.state);
  if (cause === null) return undefined;
  const { sandboxId } = sandbox;
  if (failure !== undefined && cause === failure.cause) return failure.error;
  switch (cause.kind) {
    case 'cancelled':
      return new PlatformError('cancelled', `the creation of sandbox ${sandboxId} was cancelled`);
    case 'stopped':
    case 'ttl':
      return endedError(sandboxId, cause);
    default: {
      const details = { sandboxId, cause: cause.kind, infrastructure: cause.infrastructure, detail: cause.detail };
      return new PlatformError('create_failed', `sandbox ${sandboxId} ended while it was made`, { details });
    }
  }
}

function checkBackend(request: CreateSandbox, supported: BackendKind): void {
  const wanted = request.backend ?? 'container';
  if (wanted === supported) return;
  throw new PlatformError('backend_unsupported', `this node does not offer the backend ${wanted}`, {
    details: { backend: wanted, supported: [supported] },
  });
}
