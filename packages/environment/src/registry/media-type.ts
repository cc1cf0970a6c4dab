/** Media types of manifests and of what lists them, in the OCI's and in Docker's words. */
export const INDEX_MEDIA_TYPES = [
  'application/vnd.oci.image.index.v1+json',
  'application/vnd.docker.distribution.manifest.list.v2+json',
] as const;
const IMAGE_MEDIA_TYPES = [
  'application/vnd.oci.image.manifest.v1+json',
  'application/vnd.docker.distribution.manifest.v2+json',
] as const;

export const MANIFEST_MEDIA_TYPES: readonly string[] = [...INDEX_MEDIA_TYPES, ...IMAGE_MEDIA_TYPES];
