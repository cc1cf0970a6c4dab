/** Lets go of layers that nobody here needs, so that root can remove their files. */
import type { Backend } from '@dsec/backends';
import type { LayerHolder, ReleasedLayers } from '@dsec/contract';
import { readLayerRecord } from '@dsec/environment';
import { throwIfAborted } from '@dsec/kit';
import type { Packs } from './packs.ts';
import type { Registry } from './registry.ts';

export interface LayerReleaseParts {
  readonly backend: Pick<Backend, 'setsOn' | 'releaseLayer'>;
  readonly lifecycle: { readonly parts: { readonly registry: Pick<Registry, 'unfinished'> } };
  readonly packs: Pick<Packs, 'needed' | 'forget'>;
  /** The layers of the node. */
  readonly layersDirectory: string;
}

/**
 * May be asked again, also when the files are gone: what was begun on a layer in between shows then.
 * @throws PlatformError `unavailable` when launcher or layerd stay away
 */
export async function releaseLayers(
  parts: LayerReleaseParts,
  { layers, dryRun = false }: { readonly layers: readonly string[]; readonly dryRun?: boolean },
  signal: AbortSignal,
): Promise<ReleasedLayers> {
  const { backend, packs } = parts;
  const answers: ReleasedLayers['layers'][number][] = [];
  const sets = new Map<string, number>();
  for (const layer of layers) {
    throwIfAborted(signal);
    const isOfPack = await isMadeByPack(parts.layersDirectory, layer);
    let heldBy = holderOf(parts, layer, isOfPack);
    if (heldBy === null) {
      const setsOnIt = backend.setsOn(layer);
      // Nothing may come between: what begins from here on waits for the backend.
      if (!dryRun && !(await backend.releaseLayer(layer, { signal }))) heldBy = 'sandbox';
      else for (const { set, sizeBytes } of setsOnIt) sets.set(set, sizeBytes);
      if (!dryRun && heldBy === null) packs.forget(layer);
    }
    answers.push({ layer, heldBy });
  }
  return { layers: answers, sets: [...sets].map(([set, sizeBytes]) => ({ set, sizeBytes })) };
}

function holderOf(
  { lifecycle, packs: { needed } }: LayerReleaseParts,
  layer: string,
  isOfPack: boolean | undefined,
): LayerHolder | null {
  for (const { record } of lifecycle.parts.registry.unfinished()) {
    if (record.layers.includes(layer)) return 'sandbox';
  }
  return needed.mayFind(layer, isOfPack) || needed.has(layer) ? 'pack' : null;
}

/** Undefined: it cannot be read, or is not there. */
async function isMadeByPack(layersDirectory: string, layer: string): Promise<boolean | undefined> {
  const record = await readLayerRecord(layersDirectory, layer).catch(() => undefined);
  return record === undefined ? undefined : record.source.kind === 'changes';
}
