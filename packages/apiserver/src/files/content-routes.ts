/** Routes of the bytes of files: streamed both ways, so that their size does not matter. */
import { FileEntrySchema, PathSchema, PlatformError, UserSchema } from '@dsec/contract';
import type { WireStream } from '@dsec/native-link';
import type { IncomingMessage } from 'node:http';
import { Type } from 'typebox';
import { checkEntries, checkEntry, checkEntryMessage } from '../edge/answers.ts';
import { setCredential } from '../audit/request-audit.ts';
import { authenticate } from '../http/authentication.ts';
import { pumpBody } from '../http/body.ts';
import { resetOnClose } from '../http/ndjson.ts';
import { sendBytes, unexpected } from '../http/send-bytes.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { parseRange, rangeInvalid, type ByteRange } from './byte-range.ts';
import { checkLink, type LinkOperation } from './link.ts';
import type { FastifyReply } from 'fastify';

const closed = { additionalProperties: false } as const;
const BYTES_TYPE = 'application/octet-stream';
const TAR_TYPE = 'application/x-tar';
const size = { minimum: 0, maximum: Number.MAX_SAFE_INTEGER } as const;
const target = { path: PathSchema, user: Type.Optional(UserSchema) } as const;
const signature = {
  expires: Type.Optional(Type.Integer({ ...size, description: 'Of a signed link.' })),
  sig: Type.Optional(Type.String({ maxLength: 64, description: 'Of a signed link.' })),
} as const;

const ReadQuerySchema = Type.Object(
  {
    ...target,
    offset: Type.Optional(Type.Integer({ ...size, description: 'First byte. Default 0.' })),
    length: Type.Optional(Type.Integer({ ...size, description: 'Most bytes. Default: all.' })),
    ...signature,
  },
  closed,
);
const WriteQuerySchema = Type.Object(
  {
    ...target,
    mode: Type.Optional(
      Type.Integer({
        minimum: 0,
        maximum: 0o7777,
        description: 'In decimal. Of a new file; one that exists keeps its own.',
      }),
    ),
    append: Type.Optional(Type.Boolean({ description: 'Add at the end instead of replacing. Default false.' })),
    ...signature,
  },
  closed,
);
const TreeQuerySchema = Type.Object(target, closed);

interface Target {
  readonly path: string;
  readonly user?: string;
  readonly expires?: number;
  readonly sig?: string;
}

