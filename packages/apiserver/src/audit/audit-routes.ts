/** Routes of the audit log; only the admin key may use them. */
import { AuditNoteSchema, AuditPageSchema, limits, type AuditNote } from '@dsec/contract';
import { Type } from 'typebox';
import { addRoute, type RouteScopes } from '../http/route.ts';
import type { Services } from '../services.ts';
import { readAudit } from './audit-reader.ts';
import { noteOperation, noteSubject } from './request-audit.ts';

const text = { maxLength: limits.auditTextChars } as const;
const QuerySchema = Type.Object(
  {
    sandbox: Type.Optional(Type.String({ ...text, description: 'Only of this sandbox.' })),
    principal: Type.Optional(Type.String({ ...text, description: 'Only of the key with this id.' })),
    operation: Type.Optional(Type.String({ ...text, description: 'Only this one, such as `sandbox.create`.' })),
    sinceMs: Type.Optional(Type.Integer({ minimum: 0, description: 'Only what was written from this moment on.' })),
    cursor: Type.Optional(
      Type.String({ pattern: '^[0-9]{1,15}-[0-9]{1,15}$', description: 'What the page before returned.' }),
    ),
    limit: Type.Optional(Type.Integer({ ...limits.pageSize, description: 'Most records a page.' })),
  },
  { additionalProperties: false },
);

export function auditRoutes(scopes: RouteScopes, { keys, audit }: Services): void {
  addRoute(scopes, keys, {
    method: 'GET',
    url: '/audit',
    summary: 'The audit log, newest first, page by page: who did what, and what came of it.',
    right: 'admin',
    query: QuerySchema,
    answers: { 200: AuditPageSchema },
    handle: async ({ query }) => {
      const { sandbox, principal, operation, sinceMs, cursor, limit = limits.pageSize.default } = query;
      // What waits for the disk is shown, too; when that refuses, what is on it.
      await audit.log.flush().catch(() => undefined);
      const filter = { sandboxId: sandbox, keyId: principal, operation, sinceMs };
      return await readAudit(audit.log.directory, filter, { cursor, limit });
    },
  });
  addRoute(scopes, keys, {
    method: 'POST',
    url: '/audit',
    summary: 'Has a verb of the CLI, which works on the machine of the server by itself, written down.',
    right: 'admin',
    body: AuditNoteSchema,
    answers: { 204: '' },
    handle: async ({ body, request, reply }) => {
      // The schema has checked it; its derived type has lost the names of literals.
      const { verb, outcome, environment, detail } = body as AuditNote;
      noteOperation(request.raw, `cli.${verb}`);
      noteSubject(request.raw, {
        ...(environment === undefined ? {} : { environment }),
        detail: { ...detail, outcome },
      });
      return await reply.code(204).send();
    },
  });
}
