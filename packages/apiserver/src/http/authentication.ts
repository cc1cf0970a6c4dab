/** Finds and checks the API key of a request. */
import type { IncomingHttpHeaders } from 'node:http';
import { PlatformError } from '@dsec/contract';
import { requireRight, type Keys, type Principal, type Right } from '@dsec/iam';
import { setPrincipal, type AuditedRequest } from '../audit/request-audit.ts';

/** Headers that carry a key of ours. */
export const KEY_HEADER = 'x-api-key';
const BEARER = /^Bearer +(\S+)$/i;

/** The secret in `Authorization: Bearer` or `X-API-Key`. */
export function secretIn(headers: IncomingHttpHeaders): string | undefined {
  const key = headers[KEY_HEADER];
  if (typeof key === 'string') return key;
  return BEARER.exec(headers.authorization ?? '')?.[1];
}

/**
 * The principal of a request that has `right`.
 * @throws PlatformError `unauthenticated`, `permission_denied`
 */
export function authenticate(keys: Keys, request: AuditedRequest, right: Right): Principal {
  const secret = secretIn(request.headers);
  if (secret === undefined) throw new PlatformError('unauthenticated', 'the request carries no API key');
  const principal = keys.authenticate(secret);
  setPrincipal(request, principal);
  requireRight(principal, right);
  return principal;
}

/** Whose key a request carries, if any: it lets nobody in, and a request that is refused for something else is known as his. */
export function recognise(keys: Keys, request: AuditedRequest): void {
  const secret = secretIn(request.headers);
  const principal = secret === undefined ? undefined : keys.find(secret);
  if (principal !== undefined) setPrincipal(request, principal);
}
