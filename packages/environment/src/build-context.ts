import type { Clock, Random } from '@dsec/kit';
import type { LayerHolds } from './layer-holds.ts';

/** What a build is doing, for a person who waits. */
export interface BuildProgress {
  readonly step: string;
  /** Bytes of this step, when they can be counted. */
  readonly doneBytes?: number;
  readonly totalBytes?: number;
}

/** Takes layers of builds that may not write among those of the node themselves. */
export interface LayerHandover {
  /** Where such builds work; on the file system that layers are handed over on. */
  readonly directory: string;
  /** Makes a layer of the node of what lies in the directory `staged`, which is gone afterwards, whatever comes of it. */
  readonly handOver: (digest: string, staged: string, signal: AbortSignal | undefined) => Promise<void>;
}

/** What every build needs from outside. */
export interface BuildContext {
  /** Where layers are published, each as `<sha256 hex>/rootfs.erofs` beside its `layer.json`. */
  readonly layersDirectory: string;
  /** Who publishes them there. @default the build itself */
  readonly handover?: LayerHandover | undefined;
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
