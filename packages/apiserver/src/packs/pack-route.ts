/** The route of pack_diff: a sandbox's changes get a name. */
import {
  EnvironmentImageSchema,
  PackProgressSchema,
  PackReportSchema,
  PackRequestSchema,
  PlatformError,
  type CreateSandbox,
  type Environment,
  type EnvironmentConfig,
  type EnvironmentImage,
  type EnvironmentKind,
  type Packed,
  type PackKind,
  type PackProgress,
  type PackReport,
  type PackRequest,
  type SandboxInfo,
} from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import type { FastifyReply } from 'fastify';
import { Type } from 'typebox';
import { noteSubject } from '../audit/request-audit.ts';
import { checkSandbox } from '../edge/answers.ts';
import { composeImage } from '../environments/compose.ts';
import { asPlatformError } from '../http/error-reply.ts';
import { NDJSON_HEADERS, KEEPALIVE_LINE, NDJSON_TYPE, resetOnClose } from '../http/ndjson.ts';
import { noteFailure } from '../http/outcome.ts';
import { ResponseStream } from '../http/response-stream.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import { askEdge, edgePrincipal, idempotencyOf } from '../sandboxes/sandbox-routes.ts';
import type { Services } from '../services.ts';

const closed = { additionalProperties: false } as const;
const progressParser = compileSchema(PackProgressSchema);
const doneParser = compileSchema(
  Type.Object(
    {
      image: Type.Optional(EnvironmentImageSchema),
      report: PackReportSchema,
      frozenMs: Type.Number({ minimum: 0 }),
      layers: EnvironmentImageSchema.properties.layers,
    },
    closed,
  ),
);

interface PackDone {
  readonly image?: EnvironmentImage;
  readonly report: PackReport;
  readonly frozenMs: number;
  readonly layers: readonly string[];
}

const kinds: Readonly<Record<PackKind, EnvironmentKind>> = {
  workspace: 'workspace',
  toolkit: 'toolkit',
  environment: 'base',
};

export function packRoute(scopes: RouteScopes, services: Services): void {
  const { keys, edge } = services;
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/pack',
    summary:
      'Makes what a live sandbox has written into a workspace, a toolkit or an environment. Lines `{"progress":...}`, then `{"packed":...}` or `{"error":...}`. For builders. Takes an Idempotency-Key.',
    right: 'build',
    body: PackRequestSchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ params, body, principal, request: { raw }, reply }) => {
      const sandboxId = sandboxIdOf(services, params.id);
      // The schema has checked it; its derived type has lost the names of literals.
      const request = body as PackRequest;
      const info = checkSandbox(await askEdge(services, reply.raw, 'sandbox.get', { sandboxId }), 'sandbox.get');
      noteSubject(raw, { environment: request.name, detail: { kind: request.kind ?? 'workspace' } });
      const plan = planOf(services, request, info);
      const stream = await edge.open('sandbox.pack', {
        sandboxId,
        principal: edgePrincipal(principal),
        request,
        config: plan.config,
        architecture: plan.architecture,
        ...idempotencyOf(raw.headers, { ...request, sandboxId }),
      });
      await answer(services, reply, stream, async (done) => await nameIt(services, request, plan, done));
    },
  });
}

/** What the layer will belong to. */
interface Plan {
  readonly kind: PackKind;
  readonly config: EnvironmentConfig;
  readonly architecture: string;
  /** The layers that the name is to have below the new one; undefined: all that the sandbox stands on. */
  readonly below: readonly string[] | undefined;
  readonly belowBytes: number;
}

