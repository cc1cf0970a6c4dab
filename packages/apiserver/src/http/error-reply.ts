/** Every failure as the contract's ErrorBody. */
import { PlatformError, type ErrorBody, type ErrorCode } from '@dsec/contract';

/** Codes of the HTTP framework for faults of a request. */
const requestFaults: Readonly<Record<string, readonly [ErrorCode, string]>> = {
  FST_ERR_CTP_INVALID_MEDIA_TYPE: ['unsupported_media_type', 'the body is not of a type that this route takes'],
  FST_ERR_CTP_BODY_TOO_LARGE: ['request_too_large', 'the body is larger than it may be'],
  FST_ERR_CTP_INVALID_CONTENT_LENGTH: ['invalid_argument', 'the body is not as long as its Content-Length says'],
  FST_ERR_BAD_URL: ['invalid_argument', 'the path of the URL is not well formed'],
  FST_ERR_MAX_PARAM_LENGTH: ['invalid_argument', 'a part of the path is too long'],
  ECONNRESET: ['cancelled', 'the client broke the connection'],
  ERR_STREAM_PREMATURE_CLOSE: ['cancelled', 'the client broke the connection'],
};

/** The PlatformError that anything thrown stands for; what is not ours is `internal` and shows nothing of itself. */
export function asPlatformError(error: unknown): PlatformError {
  if (PlatformError.is(error)) return error;
  const code = typeof error === 'object' && error !== null && 'code' in error ? String(error.code) : '';
  const fault = requestFaults[code];
  if (fault !== undefined) return new PlatformError(fault[0], fault[1], { cause: error });
  return new PlatformError('internal', 'a fault of the platform', { cause: error });
}

export function errorBody(error: PlatformError, requestId: string): ErrorBody {
  return {
    error: {
      code: error.code,
      message: error.message,
      details: error.details,
      retryable: error.retryable,
      infrastructure: error.infrastructure,
      fix: error.fix,
      requestId,
    },
  };
}

export const REQUEST_ID_HEADER = 'x-request-id';

/** A whole HTTP/1.1 response for a socket on which no framework answers: it is the last one on its connection. */
export function rawErrorResponse(error: PlatformError, requestId: string, reason: string): string {
  const body = JSON.stringify(errorBody(error, requestId));
  return [
    `HTTP/1.1 ${error.status} ${reason}`,
    'content-type: application/json; charset=utf-8',
    `content-length: ${Buffer.byteLength(body)}`,
    `${REQUEST_ID_HEADER}: ${requestId}`,
    'connection: close',
    '',
    body,
  ].join('\r\n');
}
