import type { Clock, Random } from '@dsec/kit';
import type { LayerHolds } from './layer-holds.ts';

/** What a build is doing, for a person who waits. */
export interface BuildProgress {
  readonly step: string;
  /** Bytes of this step, when they can be counted. */
  readonly doneBytes?: number;
  readonly totalBytes?: number;
}

/** What every build needs from outside. */
export interface BuildContext {
  /** Where layers are published, each as `<sha256 hex>/rootfs.erofs` beside its `layer.json`. */
  readonly layersDirectory: string;
  /** Where is noted which layer was made from what, so that it is not made again (see `MadeLayers`). @default nothing is noted */
  readonly notesDirectory?: string | undefined;
  /** Keeps layers that the build relies on from being removed before they have a name. @default nobody removes layers meanwhile */
  readonly holds?: Pick<LayerHolds, 'hold'> | undefined;
  readonly clock: Clock;
  readonly random: Random;
  readonly signal?: AbortSignal | undefined;
  readonly onProgress?: (progress: BuildProgress) => void;
  /** Larger images are refused. @default 64 GiB */
  readonly maxSizeBytes?: number;
}

export const DEFAULT_MAX_SIZE_BYTES = 64 * 2 ** 30;
