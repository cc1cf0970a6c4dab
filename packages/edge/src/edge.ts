/** One edge: builds its parts, brings back what the journal knows, and serves until it is closed. The sandboxes outlive it. */
import { chmod } from 'node:fs/promises';
import type { ActObserver, Backend } from '@dsec/backends';
import { allowsAnything, networkInForce, SandboxIds } from '@dsec/contract';
import { Scope, type Clock, type Connection, type Logger, type Network, type Random } from '@dsec/kit';
import { serve, type WireServer } from '@dsec/native-link';
import { Ledger } from './admission.ts';
import { Behaviour } from './behaviour/behaviour.ts';
import type { EdgeConfig } from './config.ts';
import { Creator } from './creator.ts';
import { EdgeServer } from './edge-server.ts';
import { IdempotencyIndex } from './idempotency.ts';
import { Journal, type JournalOpened, type JournalSink } from './journal.ts';
import { Lifecycle } from './lifecycle.ts';
import { Lifetimes } from './lifetimes.ts';
import { kernelFiles, readBootId } from './node-facts.ts';
import { NodeWatch } from './node-watch.ts';
import { Packs } from './packs.ts';
import { Policies } from './policy/policies.ts';
import { RuleBudget } from './policy/rule-budget.ts';
import { Uplinks } from './policy/uplinks.ts';
import { Reconciler } from './reconciler.ts';
import { Registry } from './registry.ts';
import { Sandbox, stateOfRecord } from './sandbox.ts';
import { Strangers, type Peer } from './strangers.ts';

/** How long a starting edge waits for the launcher before it answers its apiservers without it. */
const SETTLE_MS = 10_000;
/** How long it waits for the removal of what had ended already. */
const ENDING_MS = 2000;
/** How often ended sandboxes that are too old are forgotten. */
const PRUNE_MS = 600_000;
const HOUR_MS = 3_600_000;
/** Connections of apiservers at once. */
const MAX_CONNECTIONS = 256;
/** The owner and the group of the directory, which is that of the apiservers. */
const SOCKET_MODE = 0o660;

export interface EdgeParts {
  readonly config: EdgeConfig;
  readonly idKey: Buffer;
  readonly backend: Backend;
  readonly journal: JournalSink;
  readonly clock: Clock;
  readonly random: Random;
  readonly network: Network;
  readonly logger: Logger;
}

export class Edge implements AsyncDisposable {
  readonly lifecycle: Lifecycle;
  readonly reconciler: Reconciler;
  readonly #scope: Scope;

  private constructor(lifecycle: Lifecycle, reconciler: Reconciler, scope: Scope) {
    this.lifecycle = lifecycle;
    this.reconciler = reconciler;
    this.#scope = scope;
  }

  /** Resolves when it serves. */
  static async start(parts: EdgeParts): Promise<Edge> {
    const { config, backend, clock, random, logger } = parts;
    const scope = new Scope({
      clock,
      onFailure: (name, error) => logger.error('edge.loop', { name, outcome: 'failed', error }),
    });
    try {
      const journal = scope.own('journal', new Journal(parts.journal));
      const bootId = await readBootId(kernelFiles);
      const opened = await journal.open(config.journal, bootId, config.countHalfLifeHours * HOUR_MS);
      const ledger = new Ledger({ memoryMib: 0, pids: 0, diskMib: 0, sandboxes: 0 });
      const lifetimes = scope.own('lifetimes', new Lifetimes(clock));
      const registry = new Registry();
      const idempotency = new IdempotencyIndex();
      const uplinks = new Uplinks({ network: backend.network, registry, clock, random, logger });
      const policies = new Policies({ uplinks, budget: new RuleBudget(), journal, clock, logger });
      const behaviour = scope.own(
        'behaviour',
        new Behaviour({ registry, directory: config.behaviourDirectory, clock, logger }),
      );
      const lifecycle = scope.own(
        'lifecycle',
        new Lifecycle({
          backend,
          journal,
          registry,
          idempotency,
          ledger,
          lifetimes,
          uplinks,
          behaviour,
          clock,
          random,
          logger,
          signal: scope.signal,
        }),
      );
      load(opened, lifecycle, policies);
      await behaviour.open();
      const watch = new NodeWatch({
        backend,
        ledger,
        clock,
        logger,
        files: kernelFiles,
        capacity: config,
        pressure: config,
      });
      const ids = new SandboxIds(parts.idKey);
      const creator = new Creator({
        lifecycle,
        backend,
        policies,
        ids,
        edge: config.edge,
        concurrency: config.createConcurrency,
        checkPressure: () => watch.check(),
      });
      const isRebooted = opened.bootId !== undefined && opened.bootId !== bootId;
      const reconciler = new Reconciler({
        backend,
        lifecycle,
        clock,
        random,
        logger,
        intervalMs: config.reconcileMs,
        isRebooted,
      });
      scope.own('backend', backend);
      await backend.prepare();
      const acts: ActObserver = {
        onAct: (act) => behaviour.onAct(act),
        onActsLost: (count) => behaviour.onActsLost(count),
      };
      backend.start({
        onReady: () => reconciler.wake(),
        onExited: (sandboxId, exit) => {
          const sandbox = registry.get(sandboxId);
          if (sandbox !== undefined) lifecycle.exited(sandbox, exit);
        },
        ...acts,
      });
      backend.network.start({ onReady: () => uplinks.doubtAll(), ...acts });
      scope.run('network', (signal) => uplinks.run(signal));
      scope.run('reconcile', (signal) => reconciler.run(signal));
      scope.run('node', (signal) => watch.run(signal));
      scope.run('prune', (signal) => pruneForever(lifecycle, clock, signal));
      await within(SETTLE_MS, [reconciler.settled.opened, watch.measured.opened], clock);
      // What was told to be stopped is shown as stopped again, although its last record may not have been written.
      await within(
        ENDING_MS,
        [...registry.unfinished()].filter((sandbox) => !sandbox.isLive).map((sandbox) => sandbox.over.opened),
        clock,
      );
      const { network } = parts;
      const packs = new Packs({ backend, network, clock, packerSocket: config.packerSocket, signal: scope.signal });
      const { layersDirectory } = config.sets;
      const server = new EdgeServer({
        edge: config.edge,
        ids,
        backend,
        lifecycle,
        creator,
        packs,
        policies,
        behaviour,
        layersDirectory,
        strangers: strangersOf(config, clock, logger, scope),
      });
      await listen(parts, server, scope);
      logger.info('edge.start', {
        outcome: 'ok',
        edge: config.edge,
        records: opened.records.length,
        live: ledger.used.sandboxes,
      });
      return new Edge(lifecycle, reconciler, scope);
    } catch (error) {
      await scope.close().catch((failure: unknown) => logger.error('edge.stop', { outcome: 'failed', error: failure }));
      throw error;
    }
  }

