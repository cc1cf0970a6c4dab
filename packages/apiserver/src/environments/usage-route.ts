/** Routes that say who uses what: counted when they are asked, from what edge and store know anyway. */
import { CompositionPageSchema, EnvironmentUsageSchema, limits, type EnvironmentUsage } from '@dsec/contract';
import { Type } from 'typebox';
import { checkCompositions, checkLayersInUse } from '../edge/answers.ts';
import { addRoute, requireForm, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import type { Services } from '../services.ts';
import { nameForm } from './environment-routes.ts';

const CompositionQuerySchema = Type.Object(
  {
    cursor: Type.Optional(Type.String({ pattern: '^[0-9]{1,16}$', description: 'What the page before returned.' })),
    limit: Type.Optional(Type.Integer({ ...limits.pageSize, description: 'Most compositions a page.' })),
  },
  { additionalProperties: false },
);

export function usageRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, environments } = services;

  addRoute(scopes, keys, {
    method: 'GET',
    url: '/environments/:name/usage',
    summary: 'Who stands on an environment now, and how much of its layers is on the node and was ever read there.',
    right: 'read',
    answers: { 200: EnvironmentUsageSchema },
    handle: async ({ params, reply }): Promise<EnvironmentUsage> => {
      const { name, image } = environments.get(requireForm('name', params.name, nameForm));
      const asked = { environment: name, layers: image.layers };
      const { sandboxes, layers } = checkLayersInUse(
        await askEdge(services, reply.raw, 'layer.usage', asked),
        'layer.usage',
      );
      return {
        name,
        sandboxes,
        layers: layers.map((layer) => ({
          ...layer,
          touchedShare: shareOf(layer.touchedBytes, layer.dataBytes),
          // It is itself one of them, unless it has changed meanwhile.
          otherEnvironments: Math.max(0, environments.countHaving(layer.layer) - 1),
        })),
      };
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/compositions',
    summary: 'How many sandboxes were begun on which base, workspace and toolkits together, page by page.',
    right: 'read',
    query: CompositionQuerySchema,
    answers: { 200: CompositionPageSchema },
    handle: async ({ query, reply }) =>
      checkCompositions(await askEdge(services, reply.raw, 'composition.list', query), 'composition.list'),
  });
}

const shareOf = (touchedBytes: number | null, dataBytes: number | null): number | null =>
  touchedBytes === null || dataBytes === null || dataBytes === 0 ? null : Math.min(1, touchedBytes / dataBytes);
