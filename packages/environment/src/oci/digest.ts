import { createHash } from 'node:crypto';
import { PlatformError } from '@dsec/contract';

/** `sha256:` and 64 hex digits. */
export type Digest = string;

const DIGEST = /^sha256:[0-9a-f]{64}$/;

/** @throws PlatformError `image_unsupported` for another algorithm, `image_corrupt` for what is no digest */
export const parseDigest = (text: string): Digest => {
  if (DIGEST.test(text)) return text;
  const shown = text.slice(0, 80);
  if (/^[a-z0-9+._-]+:[0-9a-f]{32,}$/.test(text)) {
    throw new PlatformError('image_unsupported', `The image uses the digest ${shown}; only sha256 is supported`, {
      details: { layer: shown, offset: 0, reason: 'digest_algorithm' },
    });
  }
  throw new PlatformError('image_corrupt', 'The image has a malformed digest', {
    details: { layer: shown, offset: 0, reason: 'digest' },
  });
};

/** Where an OCI layout keeps the blob. */
export const blobName = (digest: Digest): string => `blobs/sha256/${digest.slice('sha256:'.length)}`;

/** What a stream is expected to be. */
export interface Expected {
  readonly digest: Digest;
  readonly sizeBytes?: number;
  /** What errors call it. */
  readonly layer: string;
}

/**
 * Passes a stream on and, at its end, holds it against its digest (and size).
 *
 * @throws PlatformError `image_corrupt`; `details.offset` is how many bytes there were
 */
export async function* verified(source: AsyncIterable<Uint8Array>, expected: Expected): AsyncGenerator<Uint8Array> {
  const hash = createHash('sha256');
  let offset = 0;
  const mismatch = (reason: string): PlatformError =>
    new PlatformError('image_corrupt', `${expected.layer} is not what its digest says`, {
      details: { layer: expected.layer, offset, reason },
    });
  for await (const chunk of source) {
    hash.update(chunk);
    offset += chunk.length;
    if (expected.sizeBytes !== undefined && offset > expected.sizeBytes) throw mismatch('too_long');
    yield chunk;
  }
  if (expected.sizeBytes !== undefined && offset < expected.sizeBytes) throw mismatch('truncated');
  if (`sha256:${hash.digest('hex')}` !== expected.digest) throw mismatch('digest_mismatch');
}
