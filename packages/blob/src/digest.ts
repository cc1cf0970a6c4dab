/** SHA-256 digests: 32 bytes where they are stored, 64 hex digits where they are named. */
import { hash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';

/** 64 lower-case hex digits. */
export type Digest = string & { readonly [digestBrand]: true };
declare const digestBrand: unique symbol;

export const DIGEST_BYTES = 32;

const DIGEST = /^[0-9a-f]{64}$/;

export const isDigest = (text: string): text is Digest => DIGEST.test(text);

/** @throws PlatformError `invalid_argument` when the text is no digest */
export function parseDigest(text: string): Digest {
  if (isDigest(text)) return text;
  throw new PlatformError('invalid_argument', 'a digest is 64 lower-case hex digits', { details: { field: 'digest' } });
}

/** The name of a stored digest. */
export const digestName = (bytes: Buffer): Digest => parseDigest(bytes.toString('hex'));

export const sha256 = (bytes: Uint8Array): Buffer => hash('sha256', bytes, 'buffer');

export const sha256Name = (bytes: Uint8Array): Digest => digestName(sha256(bytes));
