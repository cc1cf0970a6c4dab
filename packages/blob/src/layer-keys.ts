/** Where things lie in the blob store (`docs/layers.md`). */
import type { Digest } from './digest.ts';
import { isDigest } from './digest.ts';

export const PACKS = 'packs/';
export const INDEXES = 'indexes/';
export const LAYERS = 'layers/';

export const packKey = (pack: Digest): string => `${PACKS}${pack.slice(0, 2)}/${pack}`;
export const indexKey = (pack: Digest): string => `${INDEXES}${pack}`;
export const metadataKey = (layer: Digest): string => `${LAYERS}${layer}/metadata`;
export const chunkMapKey = (layer: Digest): string => `${LAYERS}${layer}/chunks`;
/** Where a chunk map stays when another has taken its place, for nodes that have it; named by its own digest. */
export const supersededMapKey = (layer: Digest, map: Digest): string => `${chunkMapKey(layer)}-${map}`;
export const isSupersededMapKey = (key: string): boolean => /^layers\/[0-9a-f]{64}\/chunks-[0-9a-f]{64}$/.test(key);
/** What is read of the layer. */
export const traceKey = (layer: Digest): string => `${LAYERS}${layer}/trace`;
export const recordKey = (layer: Digest): string => `${LAYERS}${layer}/layer.json`;

/** The digest that a key is named after: of its pack or of its layer; undefined for a key that is none of ours. */
export function digestOfKey(key: string): Digest | undefined {
  const parts = key.split('/');
  const [top] = parts;
  const name = top === 'packs' ? parts[2] : parts[1];
  return name !== undefined && isDigest(name) ? name : undefined;
}
