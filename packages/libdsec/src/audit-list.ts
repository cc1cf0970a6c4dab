import { AuditPageSchema, type AuditRecord } from '@dsec/contract';
import type { Api } from './http/api.ts';
import { parserOf } from './http/schema.ts';
import { PagedList, type ListOptions, type ListPage } from './paged-list.ts';

const parsePage = parserOf(AuditPageSchema, 'page of the audit log');
const parseList = (value: unknown): ListPage<AuditRecord> => {
  const { records, cursor } = parsePage(value);
  return { items: records, cursor };
};

/** Which records of the audit log. */
export interface AuditFilter extends ListOptions {
  /** Those of this sandbox. @default all */
  readonly sandboxId?: string | undefined;
  /** Those of the key with this id. @default all */
  readonly principal?: string | undefined;
  /** Those of this operation, such as `sandbox.create`. @default all */
  readonly operation?: string | undefined;
  /** Those that were written from this moment on (milliseconds since the epoch). @default all that are kept */
  readonly sinceMs?: number | undefined;
}

/** Records of the audit log, the newest first. */
export type AuditList = PagedList<AuditRecord>;

export function listAudit(api: Api, filter: AuditFilter): AuditList {
  const { sandboxId: sandbox, principal, operation, sinceMs, ...options } = filter;
  const query = { sandbox, principal, operation, sinceMs };
  return new PagedList(api, { path: '/audit', what: 'reading the audit log', query, parse: parseList }, options);
}
