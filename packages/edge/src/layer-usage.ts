/** Who stands on a layer here, and how much of it is here: looked up when it is asked for, kept nowhere. */
import type { Backend } from '@dsec/backends';
import type { LayersInUse } from '@dsec/contract';
import type { Lifecycle } from './lifecycle.ts';
import type { SandboxRecord } from './sandbox-record.ts';

interface LayerUsageParts {
  readonly backend: Backend;
  readonly lifecycle: Lifecycle;
}

/** Goes through the sandboxes once. @throws PlatformError `unavailable` */
export async function layersInUse(
  { backend, lifecycle }: LayerUsageParts,
  { environment, layers }: { readonly environment: string; readonly layers: readonly string[] },
  signal: AbortSignal,
): Promise<LayersInUse> {
  const standing = new Map(layers.map((layer) => [layer, 0]));
  let sandboxes = 0;
  for (const sandbox of lifecycle.parts.registry.unfinished()) {
    if (!sandbox.isLive) continue;
    if (runsFrom(sandbox.record, environment)) sandboxes += 1;
    for (const layer of new Set(sandbox.record.layers)) {
      const count = standing.get(layer);
      if (count !== undefined) standing.set(layer, count + 1);
    }
  }
  const states = await backend.layerStates(layers, { signal });
  return {
    sandboxes,
    layers: layers.map((layer, index) => {
      const { dataBytes = null, presentBytes = 0, touchedBytes = null } = states[index] ?? {};
      return { layer, dataBytes, presentBytes, touchedBytes, sandboxes: standing.get(layer) ?? 0 };
    }),
  };
}

const runsFrom = (record: SandboxRecord, name: string): boolean =>
  record.environment === name || record.workspace === name || record.toolkits?.includes(name) === true;
