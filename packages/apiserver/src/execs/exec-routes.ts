/** Routes that run commands and follow them. */
import {
  EXEC_STREAM_TYPE,
  ExecRequestSchema,
  ExecResultSchema,
  ExecStatusSchema,
  ResizeSchema,
  SignalSchema,
} from '@dsec/contract';
import type { WireStream } from '@dsec/native-link';
import { Type } from 'typebox';
import type { IncomingHttpHeaders } from 'node:http';
import {
  checkBytes,
  checkDelivered,
  checkExecList,
  checkExecStatus,
  DeliveredSchema,
  ExecListSchema,
} from '../edge/answers.ts';
import { noteSubject } from '../audit/request-audit.ts';
import { idempotencyKeyIn } from '../fingerprint.ts';
import { pumpBody } from '../http/body.ts';
import { resetOnClose } from '../http/ndjson.ts';
import { addRoute, requireForm, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { execStarted } from './exec-events.ts';
import { sendRecords } from './exec-records.ts';
import { execIdentity, execStart } from './exec-request.ts';
import { sendResult } from './exec-result.ts';
import { MemoryBudget } from '../http/memory-budget.ts';

const execIdForm = /^[a-z0-9]{1,32}$/;
const DEFAULT_SIGNAL = 9;
/** Output that answers in one piece hold together beyond their first 64 KiB of each stream. */
const RESULT_BYTES = 96 * 1024 * 1024;
const offset = { minimum: 0 } as const;

const OutputQuerySchema = Type.Object(
  {
    stdoutFrom: Type.Optional(Type.Integer({ ...offset, description: 'Bytes since the start. Default 0.' })),
    stderrFrom: Type.Optional(Type.Integer({ ...offset })),
    follow: Type.Optional(
      Type.Boolean({ description: 'Wait for what is still to come, until the end. Default true.' }),
    ),
  },
  { additionalProperties: false },
);
const StdinQuerySchema = Type.Object(
  { close: Type.Optional(Type.Boolean({ description: 'End of file follows. Default true.' })) },
  { additionalProperties: false },
);

type Params = Readonly<Record<string, string>>;

const execIdOf = (params: Params): string => requireForm('execId', params.eid, execIdForm);

const wantsRecords = (headers: IncomingHttpHeaders): boolean => headers.accept?.includes(EXEC_STREAM_TYPE) ?? false;

export function execRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, edge, clock } = services;
  const idOf = (params: Params): string => sandboxIdOf(services, params.id);
  const budget = new MemoryBudget(RESULT_BYTES);

  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/execs',
    summary: `Runs a command. Answers with its result, or with \`Accept: ${EXEC_STREAM_TYPE}\` with its output as it comes. Takes an Idempotency-Key.`,
    right: 'write',
    body: ExecRequestSchema,
    answers: { 200: [ExecResultSchema, EXEC_STREAM_TYPE], 202: ExecStatusSchema },
    handle: async ({ body, params, principal, request, reply }) => {
      const sandboxId = idOf(params);
      const { headers } = request.raw;
      const identity = execIdentity(services, principal, sandboxId, idempotencyKeyIn(headers), body);
      const { sessionId } = body;
      noteSubject(request.raw, { execId: identity.execId, ...(sessionId === undefined ? {} : { sessionId }) });
      const start = execStart(body, identity);
      const opened = edge.open('exec.start', start.params);
      const stream = opened instanceof Promise ? await opened : opened;
      resetOnClose(reply.raw, stream);
      if (start.input !== undefined) sendInput(stream, start.input);
      const started = await execStarted(stream);
      if (body.detach === true) {
        const status = await askEdge(services, reply.raw, 'exec.get', { sandboxId, execId: started.execId });
        return reply.code(202).send(checkExecStatus(status, 'exec.get'));
      }
      if (!wantsRecords(headers)) {
        return await sendResult(reply, clock, stream, budget, body.outputLimitBytes);
      }
      await sendRecords(reply, clock, stream, started);
      return undefined;
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/execs',
    summary: 'Lists the commands that run, and those that ended not long ago.',
    right: 'read',
    answers: { 200: ExecListSchema },
    handle: async ({ params, reply }) =>
      checkExecList(await askEdge(services, reply.raw, 'exec.list', { sandboxId: idOf(params) }), 'exec.list'),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/execs/:eid',
    summary: 'Shows the state of a command.',
    right: 'read',
    answers: { 200: ExecStatusSchema },
    handle: async ({ params, reply }) => {
      const asked = { sandboxId: idOf(params), execId: execIdOf(params) };
      return checkExecStatus(await askEdge(services, reply.raw, 'exec.get', asked), 'exec.get');
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/execs/:eid/output',
    summary: `The output of a command, as one JSON answer or with \`Accept: ${EXEC_STREAM_TYPE}\` as it comes.`,
    right: 'read',
    query: OutputQuerySchema,
    answers: { 200: [ExecResultSchema, EXEC_STREAM_TYPE] },
    handle: async ({ params, query, request, reply }) => {
      const stream = await edge.open('exec.attach', { sandboxId: idOf(params), execId: execIdOf(params), ...query });
      resetOnClose(reply.raw, stream);
      const started = await execStarted(stream);
      if (!wantsRecords(request.raw.headers)) return await sendResult(reply, clock, stream, budget);
      await sendRecords(reply, clock, stream, started);
      return undefined;
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/execs/:eid/signal',
    summary: 'Sends a signal to a command.',
    right: 'write',
    body: SignalSchema,
    answers: { 200: DeliveredSchema },
    handle: async ({ params, body, reply }) => {
      const { signal = DEFAULT_SIGNAL, tree = true } = body;
      const asked = { sandboxId: idOf(params), execId: execIdOf(params), signal, tree };
      return checkDelivered(await askEdge(services, reply.raw, 'exec.signal', asked), 'exec.signal');
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/execs/:eid/resize',
    summary: 'Sets the size of the terminal of a command.',
    right: 'write',
    body: ResizeSchema,
    answers: { 204: '' },
    handle: async ({ params, body, reply }) => {
      await askEdge(services, reply.raw, 'exec.resize', { sandboxId: idOf(params), execId: execIdOf(params), ...body });
      return reply.code(204).send();
    },
  });
}

/** The whole input may go before the command runs: the stream holds it back until it is read. */
function sendInput(stream: WireStream, input: Buffer): void {
  // When the command does not start or does not read, its own outcome says more than this.
  stream.write(input).catch(() => undefined);
  stream.end();
}

/** The route of stdin, whose body is bytes. */
export function stdinRoute(scopes: RouteScopes, services: Services): void {
  const { keys, edge } = services;
  addRoute(scopes, keys, {
    method: 'PUT',
    url: '/sandboxes/:id/execs/:eid/stdin',
    summary: 'Writes to the stdin of a command; answers when the command has taken all of it.',
    right: 'write',
    bytes: 'application/octet-stream',
    query: StdinQuerySchema,
    answers: { 204: '' },
    handle: async ({ params, query, request, reply }) => {
      const stream = await edge.open('exec.stdin', {
        sandboxId: sandboxIdOf(services, params.id),
        execId: execIdOf(params),
        ...(query.close === false ? { keepOpen: true } : {}),
      });
      resetOnClose(reply.raw, stream);
      await pumpBody(request.raw, stream);
      stream.end();
      checkBytes(await stream.result, stream.method);
      return reply.code(204).send();
    },
  });
}
