import { PlatformError } from '@dsec/contract';
import { throwIfAborted } from '@dsec/kit';
import { openImageFiles } from '../oci/image-files.ts';
import { BlobUpload } from './blob-upload.ts';
import { layoutTree } from './layout-tree.ts';
import { parseReference } from './reference.ts';
import { type EndpointContext, pushClient, type RegistryAccess } from './registry-endpoints.ts';

export interface ImagePush extends RegistryAccess {
  /** An OCI layout: a directory, or an archive of one that is not compressed. */
  readonly path: string;
  /** Which image of the layout, by its name or tag, when there are several. */
  readonly image?: string | undefined;
  /** Where to: with a tag. */
  readonly reference: string;
  readonly signal?: AbortSignal | undefined;
  readonly onBlob?: (progress: BlobProgress) => void;
}

export interface BlobProgress {
  readonly digest: string;
  readonly doneBytes: number;
  readonly totalBytes: number;
  /** The registry had it already. */
  readonly isPresent: boolean;
}

export interface PushedImage {
  /** Of the manifest, or of the index of several. */
  readonly digest: string;
  readonly mediaType: string;
  /** How many blobs went up; the rest was there. */
  readonly uploadedBlobs: number;
}

/**
 * Puts an image of an OCI layout into a registry. Blobs go first and those that are there are passed over; the manifest comes last, so the tag
 * never names what is not whole. Whatever is sent is checked against its digest.
 *
 * @throws PlatformError `registry_unauthenticated`, `registry_rate_limited`, `registry_unavailable`, `image_not_found` (no such repository, and
 * none may be made), `image_corrupt`, `image_unsupported`, `invalid_argument`, `config_invalid`, `cancelled`
 */
export const pushImage = async (context: EndpointContext, push: ImagePush): Promise<PushedImage> => {
  const reference = parseReference(push.reference);
  if (reference.digest !== undefined) {
    throw new PlatformError('invalid_argument', 'An image is pushed to a tag, not to a digest', {
      details: { field: 'reference' },
    });
  }
  const { signal } = push;
  await using files = await openImageFiles(push.path, () =>
    Promise.reject(
      new PlatformError('invalid_argument', 'The archive is compressed: unpack it first', {
        details: { field: 'path' },
      }),
    ),
  );
  const tree = await layoutTree(files, push.image);
  const client = pushClient(reference, push, context);
  let uploadedBlobs = 0;
  for (const blob of tree.blobs) {
    throwIfAborted(signal);
    const report = (doneBytes: number, isPresent: boolean): void =>
      push.onBlob?.({ digest: blob.digest, totalBytes: blob.sizeBytes, doneBytes, isPresent });
    const upload = new BlobUpload(client, { ...blob, files, signal, onProgress: (done) => report(done, false) });
    if (await upload.run()) uploadedBlobs++;
    else report(blob.sizeBytes, true);
  }
  for (const [index, manifest] of tree.manifests.entries()) {
    const isTop = index === tree.manifests.length - 1;
    const url = client.address(`manifests/${isTop ? reference.tag : manifest.digest}`);
    const headers = { 'content-type': manifest.mediaType };
    await client.retried(signal, async () => {
      await using _ = await client.requestOnce({ method: 'PUT', url, headers, body: manifest.bytes, signal });
    });
  }
  const { digest, mediaType } = tree.top;
  return { digest, mediaType, uploadedBlobs };
};
