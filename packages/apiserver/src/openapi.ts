/** The description of the API (OpenAPI 3.1), made from the routes themselves. */
import { ErrorBodySchema, SandboxIds } from '@dsec/contract';
import { hashSecret, Keys } from '@dsec/iam';
import { ManualClock, MemoryNetwork, Scope, SeededRandom, silentLogger } from '@dsec/kit';
import { EmbeddedStore } from '@dsec/store';
import swagger from '@fastify/swagger';
import { buildApp } from './app.ts';
import { RequestAudit } from './audit/request-audit.ts';
import { CommandDigest } from './audit/request-subject.ts';
import { EdgeLink } from './edge/edge-link.ts';
import { Environments } from './environments/environments.ts';
import { API_VERSION } from './health-routes.ts';
import { LinkKey } from './link-key.ts';

type Json = Readonly<Record<string, unknown>>;

const error = { description: 'A failure.', content: { 'application/json': { schema: ErrorBodySchema } } };

/** Paths that do not go by the router. */
const otherPaths: Json = {
  '/v1/sandboxes/{id}/execs/{eid}/pty': {
    get: {
      summary: 'Follows a command by WebSocket: binary frames are stdin and output, text frames are JSON.',
      parameters: [
        { name: 'id', in: 'path', required: true, schema: { type: 'string' } },
        { name: 'eid', in: 'path', required: true, schema: { type: 'string' } },
        { name: 'stdoutFrom', in: 'query', required: false, schema: { type: 'integer', minimum: 0 } },
        { name: 'stderrFrom', in: 'query', required: false, schema: { type: 'integer', minimum: 0 } },
      ],
      responses: { 101: { description: 'WebSocket.' }, default: error },
    },
  },
  '/v1/sandboxes/{id}/ports/{port}/{path}': {
    'x-any-method': {
      summary:
        'Any HTTP request, or WebSocket, to a service in the sandbox. Also by Host `PORT-ID.…`. Takes the API key or a port token.',
    },
  },
};

/** The description; the same for the same routes. */
export async function describeApi(): Promise<Json> {
  const clock = new ManualClock(0);
  const random = new SeededRandom(1);
  await using scope = new Scope({ clock });
  const store = scope.own('store', EmbeddedStore.open({ path: ':memory:' }));
  const key = Buffer.alloc(32);
  const app = await buildApp(
    {
      clock,
      random,
      logger: silentLogger,
      audit: new RequestAudit({
        log: { directory: '', append: () => 0, appendEncoded: () => 0, flush: () => Promise.resolve() },
        clock,
        random,
        digest: new CommandDigest(''),
      }),
      keys: await Keys.open({ store, clock, random, scope, adminKeySha256: hashSecret('') }),
      environments: await Environments.open({ store, clock, scope }),
      edge: EdgeLink.open({ network: new MemoryNetwork(), clock, random, logger: silentLogger, scope, socket: '' }),
      ids: new SandboxIds(key),
      edgeNumber: 0,
      linkKey: new LinkKey(key),
      publicUrl: undefined,
    },
    async (fastify) => {
      await fastify.register(swagger, {
        openapi: {
          openapi: '3.1.0',
          info: { title: 'dsec', version: API_VERSION, license: { name: 'Apache-2.0', identifier: 'Apache-2.0' } },
          components: {
            securitySchemes: {
              bearer: { type: 'http', scheme: 'bearer' },
              header: { type: 'apiKey', in: 'header', name: 'X-API-Key' },
            },
          },
          security: [{ bearer: [] }, { header: [] }],
        },
        convertConstToEnum: false,
      });
    },
  );
  scope.defer('app', () => app.close());
  return sorted(withErrors(app.fastify.swagger() as unknown as Json)) as Json;
}

/** Every operation may fail in the same form. */
function withErrors(document: Json): Json {
  const paths = document.paths as Readonly<Record<string, Readonly<Record<string, Json>>>>;
  const described = Object.entries(paths).map(([path, operations]) => [
    path,
    Object.fromEntries(
      Object.entries(operations).map(([method, operation]) => [
        method,
        { ...operation, responses: { ...(operation.responses as Json), default: error } },
      ]),
    ),
  ]);
  return { ...document, paths: { ...Object.fromEntries(described), ...otherPaths } };
}

/** Paths and their methods in order; the members of a schema stay in the order in which they are written. */
function sorted(document: Json): Json {
  const paths = Object.entries(document.paths as Json).toSorted(([left], [right]) => (left < right ? -1 : 1));
  return { ...document, paths: Object.fromEntries(paths) };
}
