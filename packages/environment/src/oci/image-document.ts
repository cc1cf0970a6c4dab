import { PlatformError } from '@dsec/contract';
import type { Parser } from '@dsec/kit';
import { blobName, type Digest, verified } from './digest.ts';
import type { ImageFiles } from './image-files.ts';
import type { Descriptor } from './image-schema.ts';

/** Manifests and configurations of real images are a few kilobytes; registries allow 4 MiB. */
const MAX_DOCUMENT_BYTES = 8 * 1024 * 1024;

/**
 * Reads a JSON document of an image.
 *
 * @throws PlatformError `image_corrupt` with the document's name as `details.layer`
 */
export const readDocument = async <T>(
  files: ImageFiles,
  source: { readonly name: string; readonly digest?: Digest; readonly sizeBytes?: number },
  parser: Parser<T>,
): Promise<T> => {
  const { name, digest } = source;
  const size = await files.size(name);
  if (size === undefined) throw damaged(digest ?? name, 0, 'missing');
  if (size > MAX_DOCUMENT_BYTES) throw damaged(digest ?? name, MAX_DOCUMENT_BYTES, 'document_size');
  const bytes = files.read(name);
  const checked =
    digest === undefined
      ? bytes
      : verified(bytes, {
          digest,
          layer: digest,
          ...(source.sizeBytes === undefined ? {} : { sizeBytes: source.sizeBytes }),
        });
  const chunks: Uint8Array[] = [];
  for await (const chunk of checked) chunks.push(chunk);
  const text = Buffer.concat(chunks).toString('utf8');
  let value: unknown;
  try {
    value = JSON.parse(text);
  } catch (cause) {
    throw damaged(digest ?? name, 0, 'json', cause);
  }
  try {
    return parser.parse(value, { what: name, code: 'image_corrupt' });
  } catch (cause) {
    const field = PlatformError.is(cause) ? cause.details['field'] : undefined;
    throw damaged(digest ?? name, 0, `field ${String(field ?? '')}`, cause);
  }
};

export const readBlobDocument = <T>(
  files: ImageFiles,
  descriptor: Descriptor,
  digest: Digest,
  parser: Parser<T>,
): Promise<T> => readDocument(files, { name: blobName(digest), digest, sizeBytes: descriptor.size }, parser);

const damaged = (layer: string, offset: number, reason: string, cause?: unknown): PlatformError =>
  new PlatformError('image_corrupt', `The image's ${layer} is missing or damaged`, {
    details: { layer, offset, reason },
    cause,
  });
