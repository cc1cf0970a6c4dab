/** Routes of sandboxes, one by one. */
import {
  CreateSandboxSchema,
  limits,
  SandboxPatchSchema,
  SandboxSchema,
  UsageSchema,
  type CreateSandbox,
} from '@dsec/contract';
import type { Principal } from '@dsec/iam';
import { Type } from 'typebox';
import type { IncomingHttpHeaders, ServerResponse } from 'node:http';
import {
  checkProcesses,
  checkSandbox,
  checkSandboxPage,
  checkUsage,
  ProcessesSchema,
  SandboxPageSchema,
} from '../edge/answers.ts';
import { noteSubject } from '../audit/request-audit.ts';
import { composeImage } from '../environments/compose.ts';
import { fingerprintOf, idempotencyKeyIn } from '../fingerprint.ts';
import { resetOnClose } from '../http/ndjson.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import type { Services } from '../services.ts';
import { parseSandboxListQuery } from './metadata-filter.ts';
import { sandboxIdOf } from './sandbox-param.ts';

const text = { maxLength: 4096 } as const;
/** For the description only: `parseSandboxListQuery` is what checks. */
const SandboxListQuerySchema = Type.Object({
  'metadata.KEY': Type.Optional(
    Type.String({
      ...text,
      description: 'Only sandboxes whose metadata has KEY with this value. May be given for several keys.',
    }),
  ),
  states: Type.Optional(
    Type.String({
      ...text,
      description: 'Of these states, by comma. Default: all; ended ones are remembered for a while.',
    }),
  ),
  cursor: Type.Optional(Type.String({ ...text, description: 'What the page before returned.' })),
  limit: Type.Optional(Type.Integer({ ...limits.pageSize, description: 'Sandboxes a page.' })),
});

/** What the edge is told of who asks. */
export const edgePrincipal = ({ keyId, project }: Principal): { keyId: string; project: string } => ({
  keyId,
  project,
});

/** The members of a create that come from its idempotency key. */
export function idempotencyOf(
  headers: IncomingHttpHeaders,
  body: object,
): { readonly idempotency?: { key: string; fingerprint: string } } {
  const key = idempotencyKeyIn(headers);
  return key === undefined ? {} : { idempotency: { key, fingerprint: fingerprintOf(body) } };
}

/** Asks the edge; a client that goes away makes it drop what it has not begun. */
export async function askEdge(
  services: Services,
  response: ServerResponse,
  method: string,
  params: object,
): Promise<unknown> {
  const opened = services.edge.open(method, params);
  const stream = opened instanceof Promise ? await opened : opened;
  resetOnClose(response, stream);
  return await stream.result;
}

export function sandboxRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, environments } = services;
  const idOf = (params: Readonly<Record<string, string>>): string => sandboxIdOf(services, params.id);
  const ask = (response: ServerResponse, method: string, params: object): Promise<unknown> =>
    askEdge(services, response, method, params);

  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes',
    summary: 'Makes a sandbox; answers when its first command would run at once. Takes an Idempotency-Key.',
    right: 'write',
    body: CreateSandboxSchema,
    answers: { 201: SandboxSchema },
    handle: async ({ body, principal, request, reply }) => {
      const create: CreateSandbox = body;
      noteSubject(request.raw, { environment: create.environment });
      const image = composeImage(environments, create);
      const answer = await ask(reply.raw, 'sandbox.create', {
        principal: edgePrincipal(principal),
        request: create,
        image,
        ...idempotencyOf(request.raw.headers, create),
      });
      const made = checkSandbox(answer, 'sandbox.create');
      noteSubject(request.raw, { sandboxId: made.sandboxId });
      return reply.code(201).send(made);
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes',
    summary: 'Lists the sandboxes of the project, page by page.',
    right: 'read',
    describedQuery: SandboxListQuerySchema,
    answers: { 200: SandboxPageSchema },
    handle: async ({ rawQuery, principal, reply }) => {
      const filter = parseSandboxListQuery(rawQuery);
      const answer = await ask(reply.raw, 'sandbox.list', { project: principal.project, ...filter });
      return checkSandboxPage(answer, 'sandbox.list');
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id',
    summary: 'Shows a sandbox.',
    right: 'read',
    answers: { 200: SandboxSchema },
    handle: async ({ params, reply }) =>
      checkSandbox(await ask(reply.raw, 'sandbox.get', { sandboxId: idOf(params) }), 'sandbox.get'),
  });
  addRoute(scopes, keys, {
    method: 'PATCH',
    url: '/sandboxes/:id',
    summary: 'Changes when a sandbox ends by itself.',
    right: 'write',
    body: SandboxPatchSchema,
    answers: { 200: SandboxSchema },
    handle: async ({ params, body, reply }) =>
      checkSandbox(await ask(reply.raw, 'sandbox.patch', { sandboxId: idOf(params), patch: body }), 'sandbox.patch'),
  });
  addRoute(scopes, keys, {
    method: 'DELETE',
    url: '/sandboxes/:id',
    summary: 'Stops a sandbox; answers when nothing of it is left. Stopping it twice is no error.',
    right: 'write',
    answers: { 200: SandboxSchema },
    handle: async ({ params, reply }) =>
      checkSandbox(await ask(reply.raw, 'sandbox.stop', { sandboxId: idOf(params) }), 'sandbox.stop'),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/usage',
    summary: 'What a live sandbox uses now.',
    right: 'read',
    answers: { 200: UsageSchema },
    handle: async ({ params, reply }) =>
      checkUsage(await ask(reply.raw, 'sandbox.usage', { sandboxId: idOf(params) }), 'sandbox.usage'),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/processes',
    summary: 'What runs in a sandbox.',
    right: 'read',
    answers: { 200: ProcessesSchema },
    handle: async ({ params, reply }) =>
      checkProcesses(await ask(reply.raw, 'processes', { sandboxId: idOf(params) }), 'processes'),
  });
}
