/** The API of one apiserver: its routes over the services that they are given. */
import type { Duplex } from 'node:stream';
import { limits, PlatformError } from '@dsec/contract';
import Fastify, { type FastifyError, type FastifyInstance, type FastifyReply, type FastifyRequest } from 'fastify';
import { auditRequests } from './audit/audit-hooks.ts';
import { auditRoutes } from './audit/audit-routes.ts';
import { principalOf } from './audit/request-audit.ts';
import { behaviourRoutes } from './behaviour/behaviour-routes.ts';
import { changesRoute } from './packs/changes-route.ts';
import { packRoute } from './packs/pack-route.ts';
import { bulkRoutes } from './sandboxes/bulk-routes.ts';
import { contentRoutes } from './files/content-routes.ts';
import { environmentRoutes } from './environments/environment-routes.ts';
import { releaseRoute } from './environments/release-route.ts';
import { usageRoutes } from './environments/usage-route.ts';
import { execRoutes, stdinRoute } from './execs/exec-routes.ts';
import { fileRoutes } from './files/file-routes.ts';
import { healthRoutes } from './health-routes.ts';
import { logRequest } from './http/access-log.ts';
import { answerEarly, readJson } from './http/body.ts';
import { asPlatformError, errorBody, REQUEST_ID_HEADER } from './http/error-reply.ts';
import { createFrontDoor, type FrontDoor } from './http/front-door.ts';
import { answerOtherMethods } from './http/other-methods.ts';
import { failureOf, noteFailure } from './http/outcome.ts';
import { requestIdOf } from './http/request-id.ts';
import type { RouteScopes } from './http/route.ts';
import { keyRoutes } from './key-routes.ts';
import { portRoutes } from './ports/port-routes.ts';
import { policyRoutes } from './sandboxes/policy-routes.ts';
import { sandboxRoutes } from './sandboxes/sandbox-routes.ts';
import { sessionRoutes } from './execs/session-routes.ts';
import type { Services } from './services.ts';

/** Longest part of a path: a name of an environment with its slashes escaped. */
const MAX_PARAM_CHARS = 1024;
/** Requests that are under way when the server closes get this long. */
const GRACE_MS = 1000;

export interface App {
  /** Opens the TCP listener; returns its port. */
  listen(host: string, port: number): Promise<number>;
  /** Serves a connection that something else has accepted. */
  serve(connection: Duplex): void;
  /** Stops accepting, lets what is under way end for a moment, and breaks the rest. Idempotent. */
  close(): Promise<void>;
  readonly fastify: FastifyInstance;
}

/** `prepare` may add plugins before the routes. */
export async function buildApp(
  services: Services,
  prepare: (fastify: FastifyInstance) => Promise<void> = () => Promise.resolve(),
): Promise<App> {
  const { clock, random, logger } = services;
  let door: FrontDoor | undefined;

  const fastify = Fastify({
    logger: false,
    bodyLimit: limits.bodyBytes,
    exposeHeadRoutes: false,
    return503OnClosing: false,
    routerOptions: {
      maxParamLength: MAX_PARAM_CHARS,
      // Each route parses its own query.
      querystringParser: () => ({}),
    },
    genReqId: (request) => requestIdOf(request, random),
    frameworkErrors: (error, request, reply) => fail(error, request, reply),
    clientErrorHandler: (error, socket) => door?.refuse(error, socket),
    serverFactory: (handler) => {
      door = createFrontDoor(services, handler);
      return door.server;
    },
  });

  function fail(thrown: unknown, request: FastifyRequest, reply: FastifyReply): void {
    const error = asPlatformError(thrown);
    noteFailure(request.raw, error);
    // Not through the framework, which closes the connection after a body that it refused.
    reply.hijack();
    const headers = { 'content-type': 'application/json; charset=utf-8', [REQUEST_ID_HEADER]: request.id };
    const head = { status: error.status, headers };
    answerEarly(request.raw, reply.raw, clock, head, JSON.stringify(errorBody(error, request.id)));
  }

  fastify.setValidatorCompiler(() => () => true);
  fastify.setSerializerCompiler(() => (value) => JSON.stringify(value));
  fastify.setErrorHandler((error: FastifyError, request, reply) => {
    fail(error, request, reply);
  });
  fastify.setNotFoundHandler((request, reply) => {
    fail(new PlatformError('not_found', `there is no route ${request.method} ${pathOf(request.url)}`), request, reply);
  });
  fastify.addHook('onRequest', (request, reply, done) => {
    reply.raw.setHeader(REQUEST_ID_HEADER, request.id);
    done();
  });
  fastify.addHook('onResponse', (request, reply, done) => {
    const { id: sandboxId } = request.params as { readonly id?: string };
    logRequest(logger, {
      requestId: request.id,
      method: request.method,
      route: request.routeOptions.url ?? 'none',
      status: reply.statusCode,
      durationMs: reply.elapsedTime,
      keyId: principalOf(request.raw)?.keyId,
      sandboxId,
      error: failureOf(request.raw),
    });
    done();
  });
  auditRequests(fastify, services.audit);
  await prepare(fastify);
  await addRoutes(fastify, services);
  await fastify.ready();

  return {
    fastify,
    listen: async (host, port) => {
      await fastify.listen({ host, port });
      const address = door?.server.address();
      return typeof address === 'object' && address !== null ? address.port : port;
    },
    serve: (connection) => {
      door?.server.emit('connection', connection);
    },
    close: async () => {
      const closing = fastify.close();
      door?.server.closeIdleConnections();
      const timer = clock.setTimer(GRACE_MS, () => {
        door?.server.closeAllConnections();
        door?.destroyUpgraded();
      });
      try {
        await closing;
      } finally {
        timer.cancel();
        door?.destroyUpgraded();
      }
    },
  };
}

const pathOf = (url: string): string => url.replace(/\?.*$/s, '').slice(0, 256);

async function addRoutes(fastify: FastifyInstance, services: Services): Promise<void> {
  const methods = answerOtherMethods(fastify);
  await fastify.register(async (json) => {
    json.removeAllContentTypeParsers();
    json.addContentTypeParser('application/json', (_request, payload, done) => readJson(payload, done));
    await json.register(async (bytes) => {
      bytes.removeAllContentTypeParsers();
      bytes.addContentTypeParser('*', (_request, payload, done) => done(null, payload));
      const scopes: RouteScopes = { json, bytes };
      healthRoutes(scopes, services);
      sandboxRoutes(scopes, services);
      policyRoutes(scopes, services);
      behaviourRoutes(scopes, services);
      bulkRoutes(scopes, services);
      execRoutes(scopes, services);
      stdinRoute(scopes, services);
      sessionRoutes(scopes, services);
      fileRoutes(scopes, services);
      contentRoutes(scopes, services);
      portRoutes(scopes, services);
      changesRoute(scopes, services);
      packRoute(scopes, services);
      environmentRoutes(scopes, services);
      usageRoutes(scopes, services);
      releaseRoute(scopes, services);
      keyRoutes(scopes, services);
      auditRoutes(scopes, services);
      await Promise.resolve();
    });
  });
  methods.finish();
}
