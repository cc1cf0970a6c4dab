/** Signs what a webhook posts: HMAC-SHA256 over id, time and body, as https://www.standardwebhooks.com has it. */
import { createHmac } from 'node:crypto';

const SECRET_PREFIX = 'whsec_';

export interface SignedHeaders extends Readonly<Record<string, string>> {
  readonly 'webhook-id': string;
  /** Seconds since the epoch: of this attempt. */
  readonly 'webhook-timestamp': string;
  readonly 'webhook-signature': string;
}

/** @param secret `whsec_` and the base64 of the key */
export function signedHeaders(
  secret: string,
  { id, atMs, body }: { readonly id: string; readonly atMs: number; readonly body: string },
): SignedHeaders {
  const seconds = Math.floor(atMs / 1000).toString();
  const key = Buffer.from(secret.slice(SECRET_PREFIX.length), 'base64');
  const signature = createHmac('sha256', key).update(`${id}.${seconds}.${body}`).digest('base64');
  return { 'webhook-id': id, 'webhook-timestamp': seconds, 'webhook-signature': `v1,${signature}` };
}
