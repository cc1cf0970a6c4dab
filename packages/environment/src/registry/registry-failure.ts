import { type ErrorDetails, PlatformError } from '@dsec/contract';

/** Why a registry is `registry_unavailable`, as `details.reason` has it. */
export type UnavailableReason =
  | 'refused'
  | 'name'
  | 'connection'
  | 'timeout'
  | 'tls'
  | 'redirect'
  | 'realm'
  | 'range'
  | 'response'
  | 'upload'
  | `status ${number}`;

/** What another attempt may mend. */
const TRANSIENT = /^(?:refused|name|connection|timeout|upload|status (?:408|500|502|503|504))$/;

export const unavailable = (
  registry: string,
  reason: UnavailableReason,
  more: { readonly cause?: unknown; readonly retryAfterMs?: number | undefined } = {},
): PlatformError =>
  new PlatformError('registry_unavailable', `The registry ${registry} ${meanings(reason)}`, {
    details: { registry, reason, ...(more.retryAfterMs === undefined ? {} : { retryAfterMs: more.retryAfterMs }) },
    cause: more.cause,
  });

const meanings = (reason: UnavailableReason): string => {
  switch (reason) {
    case 'refused':
      return 'refuses connections';
    case 'name':
      return 'has a name without an address';
    case 'connection':
      return 'broke the connection';
    case 'timeout':
      return 'does not answer in time';
    case 'tls':
      return 'has no certificate that is trusted here, or speaks no TLS';
    case 'redirect':
      return 'redirects to where no image may come from';
    case 'realm':
      return 'names a token server that no account may be shown to';
    case 'range':
      return 'does not continue where the connection broke';
    case 'response':
      return 'answers with something that is not in the protocol';
    case 'upload':
      return 'lost an upload';
    default:
      return `answers with ${reason}`;
  }
};

export const unauthenticated = (registry: string, reason: 'no_account' | 'refused' | 'denied'): PlatformError =>
  new PlatformError(
    'registry_unauthenticated',
    reason === 'no_account' ? `The registry ${registry} wants an account` : `The registry ${registry} refused access`,
    { details: { registry, reason } },
  );

export const rateLimited = (registry: string, retryAfterMs: number | undefined): PlatformError =>
  new PlatformError('registry_rate_limited', `The registry ${registry} answers no more requests for now`, {
    details: { registry, retryAfterMs: retryAfterMs ?? null },
  });

export const imageNotFound = (registry: string, image: string): PlatformError =>
  new PlatformError('image_not_found', `The registry ${registry} has no image ${image}`, { details: { image } });

export const corrupt = (layer: string, offset: number, reason: string): PlatformError =>
  new PlatformError('image_corrupt', `The registry does not have ${layer} as its digest says`, {
    details: { layer, offset, reason },
  });

export const isTransient = (error: unknown): boolean =>
  PlatformError.is(error) &&
  (error.code === 'registry_rate_limited' ||
    (error.code === 'registry_unavailable' && TRANSIENT.test(String(error.details['reason']))));

export const retryAfterOf = (details: ErrorDetails): number | undefined => {
  const { retryAfterMs } = details;
  return typeof retryAfterMs === 'number' ? retryAfterMs : undefined;
};

/** What another registry with the same image may do better. */
export const isOfOneRegistry = (error: unknown): boolean =>
  PlatformError.is(error) &&
  [
    'registry_unavailable',
    'registry_rate_limited',
    'registry_unauthenticated',
    'image_not_found',
    'image_corrupt',
  ].includes(error.code);

const MAX_CAUSES = 8;

/** The error for a fetch that got no answer, or lost it half-way. */
export const networkFailure = (registry: string, error: unknown): PlatformError => {
  if (PlatformError.is(error)) return error;
  let cause: unknown = error;
  for (let depth = 0; depth < MAX_CAUSES && cause instanceof Error; depth++) {
    const code = 'code' in cause && typeof cause.code === 'string' ? cause.code : '';
    const reason = reasonOf(code);
    if (reason !== undefined) return unavailable(registry, reason, { cause });
    cause = cause instanceof AggregateError ? (cause.errors[0] as unknown) : cause.cause;
  }
  return unavailable(registry, 'connection', { cause: error });
};

/** Codes of Node, OpenSSL and undici. */
const reasonOf = (code: string): UnavailableReason | undefined => {
  if (['ECONNREFUSED', 'EHOSTUNREACH', 'ENETUNREACH'].includes(code)) return 'refused';
  if (['ENOTFOUND', 'EAI_AGAIN', 'EAI_FAIL', 'EAI_NODATA'].includes(code)) return 'name';
  if (['ETIMEDOUT', 'UND_ERR_CONNECT_TIMEOUT', 'UND_ERR_HEADERS_TIMEOUT', 'UND_ERR_BODY_TIMEOUT'].includes(code)) {
    return 'timeout';
  }
  if (
    /^(?:ERR_SSL_|ERR_TLS_|CERT_|UNABLE_TO_|DEPTH_ZERO_SELF_SIGNED|SELF_SIGNED|EPROTO|HOSTNAME_MISMATCH|INVALID_CA)/.test(
      code,
    )
  ) {
    return 'tls';
  }
  if (code.startsWith('HPE_') || code === 'UND_ERR_HEADERS_OVERFLOW') return 'response';
  if (['ECONNRESET', 'EPIPE', 'UND_ERR_SOCKET'].includes(code)) return 'connection';
  return undefined;
};
