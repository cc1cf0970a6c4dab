import type { Clock, Random } from '@dsec/kit';
import type { TestServer } from '@dsec/testkit';
import type { Floor } from './floor.ts';
import type { NetworkWorld } from './network-world.ts';

/** What every benchmark works with. */
export interface BenchContext {
  readonly clock: Clock;
  readonly random: Random;
  readonly server: TestServer;
  readonly floor: Floor;
  readonly cores: number;
  /** Under a minute, with fewer repetitions. */
  readonly isQuick: boolean;
  /** The directory of the one layer of the environment that is measured, for baselines. */
  readonly layer: string;
  /** What sandboxes may reach; undefined where the server gives them no network. */
  readonly world: NetworkWorld | undefined;
  /** One line of progress. */
  readonly say: (text: string) => void;
}

/** The environment that all measure with. */
export const ENVIRONMENT = 'debian';