/** @throws PlatformError `invalid_argument` when the name is taken by something of another kind; `environment_not_found` */
function planOf({ environments }: Services, request: PackRequest, info: SandboxInfo): Plan {
  const { name, kind = 'workspace' } = request;
  const taken = environments.find(name);
  if (taken !== undefined && taken.kind !== kinds[kind]) {
    throw new PlatformError('invalid_argument', `the name ${name} is taken by a ${taken.kind}`, {
      details: { field: 'name', environment: name, kind: taken.kind },
    });
  }
  const { environment, workspace, toolkits } = info;
  const create = {
    environment,
    ...(workspace === null ? {} : { workspace }),
    ...(toolkits.length === 0 ? {} : { toolkits: [...toolkits] }),
  } as CreateSandbox;
  const composed = composeImage(environments, create);
  const { architecture } = composed;
  const own = { env: request.env ?? {}, workdir: request.workdir ?? '' };
  if (kind === 'environment') {
    const { config } = composed;
    // A sandbox does not run what an environment does not say is to run; of the image it is a part all the same.
    const { entrypoint, cmd } = environments.get(environment).image.config;
    const env = { ...config.env, ...own.env };
    const workdir = request.workdir ?? config.workdir;
    return {
      kind,
      config: { ...config, entrypoint, cmd, env, workdir },
      architecture,
      below: undefined,
      belowBytes: composed.sizeBytes,
    };
  }
  const empty: EnvironmentConfig = { ...own, user: '', entrypoint: [], cmd: [], labels: {} };
  if (kind === 'toolkit' || workspace === null) return { kind, config: empty, architecture, below: [], belowBytes: 0 };
  const { image } = environments.get(workspace);
  const config = {
    ...image.config,
    env: { ...image.config.env, ...own.env },
    workdir: own.workdir || image.config.workdir,
  };
  return { kind, config, architecture, below: image.layers, belowBytes: image.sizeBytes };
}

/** Gives the new layer its name, with what stands below it. */
async function nameIt(
  { environments }: Services,
  request: PackRequest,
  plan: Plan,
  { image, layers }: PackDone,
): Promise<Environment | null> {
  if (image === undefined) return null;
  const below = plan.below ?? layers;
  const lost = below.find((layer) => !layers.includes(layer));
  if (lost !== undefined) {
    throw new PlatformError('invalid_argument', 'the workspace of the sandbox has been given anew since it was made', {
      details: { field: 'kind', layer: lost },
    });
  }
  const { description } = request;
  return await environments.put({
    name: request.name,
    kind: kinds[plan.kind],
    image: { ...image, layers: [...image.layers, ...below], sizeBytes: image.sizeBytes + plan.belowBytes },
    ...(description === undefined ? {} : { description }),
  });
}

/** Tells of progress line by line, and at the end of what came of it. An error before the first line has an HTTP status. */
async function answer(
  { clock }: Services,
  reply: FastifyReply,
  stream: WireStream,
  name: (done: PackDone) => Promise<Environment | null>,
): Promise<void> {
  resetOnClose(reply.raw, stream);
  const first = await stream.next();
  if (first.done === true) await stream.result;
  const response = new ResponseStream(reply, clock, 200, NDJSON_HEADERS);
  response.keepAlive(KEEPALIVE_LINE);
  const line = async (value: object): Promise<void> => await response.write(`${JSON.stringify(value)}\n`);
  try {
    for (let next = first; next.done !== true; next = await stream.next()) {
      if (next.value.type !== 'message') continue;
      const progress: PackProgress = progressParser.parse(next.value.value, {
        what: 'progress',
        code: 'protocol_error',
      });
      await line({ progress });
    }
    const answered: unknown = await stream.result;
    const done = doneParser.parse(answered, { what: 'the answer to a pack', code: 'protocol_error' }) as PackDone;
    const packed: Packed = { environment: await name(done), report: done.report, frozenMs: done.frozenMs };
    response.end(`${JSON.stringify({ packed })}\n`);
  } catch (thrown) {
    const error = asPlatformError(thrown);
    noteFailure(reply.request.raw, error);
    stream.reset(error);
    response.end(`${JSON.stringify({ error: error.toWire() })}\n`);
  }
}
