/** Routes of what sandboxes tried and were denied: the report of one, and the events of all as they happen. */
import {
  behaviourCursorPattern,
  behaviourKinds,
  BehaviourLineSchema,
  BehaviourReportSchema,
  PlatformError,
  SandboxIdSchema,
  type BehaviourKind,
} from '@dsec/contract';
import { Type } from 'typebox';
import { checkOf } from '../edge/answers.ts';
import { NDJSON_TYPE, sendLines } from '../http/ndjson.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';

export const checkBehaviourLine = checkOf<typeof BehaviourLineSchema, object>(BehaviourLineSchema);
const checkReport = checkOf(BehaviourReportSchema);

const EventsQuerySchema = Type.Object(
  {
    sandbox: Type.Optional(SandboxIdSchema),
    kind: Type.Optional(
      Type.String({
        pattern: `^(?:${behaviourKinds.join('|')})(?:,(?:${behaviourKinds.join('|')})){0,${behaviourKinds.length - 1}}$`,
        description: `Of these kinds, by comma: ${behaviourKinds.join(', ')}. Default: all.`,
      }),
    ),
    after: Type.Optional(
      Type.String({
        pattern: `${behaviourCursorPattern}|^now$`,
        description: 'The cursor of the event to go on after, or `now`. Default: all that the edge keeps.',
      }),
    ),
    follow: Type.Optional(Type.Boolean({ description: 'Go on with what happens. Default false.' })),
  },
  { additionalProperties: false },
);

export function behaviourRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, edge, clock } = services;
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/behaviour',
    summary:
      'What a sandbox tried since its creation that was denied, and which tripwires it touched. Of one that has ended, too.',
    right: 'read',
    answers: { 200: BehaviourReportSchema },
    handle: async ({ params, principal: { project }, reply }) => {
      const asked = { sandboxId: sandboxIdOf(services, params.id), project };
      return checkReport(await askEdge(services, reply.raw, 'behaviour.report', asked), 'behaviour.report');
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/events',
    summary:
      'What sandboxes of the project tried that was denied, one BehaviourLine a line. Who reads slowly is told how many events were lost.',
    right: 'read',
    query: EventsQuerySchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ query: { sandbox, kind, after, follow }, principal: { project }, reply }) => {
      const stream = await edge.open('behaviour.events', {
        project,
        ...(sandbox === undefined ? {} : { sandboxId: sandboxIdOf(services, sandbox) }),
        ...(kind === undefined ? {} : { kinds: kindsOf(kind) }),
        ...(after === undefined ? {} : { after }),
        ...(follow === undefined ? {} : { follow }),
      });
      await sendLines(reply, clock, stream, (line) => checkBehaviourLine(line, 'behaviour.events'));
    },
  });
}

function kindsOf(text: string): readonly BehaviourKind[] {
  const wanted = new Set(text.split(','));
  const kinds = behaviourKinds.filter((kind) => wanted.delete(kind));
  if (wanted.size === 0) return kinds;
  throw new PlatformError('invalid_argument', 'the query: kind has one that there is not', {
    details: { field: 'kind' },
  });
}
