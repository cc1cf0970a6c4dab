/** Whether this server can serve. */
import { PlatformError } from '@dsec/contract';
import { Type } from 'typebox';
import { addRoute, type RouteScopes } from './http/route.ts';
import type { Services } from './services.ts';

const HealthSchema = Type.Object(
  { status: Type.Literal('ok'), version: Type.String() },
  { additionalProperties: false, description: 'The server and its edge answer.' },
);

/** Version of the API that this server speaks. */
export const API_VERSION = '0.1.0';

export function healthRoutes(scopes: RouteScopes, { keys, edge }: Services): void {
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/health',
    summary: 'Whether the server and its edge answer. Needs no key.',
    right: 'none',
    answers: { 200: HealthSchema },
    handle: () => {
      if (!edge.isConnected) throw new PlatformError('unavailable', 'the edge does not answer');
      return Promise.resolve({ status: 'ok', version: API_VERSION });
    },
  });
}
