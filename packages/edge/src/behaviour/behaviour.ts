/**
 * What programs of sandboxes tried and were denied, and which tripwires they touched: launcher and resolver tell of it, one stream each for the whole
 * edge. Here each act gets the command that caused it, goes to whoever listens, and is counted in the report of its sandbox. A sandbox that does nothing
 * of the kind costs nothing.
 */
import type { Act, ActObserver } from '@dsec/backends';
import type { BehaviourAttribution, BehaviourReport } from '@dsec/contract';
import type { Clock, Logger } from '@dsec/kit';
import type { Registry } from '../registry.ts';
import type { Sandbox } from '../sandbox.ts';
import { MAX_WAITING_ACTS } from './bounds.ts';
import { CommandFinder } from './command-finder.ts';
import { EventRing, type EventFilter, type Listener } from './event-ring.ts';
import { RecentCommands } from './recent-commands.ts';
import { ReportStore } from './report-store.ts';
import { Reports } from './reports.ts';
import { processOf, toldOf } from './told.ts';

export interface BehaviourOptions {
  readonly registry: Registry;
  /** Where the reports are kept. */
  readonly directory: string;
  readonly clock: Clock;
  readonly logger: Logger;
}

export class Behaviour implements ActObserver, AsyncDisposable {
  readonly commands = new RecentCommands();
  readonly #options: BehaviourOptions;
  readonly #ring: EventRing;
  readonly #finder: CommandFinder;
  readonly #store: ReportStore;
  readonly #reports: Reports;
  /** Acts in their order, of sandboxes that have some under way. */
  readonly #waiting = new Map<Sandbox, Act[]>();

  constructor(options: BehaviourOptions) {
    const { clock, directory } = options;
    this.#options = options;
    this.#ring = new EventRing(clock.now());
    this.#finder = new CommandFinder({ ...options, commands: this.commands });
    this.#store = new ReportStore(directory);
    this.#reports = new Reports({ ...options, store: this.#store });
  }

  /** When the registry has what the journal knows. */
  async open(): Promise<void> {
    await this.#store.open((sandboxId) => this.#options.registry.get(sandboxId) !== undefined);
  }

  onAct(act: Act): void {
    const sandbox = this.#options.registry.get(act.sandboxId);
    // The edge may have forgotten one that the node still has.
    if (sandbox === undefined) return;
    const waiting = this.#waiting.get(sandbox);
    if (waiting === undefined) void this.#drain(sandbox, [act]);
    else if (waiting.length < MAX_WAITING_ACTS) waiting.push(act);
    else this.#ring.noteLost(1);
  }

  onActsLost(count: number): void {
    this.#ring.noteLost(count);
  }

  /** @throws PlatformError `too_many_requests` */
  listen(filter: EventFilter, after?: string): Listener {
    return this.#ring.listen(filter, after);
  }

  report(sandbox: Sandbox): Promise<BehaviourReport> {
    return this.#reports.show(sandbox);
  }

  /** A sandbox was made; these of its tripwires were no file. */
  noteMade(sandbox: Sandbox, absentTripwires: readonly string[]): void {
    if (absentTripwires.length > 0) void this.#reports.noteAbsent(sandbox, absentTripwires);
  }

  /** Nothing of it is left on the node. */
  noteOver(sandbox: Sandbox): void {
    void this.#reports.noteOver(sandbox);
  }

  /** The edge knows it no more. */
  async forget(sandboxId: string): Promise<void> {
    await this.#reports.forget(sandboxId);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#reports[Symbol.asyncDispose]();
  }

  /** Never rejects. */
  async #drain(sandbox: Sandbox, waiting: Act[]): Promise<void> {
    this.#waiting.set(sandbox, waiting);
    try {
      for (let act = waiting[0]; act !== undefined; act = waiting[0]) {
        await this.#settle(sandbox, act, waiting.length > MAX_WAITING_ACTS / 2);
        waiting.shift();
      }
    } catch (error) {
      this.#options.logger.error('behaviour.act', { sandboxId: sandbox.sandboxId, outcome: 'internal', error });
    } finally {
      this.#waiting.delete(sandbox);
    }
  }

  async #settle(sandbox: Sandbox, act: Act, isHurried: boolean): Promise<void> {
    const { sandboxId, record } = sandbox;
    const { atMs, count } = act;
    const told = toldOf(act);
    const by = await this.#by(sandbox, act, isHurried);
    this.#ring.add(record.project, { atMs, sandboxId, keyId: record.keyId, ...told, count, ...by });
    await this.#reports.add(sandbox, { told, atMs, count, by });
  }

  async #by(sandbox: Sandbox, { process, atMs }: Act, isHurried: boolean): Promise<BehaviourAttribution> {
    if (process === undefined) return {};
    const owner = await this.#finder.find(sandbox, process, atMs, isHurried);
    const command = owner.execId === undefined ? undefined : this.commands.get(sandbox.sandboxId, owner.execId);
    return { process: processOf(process), ...owner, ...(command === undefined ? {} : { command }) };
  }
}
