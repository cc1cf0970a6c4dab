/** Measures the node now and then, so that admission has fresh figures and no create waits for them. */
import type { Backend } from '@dsec/backends';
import { PlatformError } from '@dsec/contract';
import type { Clock, Logger } from '@dsec/kit';
import {
  capacityOf,
  checkPressure,
  type CapacitySettings,
  type Ledger,
  type NodePressure,
  type PressureLimits,
} from './admission.ts';
import { Latch } from './latch.ts';
import { readMemory, readPidMax, type FactFiles } from './node-facts.ts';

const SAMPLE_MS = 1000;
const DISK_TIMEOUT_MS = 5000;

export interface NodeWatchOptions {
  readonly backend: Backend;
  readonly ledger: Ledger;
  readonly clock: Clock;
  readonly logger: Logger;
  readonly files: FactFiles;
  readonly capacity: CapacitySettings;
  readonly pressure: PressureLimits;
}

export class NodeWatch {
  readonly #options: NodeWatchOptions;
  /** Open when the node was measured for the first time. */
  readonly measured = new Latch();
  #pressure: NodePressure | undefined;
  #isFailing = false;

  constructor(options: NodeWatchOptions) {
    this.#options = options;
  }

  /** @throws PlatformError `no_capacity`; `unavailable` before the node was measured */
  check(): void {
    if (this.#pressure === undefined) throw new PlatformError('unavailable', 'the node has not answered yet');
    checkPressure(this.#pressure, this.#options.pressure);
  }

  /** Measures once and tells the ledger what there is. */
  async sample(): Promise<void> {
    const { backend, ledger, files, capacity } = this.#options;
    const [memory, pidMax, disk] = await Promise.all([
      readMemory(files),
      readPidMax(files),
      backend.disk({ timeoutMs: DISK_TIMEOUT_MS }),
    ]);
    ledger.resize(capacityOf({ memoryMib: memory.totalMib, diskMib: disk.totalMib, pidMax }, capacity));
    this.#pressure = {
      diskFreeMib: disk.freeMib,
      memoryAvailableMib: memory.availableMib,
      memoryStallPercent: memory.stallPercent,
    };
    this.measured.open();
  }

  /** Runs until the signal aborts. */
  async run(signal: AbortSignal): Promise<void> {
    const { clock, logger } = this.#options;
    while (!signal.aborted) {
      try {
        await this.sample();
        this.#isFailing = false;
      } catch (error) {
        // Said once: while the launcher restarts this fails every second.
        if (!this.#isFailing) logger.warn('node.sample', { outcome: 'failed', error });
        this.#isFailing = true;
      }
      await clock.sleep(SAMPLE_MS, { signal }).catch(() => undefined);
    }
  }
}
