/** Has every route of the framework audited: also one whose client goes before the answer is whole, of which no other hook hears. */
import type { FastifyInstance, FastifyReply, FastifyRequest, RouteOptions } from 'fastify';
import { failureOf } from '../http/outcome.ts';
import { operationOf } from './operations.ts';
import type { Audited, RequestAudit } from './request-audit.ts';

type Done = (error?: Error) => void;

/** Watches the routes that are added from now on. */
export function auditRequests(fastify: FastifyInstance, audit: RequestAudit): void {
  fastify.addHook('onRoute', (route) => {
    // Refusals of methods that a path does not have are no route of the API.
    if (typeof route.method === 'string') auditRoute(route, route.method, audit);
  });
}

function auditRoute(route: RouteOptions & { url: string }, method: string, audit: RequestAudit): void {
  const operation = operationOf(method, route.url);
  const { onRequest, onSend } = route;
  /** Of requests whose record is written before they are answered. */
  const early = new WeakMap<FastifyRequest, Audited>();

  const begin = (request: FastifyRequest, reply: FastifyReply, done: Done): void => {
    const { raw } = request;
    const params = request.params as Readonly<Record<string, string>>;
    const audited = audit.begin(operation, raw, request.id, params);
    if (operation.isDurable) early.set(request, audited);
    const response = reply.raw;
    response.once('close', () => {
      const { statusCode: status, writableFinished } = response;
      audit.end(audited, { status, error: failureOf(raw), isBroken: !writableFinished, body: request.body });
    });
    done();
  };
  route.onRequest = [begin, ...[onRequest ?? []].flat()];
  if (!operation.isDurable) return;
  const settle = async (request: FastifyRequest, reply: FastifyReply, payload: unknown): Promise<unknown> => {
    const audited = early.get(request);
    const { statusCode: status } = reply;
    if (audited !== undefined) await audit.endDurably(audited, { status, error: undefined, body: request.body });
    return payload;
  };
  route.onSend = [...[onSend ?? []].flat(), settle];
}
