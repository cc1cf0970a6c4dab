/** Routes of many sandboxes at once: one line for each, as it becomes ready or fails. */
import { BulkCreateSchema, BulkStopSchema, PlatformError } from '@dsec/contract';
import { checkBulkItem } from '../edge/answers.ts';
import { composeImage } from '../environments/compose.ts';
import { NDJSON_TYPE, sendLines } from '../http/ndjson.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import type { Services } from '../services.ts';
import { edgePrincipal, idempotencyOf } from './sandbox-routes.ts';

export function bulkRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, environments, edge, clock } = services;

  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/bulk',
    summary: 'Makes many like sandboxes; one line for each, in the order of readiness. Takes an Idempotency-Key.',
    right: 'write',
    body: BulkCreateSchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ body, principal, request, reply }) => {
      const { count, template } = body;
      const image = composeImage(environments, template);
      const stream = await edge.open('sandbox.createMany', {
        principal: edgePrincipal(principal),
        request: template,
        image,
        count,
        ...idempotencyOf(request.raw.headers, body),
      });
      await sendLines(reply, clock, stream, (item) => checkBulkItem(item, 'sandbox.createMany'));
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/stop',
    summary: 'Stops many sandboxes; one line for each, when nothing of it is left.',
    right: 'write',
    body: BulkStopSchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ body, principal, reply }) => {
      const { sandboxIds, metadata } = body;
      if ((sandboxIds === undefined) === (metadata === undefined)) {
        throw new PlatformError('invalid_argument', 'give either `sandboxIds` or `metadata`', {
          details: { field: 'sandboxIds' },
        });
      }
      const which = sandboxIds === undefined ? { metadata } : { sandboxIds };
      const stream = await edge.open('sandbox.stopMany', { project: principal.project, ...which });
      await sendLines(reply, clock, stream, (item) => checkBulkItem(item, 'sandbox.stopMany'));
    },
  });
}