  /** Leaves the sandboxes as they are. */
  [Symbol.asyncDispose](): Promise<void> {
    return this.#scope.close();
  }
}

/** An edge that knows no apiserver tells nobody apart. */
function strangersOf(
  { apiserverKeySha256: proofSha256 }: EdgeConfig,
  clock: Clock,
  logger: Logger,
  scope: Scope,
): Strangers | undefined {
  if (proofSha256 === undefined) return undefined;
  return scope.own('strangers', new Strangers({ proofSha256, clock, logger }));
}

/** Brings back what the journal knows. What of it lives is only known when the node was asked. */
function load(opened: JournalOpened, lifecycle: Lifecycle, policies: Policies): void {
  const { registry, idempotency, ledger, uplinks } = lifecycle.parts;
  for (const record of opened.records) {
    const sandbox = new Sandbox(record, stateOfRecord(record));
    registry.add(sandbox);
    idempotency.add(sandbox);
    if (!sandbox.isLive) {
      sandbox.ended.open();
      sandbox.endRecorded.open();
    }
    if (sandbox.isOver) {
      sandbox.over.open();
      registry.noteEnded(sandbox);
    } else {
      sandbox.reservation = ledger.adopt(record);
      sandbox.rules = policies.adopt(record.policy);
      sandbox.uplink = uplinks.stateAtStart(sandbox);
      sandbox.isResolverNamed = allowsAnything(networkInForce(record.policy));
      if (sandbox.isLive) lifecycle.watch(sandbox);
    }
  }
  registry.sortEnded();
  lifecycle.prune();
}

/** Waits for all of them, but no longer than this. */
async function within(timeoutMs: number, conditions: readonly Promise<unknown>[], clock: Clock): Promise<void> {
  const late = Promise.withResolvers<undefined>();
  const timer = clock.setTimer(timeoutMs, () => late.resolve(undefined));
  await Promise.race([Promise.all(conditions), late.promise]);
  timer.cancel();
}

async function pruneForever(lifecycle: Lifecycle, clock: Clock, signal: AbortSignal): Promise<void> {
  while (!signal.aborted) {
    await clock.sleep(PRUNE_MS, { signal }).catch(() => undefined);
    lifecycle.prune();
  }
}

async function listen({ config, network, clock, logger }: EdgeParts, server: EdgeServer, scope: Scope): Promise<void> {
  const connections = new Set<WireServer>();
  const onConnection = (connection: Connection): void => {
    if (connections.size >= MAX_CONNECTIONS) {
      connection.destroy();
      return;
    }
    const peer: Peer = { isProved: config.apiserverKeySha256 === undefined };
    const wire = serve(connection, (method, params, stream) => server.handle(method, params, stream, peer), {
      role: 'edge',
      clock,
      onFault: (error, method) => logger.error('edge.fault', { method, outcome: 'internal', error }),
      onClose: () => connections.delete(wire),
    });
    connections.add(wire);
  };
  const listener = await network.listenUnix(config.socket, onConnection);
  scope.defer('connections', async () => {
    await listener.close();
    await Promise.all([...connections].map((wire) => wire.close()));
  });
  await chmod(config.socket, SOCKET_MODE);
}
