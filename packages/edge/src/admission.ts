/**
 * The edge's last word on whether a sandbox fits: memory, processes, disk and count against a capacity that overcommits the node, and
 * then a look at what the node really has left. Pure bookkeeping; the node's figures are handed in.
 */
import { PlatformError } from '@dsec/contract';

export const resources = ['memoryMib', 'pids', 'diskMib', 'sandboxes'] as const;
export type Resource = (typeof resources)[number];

/** An amount of each resource. */
export type Amounts = Readonly<Record<Resource, number>>;

/** What one sandbox asks for. */
export interface Demand {
  readonly memoryMib: number;
  readonly pids: number;
  readonly diskMib: number;
}

/** What the node has, and how much of each may be promised for each unit that is there. */
export interface CapacitySettings {
  readonly memoryMib?: number | undefined;
  readonly diskMib?: number | undefined;
  readonly pids?: number | undefined;
  readonly sandboxes: number;
  readonly memoryOvercommit: number;
  readonly diskOvercommit: number;
  readonly pidsOvercommit: number;
}

export interface NodeSize {
  readonly memoryMib: number;
  readonly diskMib: number;
  /** The kernel's pid_max. */
  readonly pidMax: number;
}

/** Pids of the node that sandboxes never get: the daemons, the kernel's own threads and whoever repairs the node. */
export const PID_RESERVE = 4096;

/** What may be promised in all: what is configured, else what the node has; times its overcommit. */
export function capacityOf(node: NodeSize, settings: CapacitySettings): Amounts {
  return {
    memoryMib: Math.floor((settings.memoryMib ?? node.memoryMib) * settings.memoryOvercommit),
    diskMib: Math.floor((settings.diskMib ?? node.diskMib) * settings.diskOvercommit),
    pids: Math.floor((settings.pids ?? Math.max(0, node.pidMax - PID_RESERVE)) * settings.pidsOvercommit),
    sandboxes: settings.sandboxes,
  };
}

/** What one sandbox holds of the capacity, until it is released. */
export interface Reservation {
  /** Gives it back; a second call does nothing and says so by `false`. */
  release(): boolean;
}

/** Who holds how much of the capacity. */
export class Ledger {
  #limits: Amounts;
  readonly #used: Record<Resource, number> = { memoryMib: 0, pids: 0, diskMib: 0, sandboxes: 0 };

  constructor(limits: Amounts) {
    this.#limits = limits;
  }

  get used(): Amounts {
    return { ...this.#used };
  }

  get limits(): Amounts {
    return this.#limits;
  }

  /** The node was measured anew. What is held stays held, even above the new limit. */
  resize(limits: Amounts): void {
    this.#limits = limits;
  }

  /** @throws PlatformError `no_capacity` with `details` resource, limit, current, requested */
  reserve(demand: Demand): Reservation {
    const amounts = amountsOf(demand);
    for (const resource of resources) {
      const limit = this.#limits[resource];
      const current = this.#used[resource];
      const requested = amounts[resource];
      if (current + requested > limit) throw noCapacity({ resource, limit, current, requested });
    }
    return this.#hold(amounts);
  }

  /** For a sandbox that lives already: an adopted one counts, whether or not it would be admitted now. */
  adopt(demand: Demand): Reservation {
    return this.#hold(amountsOf(demand));
  }

  #hold(amounts: Amounts): Reservation {
    for (const resource of resources) this.#used[resource] += amounts[resource];
    let isHeld = true;
    return {
      release: () => {
        if (!isHeld) return false;
        isHeld = false;
        for (const resource of resources) this.#used[resource] -= amounts[resource];
        return true;
      },
    };
  }
}

const amountsOf = (demand: Demand): Amounts => ({
  memoryMib: demand.memoryMib,
  pids: demand.pids,
  diskMib: demand.diskMib,
  sandboxes: 1,
});

/** What the node really has left, as last measured. */
export interface NodePressure {
  readonly diskFreeMib: number;
  readonly memoryAvailableMib: number;
  /** Share of the last ten seconds in which all work of the node stood still for memory, in percent. */
  readonly memoryStallPercent: number;
}

/** Below these (above, for the stall) nothing new is admitted. */
export interface PressureLimits {
  readonly minDiskFreeMib: number;
  readonly minMemoryAvailableMib: number;
  readonly maxMemoryStallPercent: number;
}

/**
 * The check that overcommitment cannot fool.
 * @throws PlatformError `no_capacity`
 */
export function checkPressure(pressure: NodePressure, limits: PressureLimits): void {
  if (pressure.diskFreeMib < limits.minDiskFreeMib) {
    throw noCapacity({
      resource: 'diskFreeMib',
      limit: limits.minDiskFreeMib,
      current: pressure.diskFreeMib,
      requested: 0,
    });
  }
  if (pressure.memoryAvailableMib < limits.minMemoryAvailableMib) {
    throw noCapacity({
      resource: 'memoryAvailableMib',
      limit: limits.minMemoryAvailableMib,
      current: pressure.memoryAvailableMib,
      requested: 0,
    });
  }
  if (pressure.memoryStallPercent > limits.maxMemoryStallPercent) {
    throw noCapacity({
      resource: 'memoryStallPercent',
      limit: limits.maxMemoryStallPercent,
      current: pressure.memoryStallPercent,
      requested: 0,
    });
  }
}

interface Shortage {
  readonly resource: string;
  readonly limit: number;
  readonly current: number;
  readonly requested: number;
}

const noCapacity = (details: Shortage): PlatformError =>
  new PlatformError('no_capacity', `the node has no room for another sandbox: ${details.resource}`, {
    details: { ...details },
  });