export function contentRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, edge, clock, linkKey } = services;

  /** Lets in a key with its right, or a signed link that was made for just this. */
  const authorize = (
    request: IncomingMessage,
    operation: LinkOperation,
    sandboxId: string,
    query: Target,
    others: object,
  ): void => {
    const { path, user, expires, sig } = query;
    if (sig === undefined) {
      authenticate(keys, request, operation);
      return;
    }
    if (Object.values(others).some((value) => value !== undefined)) {
      throw new PlatformError('link_invalid', 'the signed link was given parameters that it was not made with');
    }
    checkLink(linkKey, { operation, sandboxId, path, user, expiresAtMs: expires ?? 0 }, sig, clock.now());
    setCredential(request, 'link');
  };

  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/files',
    summary: 'The bytes of a file. Takes a Range.',
    right: 'handler',
    query: ReadQuerySchema,
    answers: { 200: BYTES_TYPE, 206: BYTES_TYPE },
    handle: async ({ params, query, request, reply }) => {
      const sandboxId = sandboxIdOf(services, params.id);
      const { path, user, offset, length } = query;
      authorize(request.raw, 'read', sandboxId, query, { offset, length });
      const file = { sandboxId, path, ...(user === undefined ? {} : { user }) };
      const asked = offset === undefined && length === undefined ? parseRange(request.raw.headers.range) : undefined;
      const range = asked === undefined ? undefined : await resolveRange(services, reply, file, asked);
      const part = range ?? { offset, length };
      const stream = await edge.open('file.read', {
        ...file,
        ...(part.offset === undefined ? {} : { offset: part.offset }),
        ...(part.length === undefined ? {} : { length: part.length }),
      });
      resetOnClose(reply.raw, stream);
      const first = await stream.next();
      if (first.done === true || first.value.type !== 'message') throw unexpected(stream);
      const { sizeBytes } = checkEntryMessage(first.value.value, stream.method).entry;
      const headers: Record<string, string> = {
        'content-type': BYTES_TYPE,
        'accept-ranges': 'bytes',
        'cache-control': 'no-store',
      };
      if (range !== undefined)
        headers['content-range'] =
          `bytes ${range.offset}-${range.offset + range.length - 1}/${Math.max(sizeBytes, range.offset + range.length)}`;
      // A file that cannot be read at all is told as an error; only later ones break the answer off.
      const bytes = await stream.next();
      const status = range === undefined ? 200 : 206;
      await sendBytes(reply, services, stream, status, headers, bytes.done === true ? undefined : bytes.value);
    },
  });
  addRoute(scopes, keys, {
    method: 'PUT',
    url: '/sandboxes/:id/files',
    summary: 'Writes a file whole, or adds to it. Directories above it are made.',
    right: 'handler',
    bytes: BYTES_TYPE,
    query: WriteQuerySchema,
    answers: { 200: FileEntrySchema },
    handle: async ({ params, query, request, reply }) => {
      const sandboxId = sandboxIdOf(services, params.id);
      const { path, user, mode, append } = query;
      authorize(request.raw, 'write', sandboxId, query, { mode, append });
      const stream = await edge.open('file.write', {
        sandboxId,
        path,
        ...(user === undefined ? {} : { user }),
        ...(mode === undefined ? {} : { mode }),
        ...(append === undefined ? {} : { append }),
      });
      resetOnClose(reply.raw, stream);
      return checkEntry(await upload(request.raw, stream), stream.method);
    },
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/files/tree',
    summary: 'A directory as a tar archive.',
    right: 'read',
    query: TreeQuerySchema,
    answers: { 200: TAR_TYPE },
    handle: async ({ params, query, reply }) => {
      const stream = await edge.open('tree.read', { sandboxId: sandboxIdOf(services, params.id), ...query });
      resetOnClose(reply.raw, stream);
      const first = await stream.next();
      const headers = { 'content-type': TAR_TYPE, 'cache-control': 'no-store' };
      await sendBytes(reply, services, stream, 200, headers, first.done === true ? undefined : first.value);
    },
  });
  addRoute(scopes, keys, {
    method: 'PUT',
    url: '/sandboxes/:id/files/tree',
    summary: 'Unpacks a tar archive into a directory.',
    right: 'write',
    bytes: TAR_TYPE,
    query: TreeQuerySchema,
    answers: { 204: '' },
    handle: async ({ params, query, request, reply }) => {
      // A directory comes as it is: its symlinks may lead anywhere in the sandbox, but nothing is written through one that leads out of it.
      const asked = { sandboxId: sandboxIdOf(services, params.id), ...query, anySymlinks: true };
      const stream = await edge.open('tree.write', asked);
      resetOnClose(reply.raw, stream);
      checkEntries(await upload(request.raw, stream), stream.method);
      return reply.code(204).send();
    },
  });
}

/** Sends a body and returns the answer; a body that breaks off leaves things as they were. */
async function upload(request: IncomingMessage, stream: WireStream): Promise<unknown> {
  await pumpBody(request, stream);
  stream.end();
  return await stream.result;
}

/** A range of a file as it is now, cut to its size. */
async function resolveRange(
  services: Services,
  reply: FastifyReply,
  file: { readonly sandboxId: string; readonly path: string; readonly user?: string },
  { offset, length }: ByteRange,
): Promise<{ readonly offset: number; readonly length: number } | undefined> {
  const { sizeBytes, kind } = checkEntry(await askEdge(services, reply.raw, 'file.stat', file), 'file.stat');
  // Files of the kernel have no size of their own; a server may ignore a range.
  if (kind !== 'file' || sizeBytes === 0) return undefined;
  const begin = offset ?? Math.max(0, sizeBytes - (length ?? 0));
  if (begin >= sizeBytes) throw rangeInvalid('begins behind the end of the file');
  return {
    offset: begin,
    length: offset === undefined ? sizeBytes - begin : Math.min(length ?? sizeBytes, sizeBytes - begin),
  };
}
