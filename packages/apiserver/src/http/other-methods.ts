/** A known path with a method that it does not have is 405, not 404. */
import { PlatformError } from '@dsec/contract';
import type { FastifyInstance, HTTPMethods } from 'fastify';

/** Refusals are no part of the description of the API. */
const hidden: object = { hide: true };

/** Watches which routes are added from now on; `finish` adds the refusals. */
export function answerOtherMethods(fastify: FastifyInstance): { finish(): void } {
  const known = new Map<string, Set<string>>();
  fastify.addHook('onRoute', ({ method, url }) => {
    const methods = known.get(url) ?? new Set<string>();
    for (const one of [method].flat()) methods.add(one);
    known.set(url, methods);
  });
  return {
    finish: () => {
      for (const [url, methods] of [...known]) {
        const allowed = [...methods].toSorted();
        const others = (fastify.supportedMethods as HTTPMethods[]).filter((method) => !methods.has(method));
        fastify.route({
          method: others,
          url,
          schema: hidden,
          // Before the body is looked at.
          onRequest: (request, reply, done) => {
            reply.raw.setHeader('allow', allowed.join(', '));
            done(
              new PlatformError('method_not_allowed', `${url} has no method ${request.method}`, {
                details: { allowed },
              }),
            );
          },
          handler: (_request, reply) => reply,
        });
      }
    },
  };
}
