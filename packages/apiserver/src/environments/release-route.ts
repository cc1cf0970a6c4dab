/** The route by which root, who removes files of layers, hears which of them nobody needs. */
import { LayerReleaseSchema, ReleasedLayersSchema, type LayerHolder, type ReleasedLayers } from '@dsec/contract';
import { checkReleasedLayers } from '../edge/answers.ts';
import { noteSubject } from '../audit/request-audit.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import type { Services } from '../services.ts';

export function releaseRoute(scopes: RouteScopes, services: Services): void {
  const { keys, environments } = services;
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/layers/release',
    summary:
      'Has the node let go of layers that no environment names and no sandbox or pack needs, so that root can remove their files.',
    right: 'build',
    body: LayerReleaseSchema,
    answers: { 200: ReleasedLayersSchema },
    handle: async ({ body: { layers, dryRun = false }, request, reply }): Promise<ReleasedLayers> => {
      noteSubject(request.raw, { detail: { layers: layers.length, dryRun } });
      const isNamed = (layer: string): boolean => environments.countHaving(layer) > 0;
      const asked = { layers: layers.filter((layer) => !isNamed(layer)), dryRun };
      const released = checkReleasedLayers(await askEdge(services, reply.raw, 'layer.release', asked), 'layer.release');
      const holders = new Map(released.layers.map(({ layer, heldBy }) => [layer, heldBy]));
      const holderOf = (layer: string): LayerHolder | null => {
        const holder = holders.get(layer);
        // What has got a name meanwhile, as after a pack, is needed, and so may be what the edge says nothing of.
        return isNamed(layer) || holder === undefined ? 'environment' : holder;
      };
      return { layers: layers.map((layer) => ({ layer, heldBy: holderOf(layer) })), sets: released.sets };
    },
  });
}
