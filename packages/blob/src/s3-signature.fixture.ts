/** Checks an AWS Signature Version 4 in the headers of a request, from the published description and not from what the client uses. */
import { createHmac, hash } from 'node:crypto';
import type { IncomingMessage } from 'node:http';

export interface Account {
  readonly accessKeyId: string;
  readonly secretAccessKey: string;
}

const AUTHORIZATION =
  /^AWS4-HMAC-SHA256 Credential=([^/]+)\/(\d{8})\/([^/]+)\/s3\/aws4_request, SignedHeaders=([a-z0-9;-]+), Signature=([0-9a-f]{64})$/;
const MUST_BE_SIGNED = ['host', 'x-amz-content-sha256', 'x-amz-date'];
const MAX_SKEW_MS = 15 * 60_000;

const hmac = (key: string | Buffer, text: string): Buffer => createHmac('sha256', key).update(text).digest();
const encoded = (text: string): string =>
  encodeURIComponent(text).replace(/[!'()*]/g, (character) => `%${character.charCodeAt(0).toString(16).toUpperCase()}`);

/** The code of S3's error; undefined when the signature is good. */
export function signatureFault(
  request: IncomingMessage,
  body: Buffer,
  account: Account,
  nowMs: number,
): string | undefined {
  const [, accessKeyId, day, region, signedHeaders = '', signature] =
    AUTHORIZATION.exec(request.headers.authorization ?? '') ?? [];
  if (accessKeyId === undefined) return 'AccessDenied';
  if (accessKeyId !== account.accessKeyId) return 'InvalidAccessKeyId';
  const names = signedHeaders.split(';');
  if (MUST_BE_SIGNED.some((name) => !names.includes(name))) return 'AccessDenied';
  const date = String(request.headers['x-amz-date']);
  const [, y, mo, d, h, mi, s] = /^(\d{4})(\d\d)(\d\d)T(\d\d)(\d\d)(\d\d)Z$/.exec(date) ?? [];
  const atMs = Date.parse(`${y}-${mo}-${d}T${h}:${mi}:${s}Z`);
  if (!(Math.abs(atMs - nowMs) <= MAX_SKEW_MS) || !date.startsWith(String(day))) return 'RequestTimeTooSkewed';
  const contentHash = String(request.headers['x-amz-content-sha256']);
  if (contentHash !== hash('sha256', body)) return 'XAmzContentSHA256Mismatch';
  const url = new URL(request.url ?? '/', 'http://any');
  const query = [...url.searchParams]
    .map(([name, value]) => `${encoded(name)}=${encoded(value)}`)
    .sort()
    .join('&');
  const headers = names
    .map((name) => `${name}:${String(request.headers[name]).trim().replaceAll(/\s+/g, ' ')}\n`)
    .join('');
  const path = url.pathname
    .split('/')
    .map((part) => encoded(decodeURIComponent(part)))
    .join('/');
  const canonical = [request.method, path, query, headers, signedHeaders, contentHash].join('\n');
  const scope = `${day}/${region}/s3/aws4_request`;
  const key = [String(region), 's3', 'aws4_request'].reduce(hmac, hmac(`AWS4${account.secretAccessKey}`, String(day)));
  const expected = hmac(key, ['AWS4-HMAC-SHA256', date, scope, hash('sha256', canonical)].join('\n')).toString('hex');
  return signature === expected ? undefined : 'SignatureDoesNotMatch';
}
