/** Routes of the API: what one takes and gives is said once, for the check of requests and for the description of the API. */
import type { IncomingMessage } from 'node:http';
import { PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import type { Keys, Principal, Right } from '@dsec/iam';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { Type, type Static, type TObject, type TSchema } from 'typebox';
import { principalOf } from '../audit/request-audit.ts';
import { authenticate, recognise } from './authentication.ts';
import { defineQuery } from './query.ts';

type Method = 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE';

/** What a handler gets. */
interface Call<B, Q> {
  readonly body: B;
  readonly query: Q;
  /** What is behind the `?`. */
  readonly rawQuery: string;
  readonly principal: Principal;
  readonly params: Readonly<Record<string, string>>;
  readonly request: FastifyRequest;
  readonly reply: FastifyReply;
}

/** A form of an answer: a JSON schema, the media type of what is not JSON, or nothing. */
type AnswerForm = TSchema | string;
type Answer = AnswerForm | readonly AnswerForm[];

export interface Route<B extends TSchema, Q extends TObject> {
  readonly method: Method;
  /** Below `/v1`. */
  readonly url: string;
  readonly summary: string;
  /** `none`: no key is needed. `handler`: the handler finds the principal itself. */
  readonly right: Right | 'none' | 'handler';
  readonly body?: B;
  readonly query?: Q;
  /** Describes a query that the handler parses itself, from `rawQuery`. */
  readonly describedQuery?: TObject;
  /** A body of bytes of this media type, which the handler reads itself. */
  readonly bytes?: string;
  readonly answers: Readonly<Record<number, Answer>>;
  readonly handle: (call: Call<Static<B>, Static<Q>>) => Promise<unknown>;
}

const nobody: Principal = { keyId: '', name: '', project: '', right: 'read' };
const emptyQuery = Type.Object({}, { additionalProperties: false });

/** Where routes are added: one scope of the framework for JSON bodies, one for bodies of bytes. */
export interface RouteScopes {
  readonly json: FastifyInstance;
  readonly bytes: FastifyInstance;
}

/** Adds one route. */
export function addRoute<B extends TSchema, Q extends TObject>(
  scopes: RouteScopes,
  keys: Keys,
  route: Route<B, Q>,
): void {
  const { method, url, right, handle } = route;
  const body = route.body === undefined ? undefined : compileSchema(route.body);
  const query = route.describedQuery === undefined ? defineQuery(route.query ?? emptyQuery) : () => ({});
  const scope = route.bytes === undefined ? scopes.json : scopes.bytes;
  scope.route({
    method,
    url: `/v1${url}`,
    schema: describe(route),
    handler: (request, reply) => {
      // A body of none is a body of no fields, so that routes whose fields are all optional need none.
      const parsed =
        body === undefined
          ? undefined
          : body.parse(request.body === undefined ? {} : request.body, { what: 'the body' });
      const rawQuery = queryOf(request.raw);
      const call = {
        body: parsed,
        query: query(rawQuery),
        rawQuery,
        principal: principalOf(request.raw) ?? nobody,
        params: request.params as Readonly<Record<string, string>>,
        request,
        reply,
      };
      // The schemas have checked both.
      return handle(call as Call<Static<B>, Static<Q>>);
    },
    ...(right === 'none'
      ? {}
      : {
          onRequest: (request: FastifyRequest, _reply: FastifyReply, done: (error?: Error) => void) => {
            try {
              if (right === 'handler') recognise(keys, request.raw);
              else authenticate(keys, request.raw, right);
              done();
            } catch (error) {
              done(error as Error);
            }
          },
        }),
  });
}

function queryOf({ url = '' }: IncomingMessage): string {
  const at = url.indexOf('?');
  return at < 0 ? '' : url.slice(at + 1);
}

const binary = Type.String({ format: 'binary' });

/** The part of the description of the API that this route is. */
function describe<B extends TSchema, Q extends TObject>(route: Route<B, Q>): object {
  const response = Object.entries(route.answers).map(([status, answer]) => {
    const forms = (Array.isArray(answer) ? answer : [answer]) as readonly AnswerForm[];
    const content = forms
      .filter((form) => form !== '')
      .map((form) => (typeof form === 'string' ? [form, { schema: binary }] : ['application/json', { schema: form }]));
    const description = status === '204' ? 'Done; no body.' : 'Success.';
    return [
      status,
      { description, ...(content.length === 0 ? {} : { content: Object.fromEntries(content) as object }) },
    ];
  });
  const querystring = route.describedQuery ?? route.query;
  return {
    summary: route.summary,
    ...(querystring === undefined ? {} : { querystring }),
    ...(route.body === undefined ? {} : { body: route.body }),
    ...(route.bytes === undefined ? {} : { consumes: [route.bytes], body: binary }),
    response: Object.fromEntries(response) as object,
    ...(route.right === 'none' ? { security: [] } : {}),
  };
}

/** @throws PlatformError `invalid_argument` when a part of the path does not have its form */
export function requireForm(field: string, value: string | undefined, form: RegExp): string {
  if (value !== undefined && form.test(value)) return value;
  throw new PlatformError('invalid_argument', `the path: ${field} does not have the required form`, {
    details: { field },
  });
}
