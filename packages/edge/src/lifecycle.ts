/**
 * Carries out what the machine decides. Every change of a sandbox comes through `apply`, one event at a time; the effects that follow are
 * started here and report back as further events.
 */
import type { Backend, SandboxExit } from '@dsec/backends';
import { PlatformError, type SandboxInfo, type SandboxPatch } from '@dsec/contract';
import { Backoff, orAborted, withDeadline, type Clock, type Logger, type Random } from '@dsec/kit';
import type { Ledger } from './admission.ts';
import type { Behaviour } from './behaviour/behaviour.ts';
import { Channels } from './channels.ts';
import { Cleanup } from './cleanup.ts';
import type { IdempotencyIndex } from './idempotency.ts';
import type { Journal } from './journal.ts';
import type { Lifetimes } from './lifetimes.ts';
import type { Uplinks } from './policy/uplinks.ts';
import type { Registry } from './registry.ts';
import type { Sandbox } from './sandbox.ts';
import { endedPolicy, type SandboxRecord } from './sandbox-record.ts';
import { causeIn, isLive, transition, type Effect, type Exit, type SandboxEvent } from './sandbox-machine.ts';

/** How long a stop waits until nothing is left; the cleanup goes on after that. */
const STOP_WAIT_MS = 60_000;
const JOURNAL_RETRY = { baseMs: 50, maxMs: 2000 } as const;
/** How long the counters of a dead sandbox may take to be read. */
const EXIT_USAGE_MS = 200;
const SIGKILL = 9;
/** A quota counts as used up from here on; the last block may not fit. */
const FULL = 0.99;
const BYTES_PER_MIB = 1024 * 1024;

export interface LifecycleParts {
  readonly backend: Backend;
  readonly journal: Journal;
  readonly registry: Registry;
  readonly idempotency: IdempotencyIndex;
  readonly ledger: Ledger;
  readonly lifetimes: Lifetimes;
  readonly uplinks: Uplinks;
  readonly behaviour: Behaviour;
  readonly clock: Clock;
  readonly random: Random;
  readonly logger: Logger;
  /** Aborts when the edge closes: from then on nothing that breaks is held against a sandbox. */
  readonly signal: AbortSignal;
}

export interface WaitOptions {
  readonly signal?: AbortSignal | undefined;
}

export class Lifecycle implements AsyncDisposable {
  readonly parts: LifecycleParts;
  readonly channels: Channels;
  readonly #cleanup: Cleanup;

