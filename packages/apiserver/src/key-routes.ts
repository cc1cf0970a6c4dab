/** Routes of API keys; only the admin key may use them. */
import { KeyCreateSchema, KeySchema, NewKeySchema, PlatformError } from '@dsec/contract';
import { Type } from 'typebox';
import { noteSubject } from './audit/request-audit.ts';
import { addRoute, type RouteScopes } from './http/route.ts';
import type { Services } from './services.ts';

const ListSchema = Type.Object({ keys: Type.Array(KeySchema) }, { additionalProperties: false });

export function keyRoutes(scopes: RouteScopes, { keys }: Services): void {
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/keys',
    summary: 'Lists the API keys, revoked ones too, without their secrets.',
    right: 'admin',
    answers: { 200: ListSchema },
    handle: ({ principal }) => Promise.resolve({ keys: keys.list(principal.project) }),
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/keys',
    summary: 'Makes an API key; its secret is in this answer and nowhere else.',
    right: 'admin',
    body: KeyCreateSchema,
    answers: { 201: NewKeySchema },
    handle: async ({ principal, body, request, reply }) => {
      if (body.readOnly === true && body.builder === true) {
        throw new PlatformError('invalid_argument', 'a key that only reads builds nothing', {
          details: { field: 'builder' },
        });
      }
      const created = await keys.create({
        project: principal.project,
        name: body.name,
        readOnly: body.readOnly ?? false,
        builder: body.builder ?? false,
      });
      const { keyId: subjectKeyId, name, readOnly, builder } = created.info;
      noteSubject(request.raw, { subjectKeyId, detail: { name, readOnly, builder } });
      return reply.code(201).send(created);
    },
  });
  addRoute(scopes, keys, {
    method: 'DELETE',
    url: '/keys/:keyId',
    summary: 'Revokes an API key, from this moment on and for good.',
    right: 'admin',
    answers: { 200: KeySchema },
    handle: ({ principal, params }) => keys.revoke(principal.project, params.keyId ?? ''),
  });
}
