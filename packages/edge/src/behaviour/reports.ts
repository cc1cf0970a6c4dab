/**
 * The reports of sandboxes: in memory while a sandbox lives and has done something, else in their files. A report is written a moment after it has changed,
 * many changes at once; nothing runs while none has.
 */
import type { BehaviourReport } from '@dsec/contract';
import type { Clock, Logger, Timer } from '@dsec/kit';
import type { Sandbox } from '../sandbox.ts';
import { FLUSH_MS, LEAST_REPORT_BYTES, MAX_ALL_REPORTS_BYTES, MAX_FLUSHED, MAX_REPORT_BYTES } from './bounds.ts';
import { Report, type Counted } from './report.ts';
import type { ReportStore } from './report-store.ts';

export interface ReportsOptions {
  readonly store: ReportStore;
  readonly clock: Clock;
  readonly logger: Logger;
}

interface Held {
  readonly sandbox: Sandbox;
  readonly report: Report;
  isChanged: boolean;
  /** False once its file is enough. */
  isKept: boolean;
}

export class Reports implements AsyncDisposable {
  readonly #options: ReportsOptions;
  readonly #held = new Map<string, Promise<Held>>();
  readonly #changed = new Set<Held>();
  #bytes = 0;
  #timer: Timer | undefined;
  #flushing: Promise<void> = Promise.resolve();
  #isOver = false;

  constructor(options: ReportsOptions) {
    this.#options = options;
  }

  /** Counts what a sandbox has done. */
  async add(sandbox: Sandbox, counted: Counted): Promise<void> {
    const held = this.#kept(await this.#hold(sandbox));
    const before = held.report.bytes;
    held.report.add(counted, this.#bytes < MAX_ALL_REPORTS_BYTES ? MAX_REPORT_BYTES : LEAST_REPORT_BYTES);
    this.#bytes += held.report.bytes - before;
    this.#change(held);
  }

  /** Tripwires that were no file when the sandbox was made. */
  async noteAbsent(sandbox: Sandbox, absentTripwires: readonly string[]): Promise<void> {
    const held = this.#kept(await this.#hold(sandbox));
    held.report.absentTripwires = absentTripwires;
    this.#change(held);
  }

  async show(sandbox: Sandbox): Promise<BehaviourReport> {
    const held = await this.#held.get(sandbox.sandboxId);
    return (held?.report ?? (await this.#read(sandbox))).show();
  }

  /** Resolves when what has changed is written, as far as it can be. */
  flush(): Promise<void> {
    this.#timer?.cancel();
    this.#timer = undefined;
    const written = this.#flushing.then(() => this.#flush());
    this.#flushing = written;
    return written;
  }

  /** The sandbox has ended: from now on its file is enough. */
  async noteOver({ sandboxId }: Sandbox): Promise<void> {
    const held = await this.#held.get(sandboxId);
    if (held === undefined) return;
    if (held.isChanged) await this.flush();
    else this.#release(held);
  }

  /** The edge knows the sandbox no more. */
  async forget(sandboxId: string): Promise<void> {
    const held = await this.#held.get(sandboxId);
    if (held !== undefined) this.#release(held);
    await this.#options.store.remove(sandboxId);
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isOver = true;
    while (this.#changed.size > 0) {
      const before = this.#changed.size;
      await this.flush();
      // What cannot be written now cannot be written later either.
      if (this.#changed.size >= before) break;
    }
  }

  async #hold(sandbox: Sandbox): Promise<Held> {
    const before = this.#held.get(sandbox.sandboxId);
    if (before !== undefined) return await before;
    const holding = this.#read(sandbox).then((report) => {
      this.#bytes += report.bytes;
      return { sandbox, report, isChanged: false, isKept: true };
    });
    this.#held.set(sandbox.sandboxId, holding);
    return await holding;
  }

  /** It may have been let go while somebody waited for it. */
  #kept(held: Held): Held {
    if (held.isKept) return held;
    held.isKept = true;
    this.#held.set(held.sandbox.sandboxId, Promise.resolve(held));
    this.#bytes += held.report.bytes;
    return held;
  }

  /** What an edge before this one knew, or nothing yet. */
  async #read(sandbox: Sandbox): Promise<Report> {
    const { store, logger } = this.#options;
    const { sandboxId } = sandbox;
    const read = await store.read(sandboxId).catch((error: unknown) => {
      logger.warn('behaviour.read', { sandboxId, outcome: 'failed', error });
      return undefined;
    });
    return read ?? new Report(sandboxId, sandbox.record.policy.tripwires ?? []);
  }

  #change(held: Held): void {
    held.isChanged = true;
    this.#changed.add(held);
    this.#arm();
  }

  #arm(): void {
    if (this.#isOver || this.#changed.size === 0) return;
    this.#timer ??= this.#options.clock.setTimer(FLUSH_MS, () => void this.flush());
  }

  /** Never rejects. */
  async #flush(): Promise<void> {
    const { store, logger } = this.#options;
    for (const held of [...this.#changed].slice(0, MAX_FLUSHED)) {
      this.#changed.delete(held);
      held.isChanged = false;
      try {
        await store.write(held.report);
      } catch (error) {
        logger.warn('behaviour.write', { sandboxId: held.sandbox.sandboxId, outcome: 'failed', error });
        held.isChanged = true;
        this.#changed.add(held);
      }
      // Of one that has ended the file is enough.
      if (!held.isChanged && !held.sandbox.isLive) this.#release(held);
    }
    this.#arm();
  }

  #release(held: Held): void {
    if (!held.isKept) return;
    held.isKept = false;
    this.#held.delete(held.sandbox.sandboxId);
    this.#changed.delete(held);
    this.#bytes -= held.report.bytes;
  }
}
