/** The one route of ports that is not passed on to a service inside. */
import { PortTokenRequestSchema, PortTokenSchema } from '@dsec/contract';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { requirePort } from './port-address.ts';
import { signPortToken } from './port-token.ts';

const DEFAULT_EXPIRES_IN_SECONDS = 3600;

export function portRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, linkKey, clock } = services;
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/ports/:port/token',
    summary:
      'Makes a token that opens one port of a sandbox until it expires: as header `X-Dsec-Port-Token` or query `dsec_token`.',
    right: 'write',
    body: PortTokenRequestSchema,
    answers: { 200: PortTokenSchema },
    handle: ({ params, body }) => {
      const scope = { sandboxId: sandboxIdOf(services, params.id), port: requirePort(Number(params.port)) };
      const expiresAtMs = clock.now() + (body.expiresInSeconds ?? DEFAULT_EXPIRES_IN_SECONDS) * 1000;
      return Promise.resolve({ token: signPortToken(linkKey, scope, expiresAtMs), expiresAtMs });
    },
  });
}
