/** What an answer of S3 means: typed, and whether asking again may help. */
import type { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import { xmlText } from './s3-xml.ts';
import { full, unavailable } from './store-error.ts';

export interface S3Failure {
  readonly error: PlatformError;
  readonly isTransient: boolean;
  /** How long the server wants to be left alone. */
  readonly retryAfterMs: number;
}

const CREDENTIALS = new Set([
  'AccessDenied',
  'InvalidAccessKeyId',
  'SignatureDoesNotMatch',
  'ExpiredToken',
  'InvalidToken',
]);
const FULL = new Set(['InsufficientStorage', 'QuotaExceeded', 'XMinioStorageFull', 'XMinioAdminBucketQuotaExceeded']);
const TRANSIENT = new Set(['SlowDown', 'InternalError', 'ServiceUnavailable', 'RequestTimeout', 'OperationAborted']);

export interface S3Answer {
  readonly status: number;
  /** Of the XML that says what is wrong; empty for a HEAD. */
  readonly text: string;
  readonly retryAfter: string | null;
}

export function s3Failure(store: string, answer: S3Answer, clock: Clock): S3Failure {
  const { status, text } = answer;
  const code = xmlText(text, 'Code')?.slice(0, 64) ?? '';
  const fail = (error: PlatformError, isTransient = false): S3Failure => ({
    error,
    isTransient,
    retryAfterMs: retryAfterMs(answer.retryAfter, clock),
  });
  if (status === 507 || FULL.has(code)) return fail(full(store, code === '' ? 'full' : code));
  if (code === 'RequestTimeTooSkewed') return fail(unavailable(store, 'clock'));
  if (CREDENTIALS.has(code) || status === 401 || status === 403) return fail(unavailable(store, 'credentials'));
  if (code === 'NoSuchBucket') return fail(unavailable(store, 'bucket'));
  const isBusy = status === 429 || status === 503 || code === 'SlowDown';
  if (isBusy) return fail(unavailable(store, 'slow_down'), true);
  return fail(unavailable(store, code === '' ? `http_${status}` : code), status >= 500 || TRANSIENT.has(code));
}

/** Seconds or a date (RFC 9110, 10.2.3); 0 when the server says nothing that can be understood. */
function retryAfterMs(header: string | null, clock: Clock): number {
  if (header === null) return 0;
  if (/^\d{1,6}$/.test(header)) return Number(header) * 1000;
  const atMs = Date.parse(header);
  return Number.isNaN(atMs) ? 0 : Math.max(0, atMs - clock.now());
}