  constructor(parts: LifecycleParts) {
    this.parts = parts;
    const { backend, uplinks, clock, random, logger, signal } = parts;
    this.channels = new Channels({
      backend,
      clock,
      logger,
      signal,
      apply: (sandbox, event) => this.apply(sandbox, event),
    });
    this.#cleanup = new Cleanup({
      backend,
      uplinks,
      clock,
      random,
      logger,
      onDone: (sandbox) => this.apply(sandbox, { type: 'cleanup_done' }),
      onFailed: (sandbox) => this.apply(sandbox, { type: 'cleanup_failed' }),
    });
  }

  /** Sandboxes that have ended and are being removed. */
  get endingCount(): number {
    return this.#cleanup.size;
  }

  /** The one way in which a sandbox changes. */
  apply(sandbox: Sandbox, event: SandboxEvent): void {
    const before = sandbox.state;
    const { state, effects } = transition(before, event);
    sandbox.state = state;
    if (isLive(before) && !isLive(state)) this.#noteEnd(sandbox, before.phase === 'running');
    for (const effect of effects) this.#carryOut(sandbox, effect);
  }

  /** Puts a sandbox under its time to live. */
  watch(sandbox: Sandbox): void {
    sandbox.lifetime = this.parts.lifetimes.start({
      ttlEndsAtMs: sandbox.record.ttlEndsAtMs,
      idleMs: sandbox.record.ttlRunningStopSeconds * 1000,
      onEnd: (reason) => this.apply(sandbox, { type: reason === 'ttl' ? 'ttl_ended' : 'idle_ended' }),
    });
  }

  /**
   * Stops a sandbox and resolves when nothing of it is left and its end is durable; one that has ended already is no error.
   * @throws PlatformError `cleanup_incomplete` when it takes too long: the edge goes on
   */
  async stop(sandbox: Sandbox, options: WaitOptions = {}): Promise<SandboxInfo> {
    this.apply(sandbox, { type: 'stop_requested' });
    if (sandbox.isOver && sandbox.endRecorded.isOpen) return sandbox.info();
    const { clock } = this.parts;
    const what = `stopping sandbox ${sandbox.sandboxId}`;
    try {
      await withDeadline({ clock, what, timeoutMs: STOP_WAIT_MS, signal: options.signal }, (signal) =>
        orAborted(Promise.all([sandbox.over.opened, sandbox.endRecorded.opened]), signal),
      );
    } catch (cause) {
      if (!PlatformError.is(cause) || cause.code !== 'timeout') throw cause;
      throw new PlatformError(
        'cleanup_incomplete',
        `sandbox ${sandbox.sandboxId} has ended, but is not yet removed from the node`,
        {
          details: { sandboxId: sandbox.sandboxId },
          cause,
        },
      );
    }
    return sandbox.info();
  }

  /**
   * Moves the end of a live sandbox; resolves when that is durable.
   * @throws PlatformError `sandbox_ended`, `sandbox_failed`, `disk_full`
   */
  async patch(sandbox: Sandbox, patch: SandboxPatch): Promise<SandboxInfo> {
    if (!sandbox.isLive) throw sandbox.refusal();
    const { record } = sandbox;
    const isExtension = patch.extendOnly === true;
    const least = isExtension ? record : { ttlEndsAtMs: 0, ttlRunningStopSeconds: 0 };
    const ttlEndsAtMs =
      patch.ttlSeconds === undefined ? record.ttlEndsAtMs : this.parts.clock.now() + patch.ttlSeconds * 1000;
    const changed: SandboxRecord = {
      ...record,
      ttlEndsAtMs: Math.max(least.ttlEndsAtMs, ttlEndsAtMs),
      ttlRunningStopSeconds: Math.max(
        least.ttlRunningStopSeconds,
        patch.ttlRunningStopSeconds ?? record.ttlRunningStopSeconds,
      ),
    };
    sandbox.record = changed;
    sandbox.lifetime?.change({ ttlEndsAtMs: changed.ttlEndsAtMs, idleMs: changed.ttlRunningStopSeconds * 1000 });
    await this.parts.journal.write(changed);
    return sandbox.info();
  }

  /** The first process of a sandbox has ended. */
  exited(sandbox: Sandbox, exit: SandboxExit): void {
    if (!sandbox.isLive || this.parts.signal.aborted) return;
    const { exitCode, signal } = exit;
    // How a sandbox ended that an earlier launcher made is not known.
    const mayBeKilled = signal === SIGKILL || (signal === undefined && exitCode === undefined);
    const isKilledForMemory = mayBeKilled && exit.oomKills > sandbox.oomKillsSeen;
    if (exitCode === 0 || isKilledForMemory) {
      this.apply(sandbox, { type: 'exited', exit: { exitCode, signal, hint: isKilledForMemory ? 'oom' : undefined } });
      return;
    }
    void this.#limitMet(sandbox).then((hint) =>
      this.apply(sandbox, { type: 'exited', exit: { exitCode, signal, hint } }),
    );
  }

  /** Forgets ended sandboxes that are too old or too many. */
  prune(): void {
    const { registry, idempotency, journal, behaviour, clock, logger } = this.parts;
    for (const sandbox of registry.prune(clock.now())) {
      idempotency.remove(sandbox);
      journal.forget(sandbox.sandboxId).catch((error: unknown) => {
        // It comes back at the next start and is forgotten then.
        logger.warn('journal.forget', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
      });
      behaviour.forget(sandbox.sandboxId).catch((error: unknown) => {
        // The next start removes it.
        logger.warn('behaviour.forget', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
      });
    }
  }

  /** Leaves the sandboxes as they are and closes the channels to them. */
  async [Symbol.asyncDispose](): Promise<void> {
    this.#cleanup[Symbol.dispose]();
    await Promise.all([...this.parts.registry.unfinished()].map((sandbox) => this.channels.close(sandbox)));
  }

  #noteEnd(sandbox: Sandbox, hasRun: boolean): void {
    // A create that nobody can have used is done anew when it comes again.
    if (!hasRun) this.parts.idempotency.remove(sandbox);
    const { record } = sandbox;
    sandbox.record = {
      ...record,
      phase: sandbox.state.phase,
      cause: causeIn(sandbox.state),
      endedAtMs: Math.max(record.createdAtMs, this.parts.clock.now()),
      layers: [],
      env: {},
      policy: endedPolicy(record.policy),
      idempotency: hasRun ? record.idempotency : null,
    };
    sandbox.ended.open();
  }

  #carryOut(sandbox: Sandbox, effect: Effect): void {
    switch (effect) {
      case 'journal':
        void this.#record(sandbox);
        return;
      case 'arm':
        sandbox.lifetime?.arm();
        return;
      case 'disconnect':
        this.channels.disconnect(sandbox);
        return;
      case 'destroy':
        this.#cleanup.begin(sandbox);
        return;
      case 'retry':
        this.#cleanup.retry(sandbox);
        return;
      case 'release':
        this.#release(sandbox);
        return;
    }
  }

  /** Writes the end, and tries again until it is durable: what a caller is told of it must outlive this process. Never rejects. */
  async #record(sandbox: Sandbox): Promise<void> {
    const { journal, clock, random, logger, signal } = this.parts;
    const backoff = new Backoff(JOURNAL_RETRY, random);
    while (!signal.aborted) {
      try {
        sandbox.record = { ...sandbox.record, phase: sandbox.state.phase };
        await journal.write(sandbox.record);
        sandbox.endRecorded.open();
        return;
      } catch (error) {
        logger.error('journal.write', { sandboxId: sandbox.sandboxId, outcome: 'failed', error });
        await clock.sleep(backoff.nextMs(), { signal }).catch(() => undefined);
      }
    }
  }

  #release(sandbox: Sandbox): void {
    const { registry, behaviour, logger } = this.parts;
    sandbox.reservation?.release();
    sandbox.reservation = undefined;
    sandbox.rules?.release();
    sandbox.rules = undefined;
    sandbox.lifetime?.cancel();
    sandbox.lifetime = undefined;
    const { record } = sandbox;
    logger.info('sandbox.end', {
      sandboxId: sandbox.sandboxId,
      outcome: sandbox.state.phase,
      cause: causeIn(sandbox.state)?.kind,
      detail: causeIn(sandbox.state)?.detail,
      lifeMs: (record.endedAtMs ?? record.createdAtMs) - record.createdAtMs,
    });
    registry.noteEnded(sandbox);
    sandbox.over.open();
    behaviour.noteOver(sandbox);
    this.prune();
  }

  /** Which limit the counters of a dead sandbox show as met. Never rejects. */
  async #limitMet(sandbox: Sandbox): Promise<Exit['hint']> {
    const { record } = sandbox;
    try {
      const usage = await this.parts.backend.usage(sandbox.sandboxId, { timeoutMs: EXIT_USAGE_MS });
      if (usage.diskBytes >= record.diskMib * BYTES_PER_MIB * FULL) return 'disk';
      if (usage.pids >= record.pids) return 'pids';
    } catch (error) {
      this.parts.logger.debug('sandbox.usage', { sandboxId: sandbox.sandboxId, outcome: 'unknown', error });
    }
    return undefined;
  }
}
