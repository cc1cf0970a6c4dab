/** Which layers of an image become one layer of the node. */

/** Consecutive layers of an image are one layer of the node up to this size, as the image holds them. */
export const DEFAULT_MERGE_UP_TO_BYTES = 3 * 2 ** 30;

/** Of the layers that a sandbox can stand on, so many may be an image's; the rest is for builds, workspaces and toolkits above it. */
export const MAX_IMAGE_LAYERS = 32;
const LEAST_BOUND_BYTES = 2 ** 20;

/** Consecutive layers: those from `start` on, up to and without `end`. */
export interface LayerGroup {
  readonly start: number;
  readonly end: number;
}

export interface Grouping {
  /** Of each layer, lowest first. */
  readonly sizes: readonly number[];
  readonly mergeUpToBytes: number;
  /** Whether a group has been made already, above exactly what is below it here. */
  readonly isKnown: (group: LayerGroup) => Promise<boolean>;
}

/**
 * Groups the layers, from the lowest up: what is there already is taken, the largest first, so that images on one base share it; else as many
 * as the bound allows are merged. A layer larger than the bound stands alone. Where there would be too many groups, the bound is raised; where
 * that does not help, because so many are there already, the topmost group takes all that is left.
 *
 * @returns no group for an image without layers
 */
export const groupLayers = async ({ sizes, mergeUpToBytes, isKnown }: Grouping): Promise<LayerGroup[]> => {
  const total = sizes.reduce((sum, size) => sum + size, 0);
  for (let bound = mergeUpToBytes; ; bound = Math.max(LEAST_BOUND_BYTES, bound * 2)) {
    const groups: LayerGroup[] = [];
    for (let start = 0; start < sizes.length; ) {
      const group = await nextGroup({ sizes, mergeUpToBytes: bound, isKnown }, start);
      groups.push(group);
      start = group.end;
    }
    if (groups.length <= MAX_IMAGE_LAYERS) return groups;
    if (bound < total) continue;
    const kept = groups.slice(0, MAX_IMAGE_LAYERS - 1);
    return [...kept, { start: kept.at(-1)?.end ?? 0, end: sizes.length }];
  }
};

const nextGroup = async ({ sizes, mergeUpToBytes, isKnown }: Grouping, start: number): Promise<LayerGroup> => {
  let end = start + 1;
  let sum = sizes[start] ?? 0;
  for (let size = sizes[end]; size !== undefined && sum + size <= mergeUpToBytes; size = sizes[end]) {
    sum += size;
    end++;
  }
  for (let candidate = end; candidate > start; candidate--) {
    const group = { start, end: candidate };
    if (await isKnown(group)) return group;
  }
  return { start, end };
};
