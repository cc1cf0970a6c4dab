/** Routes of many sandboxes at once: one line for each, as it becomes ready or fails. */
import type { IncomingMessage } from 'node:http';
import { BulkCreateSchema, BulkStopSchema, PlatformError } from '@dsec/contract';
import { noteSubject } from '../audit/request-audit.ts';
import { checkBulkItem, type BulkItemAnswer } from '../edge/answers.ts';
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
      const ids = collectIds(request.raw);
      noteSubject(request.raw, { environment: template.environment, detail: { count } });
      await sendLines(reply, clock, stream, (item) => ids(checkBulkItem(item, 'sandbox.createMany')));
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/stop',
    summary: 'Stops many sandboxes; one line for each, when nothing of it is left.',
    right: 'write',
    body: BulkStopSchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ body, principal, request, reply }) => {
      const { sandboxIds, metadata } = body;
      if ((sandboxIds === undefined) === (metadata === undefined)) {
        throw new PlatformError('invalid_argument', 'give either `sandboxIds` or `metadata`', {
          details: { field: 'sandboxIds' },
        });
      }
      const which = sandboxIds === undefined ? { metadata } : { sandboxIds };
      const stream = await edge.open('sandbox.stopMany', { project: principal.project, ...which });
      const ids = collectIds(request.raw);
      await sendLines(reply, clock, stream, (item) => ids(checkBulkItem(item, 'sandbox.stopMany')));
    },
  });
}

/** For the audit log: of which sandboxes there was good news, and of how many there was bad. */
function collectIds(request: IncomingMessage): (item: BulkItemAnswer) => BulkItemAnswer {
  const sandboxIds: string[] = [];
  let failed = 0;
  return (item) => {
    if ('sandbox' in item) sandboxIds.push(item.sandbox.sandboxId);
    else failed++;
    noteSubject(request, { sandboxIds, ...(failed === 0 ? {} : { detail: { failed } }) });
    return item;
  };
}
