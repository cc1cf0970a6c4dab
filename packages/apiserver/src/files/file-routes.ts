/** Routes of files and directories, but for their bytes. */
import {
  ChangeSchema,
  FileEntrySchema,
  FileListSchema,
  MkdirSchema,
  MoveSchema,
  PathSchema,
  PlatformError,
  SignedLinkSchema,
  SignLinkSchema,
  SymlinkSchema,
  UserSchema,
  type FileEntry,
} from '@dsec/contract';
import type { IncomingMessage, ServerResponse } from 'node:http';
import { Type } from 'typebox';
import { checkEntry, checkWatchMessage } from '../edge/answers.ts';
import { MemoryBudget } from '../http/memory-budget.ts';
import { NDJSON_TYPE, resetOnClose, sendLines } from '../http/ndjson.ts';
import { addRoute, type RouteScopes } from '../http/route.ts';
import { askEdge } from '../sandboxes/sandbox-routes.ts';
import { sandboxIdOf } from '../sandboxes/sandbox-param.ts';
import type { Services } from '../services.ts';
import { collectEntries } from './file-list.ts';
import { signLink } from './link.ts';

const closed = { additionalProperties: false } as const;
const MAX_DEPTH = 64;
const DEFAULT_LIST_LIMIT = 10_000;
/** A list is put together in memory. */
const MAX_LIST_LIMIT = 100_000;
/** What all lists hold together, beyond the first of each. */
const LIST_BYTES = 96 * 1024 * 1024;
const target = { path: PathSchema, user: Type.Optional(UserSchema) } as const;

const StatQuerySchema = Type.Object(
  {
    ...target,
    followLinks: Type.Optional(Type.Boolean({ description: 'Of a symlink: what it leads to. Default true.' })),
  },
  closed,
);
const ListQuerySchema = Type.Object(
  {
    ...target,
    depth: Type.Optional(Type.Integer({ minimum: 1, maximum: MAX_DEPTH, description: 'Default 1.' })),
    limit: Type.Optional(
      Type.Integer({ minimum: 1, maximum: MAX_LIST_LIMIT, description: `Default ${DEFAULT_LIST_LIMIT}.` }),
    ),
  },
  closed,
);
const RemoveQuerySchema = Type.Object(
  { ...target, recursive: Type.Optional(Type.Boolean({ description: 'Default false.' })) },
  closed,
);
const WatchQuerySchema = Type.Object(
  { ...target, recursive: Type.Optional(Type.Boolean({ description: 'Default false.' })) },
  closed,
);

export function fileRoutes(scopes: RouteScopes, services: Services): void {
  const { keys, edge, clock, linkKey } = services;
  const idOf = (params: Readonly<Record<string, string>>): string => sandboxIdOf(services, params.id);
  const budget = new MemoryBudget(LIST_BYTES);
  const askEntry = async (response: ServerResponse, method: string, params: object): Promise<FileEntry> =>
    checkEntry(await askEdge(services, response, method, params), method);

  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/files/stat',
    summary: 'One file, directory or link.',
    right: 'read',
    query: StatQuerySchema,
    answers: { 200: FileEntrySchema },
    handle: ({ params, query, reply }) => askEntry(reply.raw, 'file.stat', { sandboxId: idOf(params), ...query }),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/files/list',
    summary:
      'What is in a directory. `truncated`: there is more than the limit, or than the server has memory for now.',
    right: 'read',
    query: ListQuerySchema,
    answers: { 200: FileListSchema },
    handle: async ({ params, query, reply }) => {
      const stream = await edge.open('file.list', {
        sandboxId: idOf(params),
        ...query,
        limit: query.limit ?? DEFAULT_LIST_LIMIT,
      });
      resetOnClose(reply.raw, stream);
      const memory = budget.share();
      reply.raw.once('close', () => memory.giveBack());
      return await collectEntries(stream, { maxEntries: MAX_LIST_LIMIT, memory });
    },
  });
  addRoute(scopes, keys, {
    method: 'DELETE',
    url: '/sandboxes/:id/files',
    summary: 'Removes a file, a link, or a directory.',
    right: 'write',
    query: RemoveQuerySchema,
    answers: { 204: '' },
    handle: async ({ params, query, reply }) => {
      await askEdge(services, reply.raw, 'file.remove', { sandboxId: idOf(params), ...query });
      return reply.code(204).send();
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/files/mkdir',
    summary: 'Makes a directory.',
    right: 'write',
    body: MkdirSchema,
    answers: { 200: FileEntrySchema },
    handle: ({ params, body, reply }) => askEntry(reply.raw, 'file.mkdir', { sandboxId: idOf(params), ...body }),
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/files/move',
    summary: 'Moves or renames.',
    right: 'write',
    body: MoveSchema,
    answers: { 200: FileEntrySchema },
    handle: ({ params, body, reply }) => askEntry(reply.raw, 'file.move', { sandboxId: idOf(params), ...body }),
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/files/change',
    summary: 'Changes mode, owner, or both.',
    right: 'write',
    body: ChangeSchema,
    answers: { 200: FileEntrySchema },
    handle: async ({ params, body, reply }) => {
      const { mode, owner, ...file } = body;
      const asked = { sandboxId: idOf(params), ...file };
      if (mode === undefined && owner === undefined) {
        throw new PlatformError('invalid_argument', 'the body: give `mode`, `owner`, or both', {
          details: { field: 'mode' },
        });
      }
      // The owner first: changing it takes set-uid bits away.
      const changed = owner === undefined ? undefined : await askEntry(reply.raw, 'file.chown', { ...asked, owner });
      return mode === undefined ? changed : await askEntry(reply.raw, 'file.chmod', { ...asked, mode });
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/files/symlink',
    summary: 'Makes a symlink; its target is kept as it is written.',
    right: 'write',
    body: SymlinkSchema,
    answers: { 200: FileEntrySchema },
    handle: ({ params, body, reply }) => askEntry(reply.raw, 'file.symlink', { sandboxId: idOf(params), ...body }),
  });
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/sandboxes/:id/files/watch',
    summary: 'What changes, as it does: one WatchLine a line.',
    right: 'read',
    query: WatchQuerySchema,
    answers: { 200: NDJSON_TYPE },
    handle: async ({ params, query, reply }) => {
      const stream = await edge.open('file.watch', { sandboxId: idOf(params), ...query });
      await sendLines(reply, clock, stream, (line) => checkWatchMessage(line, 'file.watch'));
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/sandboxes/:id/files/sign',
    summary: 'Makes a link to one file that works without a key, for one operation, until it expires.',
    right: 'write',
    body: SignLinkSchema,
    answers: { 200: SignedLinkSchema },
    handle: ({ params, body, request }) => {
      const sandboxId = idOf(params);
      const { operation, path, user, expiresInSeconds } = body;
      const expiresAtMs = clock.now() + expiresInSeconds * 1000;
      const query = signLink(linkKey, { operation, sandboxId, path, user, expiresAtMs });
      const origin = services.publicUrl ?? originOf(request.raw);
      return Promise.resolve({ url: `${origin}/v1/sandboxes/${sandboxId}/files?${query}`, expiresAtMs });
    },
  });
}

const originOf = ({ headers }: IncomingMessage): string => `http://${headers.host ?? 'localhost'}`;
