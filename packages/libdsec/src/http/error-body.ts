import { PlatformError, type ErrorCode, type ErrorDetails } from '@dsec/contract';
import type { TransportResponse } from './transport.ts';

/** Largest body of a failed request that is read. */
const MAX_ERROR_BYTES = 1_048_576;
/** Details of the error of a request carry the id under which the server's log knows it. */
const REQUEST_ID = 'requestId';

/** The error that a failed answer stands for. */
export async function errorOf(response: TransportResponse, what: string): Promise<PlatformError> {
  const text = await response.text(MAX_ERROR_BYTES).catch(() => '');
  const error = memberOf(parseJson(text), 'error');
  const code = memberOf(error, 'code');
  const message = memberOf(error, 'message');
  if (typeof code === 'string' && typeof message === 'string') {
    const details = { ...detailsOf(memberOf(error, 'details')) };
    const requestId = memberOf(error, REQUEST_ID);
    if (typeof requestId === 'string' && requestId !== '') details[REQUEST_ID] = requestId;
    return PlatformError.fromWire({ code, message, details });
  }
  // Not an answer of ours: a proxy on the way, or another server at this address.
  return new PlatformError(codeOfStatus(response.status), `${what} was answered by HTTP ${response.status}`, {
    details: { status: response.status },
  });
}

function codeOfStatus(status: number): ErrorCode {
  if (status === 401) return 'unauthenticated';
  if (status === 403) return 'permission_denied';
  if (status === 404) return 'not_found';
  if (status === 405) return 'method_not_allowed';
  if (status === 413) return 'request_too_large';
  if (status === 429) return 'too_many_requests';
  if (status === 502 || status === 503 || status === 504) return 'unavailable';
  return status >= 500 ? 'internal' : 'protocol_error';
}

/** Details from the wire, with what is not a plain value left out. */
export function detailsOf(value: unknown): ErrorDetails {
  if (typeof value !== 'object' || value === null) return {};
  const details: Record<string, ErrorDetails[string]> = {};
  for (const [key, member] of Object.entries(value) as readonly (readonly [string, unknown])[]) {
    if (member === null || typeof member === 'string' || typeof member === 'number' || typeof member === 'boolean')
      details[key] = member;
    else if (Array.isArray(member) && member.every((entry) => typeof entry === 'string')) details[key] = member;
  }
  return details;
}

export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown;
  } catch {
    return undefined;
  }
}

/** The error of a last line `{"error": …}` of an answer that had begun well. */
export function errorOfLine(error: unknown, what: string): PlatformError {
  const code = memberOf(error, 'code');
  const message = memberOf(error, 'message');
  return PlatformError.fromWire({
    code: typeof code === 'string' ? code : 'internal',
    message: typeof message === 'string' ? message : `${what} failed`,
    details: detailsOf(memberOf(error, 'details')),
  });
}

function memberOf(value: unknown, name: string): unknown {
  return typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>)[name] : undefined;
}
