/** Routes of lasting shells. */
import { SessionOpenSchema, SessionSchema } from '@dsec/contract';
import { checkPid, checkSessionList, SessionListSchema } from '../edge/answers.ts';
import { noteSubject } from '../audit/request-audit.ts';
import { addRoute, requireForm, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';

const SESSION_ID_CHARS = 24;
const sessionIdForm = /^[a-z0-9]{1,32}$/;

export function sessionRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, random } = services;

  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/sessions',
    summary: 'Opens a lasting shell; commands run in it by its `sessionId`.',
    right: 'write',
    body: SessionOpenSchema,
    answers: { 201: SessionSchema },
    handle: async ({ params, body, request, reply }) => {
      const sessionId = random.base36(SESSION_ID_CHARS);
      noteSubject(request.raw, { sessionId });
      const asked = { sandboxId: sandboxIdOf(services, params.id), sessionId, ...body, env: body.env ?? {} };
      const { pid } = checkPid(await askEdge(services, reply.raw, 'session.open', asked), 'session.open');
      return reply.code(201).send({ sessionId, pid, busy: false });
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/sessions',
    summary: 'Lists the open sessions.',
    right: 'read',
    answers: { 200: SessionListSchema },
    handle: async ({ params, reply }) =>
      checkSessionList(
        await askEdge(services, reply.raw, 'session.list', { sandboxId: sandboxIdOf(services, params.id) }),
        'session.list',
      ),
  });
  addRoute(scopes, keys, {
    method: 'DELETE',
    url: '/sandboxes/:id/sessions/:sid',
    summary: 'Closes a session: its shell and all that it started are gone.',
    right: 'write',
    answers: { 204: '' },
    handle: async ({ params, reply }) => {
      const sessionId = requireForm('sessionId', params.sid, sessionIdForm);
      await askEdge(services, reply.raw, 'session.close', { sandboxId: sandboxIdOf(services, params.id), sessionId });
      return reply.code(204).send();
    },
  });
}
