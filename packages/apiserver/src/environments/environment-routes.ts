/** Routes of environments. A name may have slashes; in a path they are `%2F`. */
import { EnvironmentKindSchema, EnvironmentPutSchema, EnvironmentSchema, limits, PlatformError } from '@dsec/contract';
import { Type } from 'typebox';
import { noteSubject } from '../audit/request-audit.ts';
import { addRoute, requireForm, type RouteScopes } from '../http/route.ts';
import type { Services } from '../services.ts';
import type { EnvironmentQuery } from './environments.ts';

export const nameForm = /^[A-Za-z0-9][A-Za-z0-9._/:-]{0,254}$/;
const closed = { additionalProperties: false } as const;
const ListQuerySchema = Type.Object(
  {
    prefix: Type.Optional(Type.String({ maxLength: 255, description: 'Only those whose name begins with it.' })),
    kind: Type.Optional(EnvironmentKindSchema),
    cursor: Type.Optional(Type.String({ maxLength: 255, description: 'What the page before returned.' })),
    limit: Type.Optional(Type.Integer({ ...limits.pageSize, description: 'Environments a page.' })),
  },
  closed,
);
const PageSchema = Type.Object(
  {
    environments: Type.Array(EnvironmentSchema),
    cursor: Type.Union([Type.String(), Type.Null()], { description: 'For the next page; null: there is none.' }),
  },
  closed,
);

export function environmentRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, environments } = services;
  const nameOf = (params: Readonly<Record<string, string>>): string => requireForm('name', params.name, nameForm);

  addRoute(scopes, keys, {
    method: 'GET',
    url: '/environments',
    summary: 'Lists the environments by name, page by page.',
    right: 'read',
    query: ListQuerySchema,
    answers: { 200: PageSchema },
    handle: ({ query }) => Promise.resolve(environments.page(query as EnvironmentQuery)),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/environments/:name',
    summary: 'Shows an environment.',
    right: 'read',
    answers: { 200: EnvironmentSchema },
    handle: ({ params }) => Promise.resolve(environments.get(nameOf(params))),
  });
  addRoute(scopes, keys, {
    method: 'PUT',
    url: '/environments/:name',
    summary: 'Names an image whose layers the node or its blob store has.',
    right: 'build',
    body: EnvironmentPutSchema,
    answers: { 200: EnvironmentSchema },
    handle: async ({ params, body, request }) => {
      noteSubject(request.raw, { detail: { topLayer: body.image.layers[0] ?? '', layers: body.image.layers.length } });
      if (nameOf(params) !== body.name) {
        throw new PlatformError('invalid_argument', 'path and body name different environments', {
          details: { field: 'name' },
        });
      }
      return await environments.put(body);
    },
  });
  addRoute(scopes, keys, {
    method: 'DELETE',
    url: '/environments/:name',
    summary: 'Takes a name away; sandboxes that run from it go on.',
    right: 'build',
    answers: { 204: '' },
    handle: async ({ params, reply }) => {
      await environments.remove(nameOf(params));
      return reply.code(204).send();
    },
  });
}
