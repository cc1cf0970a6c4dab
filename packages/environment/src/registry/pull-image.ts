import { type EnvironmentImage, PlatformError } from '@dsec/contract';
import { Deadline } from '@dsec/kit';
import { type BuildContext, DEFAULT_MAX_SIZE_BYTES } from '../build-context.ts';
import { importFrom, type ImportOptions } from '../image-import.ts';
import { parseReference, printReference } from './reference.ts';
import { type RegistryAccess, RegistryEndpoints } from './registry-endpoints.ts';
import { type LayerProgress, RegistryFiles } from './registry-files.ts';

export interface ImagePull extends RegistryAccess, ImportOptions {
  /** `python:3.12`, `localhost:5000/team/app@sha256:…`. */
  readonly reference: string;
  /** In OCI's words. @default that of this machine */
  readonly architecture?: string | undefined;
  /** Longest time for all of the download. Nothing else is counted against it, nor it against anything else. @default an hour */
  readonly timeoutMs?: number | undefined;
  readonly onLayer?: (progress: LayerProgress) => void;
}

const DEFAULT_PULL_TIMEOUT_MS = 3_600_000;

/**
 * Makes an image of a registry into layers. Every digest is checked before what it is of is read; layers are downloaded side by side while
 * those below them are being stored.
 *
 * @throws PlatformError `image_not_found`, `registry_unauthenticated`, `registry_rate_limited` (`details.retryAfterMs`),
 * `registry_unavailable` (`details.reason`), `image_corrupt` (`details` layer, offset, reason), `image_architecture`, `image_unsupported`,
 * `archive_unsafe`, `invalid_argument`, `config_invalid`, `disk_full`, `timeout`, `cancelled`
 */
export const pullImage = async (context: BuildContext, pull: ImagePull): Promise<EnvironmentImage> => {
  const reference = parseReference(pull.reference);
  const image = printReference(reference);
  const endpoints = RegistryEndpoints.forPull(reference, pull, context);
  const { timeoutMs = DEFAULT_PULL_TIMEOUT_MS } = pull;
  using deadline = new Deadline({ clock: context.clock, what: `pulling ${image}`, signal: context.signal, timeoutMs });
  return await importFrom(context, {
    name: image,
    architecture: pull.architecture,
    mergeUpToBytes: pull.mergeUpToBytes,
    open: (scratch) =>
      RegistryFiles.open({
        reference,
        endpoints,
        scratch,
        maxBytes: context.maxSizeBytes ?? DEFAULT_MAX_SIZE_BYTES,
        signal: deadline.signal,
        onProgress: pull.onLayer,
      }),
  });
};

/** The architecture of `linux/arm64` or `arm64`. @throws PlatformError `invalid_argument` */
export const parsePlatform = (text: string): string => {
  const architecture = /^(?:linux\/)?([a-z0-9]{1,32})$/.exec(text)?.[1];
  if (architecture !== undefined && architecture !== 'linux') return architecture;
  throw new PlatformError('invalid_argument', 'A platform is linux/ and an architecture, such as linux/amd64', {
    details: { field: 'platform' },
  });
};
