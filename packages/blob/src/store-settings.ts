/** Which blob store is meant: a URL, and for S3 where the server is and who asks. */
import { isAbsolute } from 'node:path';
import { fileURLToPath } from 'node:url';
import { PlatformError } from '@dsec/contract';
import { type Clock, compileSchema, type Random } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { DirectoryStore } from './directory-store.ts';
import type { ObjectStore, StoreOptions } from './object-store.ts';
import { PrefixStore } from './prefix-store.ts';
import { S3Store } from './s3-store.ts';

const text = { minLength: 1, maxLength: 4096 } as const;

/** What is kept of a store in the configuration of a server. It holds a secret. */
const BlobSettingsSchema = Type.Object(
  {
    /** `file:///DIRECTORY`, or `s3://BUCKET` or `s3://BUCKET/PREFIX`. */
    url: Type.String(text),
    /** `http://HOST:PORT` or `https://HOST`; S3 only, and needed there. */
    endpoint: Type.Optional(Type.String({ ...text, pattern: '^https?://[^/?#]+/?$' })),
    region: Type.Optional(Type.String(text)),
    accessKeyId: Type.Optional(Type.String(text)),
    secretAccessKey: Type.Optional(Type.String(text)),
  },
  { additionalProperties: false },
);
export type BlobSettings = Static<typeof BlobSettingsSchema>;

const parser = compileSchema(BlobSettingsSchema);
const S3_URL = /^s3:\/\/([a-z0-9][a-z0-9.-]{1,61}[a-z0-9])(?:\/([A-Za-z0-9_][A-Za-z0-9._/-]*?))?\/?$/;

/** @throws PlatformError `config_invalid` */
export function parseBlobSettings(value: unknown): BlobSettings {
  const settings = parser.parse(value, { what: 'the blob store', code: 'config_invalid' });
  placeOf(settings);
  return settings;
}

export interface OpenStoreOptions {
  readonly clock: Clock;
  readonly random: Random;
}

/** Opens the store; whether it answers is seen at the first use. @throws PlatformError `config_invalid` */
export function openStore(settings: BlobSettings, { clock, random }: OpenStoreOptions): ObjectStore {
  const place = placeOf(settings);
  if (place.kind === 'directory') return new DirectoryStore({ root: place.path, random });
  const { bucket, prefix, endpoint, accessKeyId, secretAccessKey } = place;
  const { region } = settings;
  const access = { endpoint, bucket, accessKeyId, secretAccessKey, ...(region === undefined ? {} : { region }) };
  const store = new S3Store({ ...access, clock, random });
  return prefix === undefined ? store : new PrefixStore(store, `${prefix}/`);
}

/** The directory of a store that is one. @throws PlatformError `config_invalid` */
export function storeDirectory(settings: BlobSettings): string | undefined {
  const place = placeOf(settings);
  return place.kind === 'directory' ? place.path : undefined;
}

/** Asks the store for something. @throws PlatformError `blob_unavailable` */
export async function checkStore(store: ObjectStore, options: StoreOptions = {}): Promise<void> {
  await store.list('layers/', { ...options, limit: 1 });
}

type Place =
  | { readonly kind: 'directory'; readonly path: string }
  | {
      readonly kind: 's3';
      readonly bucket: string;
      readonly prefix: string | undefined;
      readonly endpoint: string;
      readonly accessKeyId: string;
      readonly secretAccessKey: string;
    };

function placeOf({ url, endpoint, accessKeyId, secretAccessKey }: BlobSettings): Place {
  if (url.startsWith('file:')) return { kind: 'directory', path: directoryOf(url) };
  const [match, bucket = '', prefix] = S3_URL.exec(url) ?? [];
  if (match === undefined)
    throw invalid('url', `${url} is neither a directory, file:///DIRECTORY nor s3://BUCKET/PREFIX`);
  if (endpoint === undefined) throw invalid('endpoint', 'the endpoint of the S3 server is not given');
  if (accessKeyId === undefined) throw invalid('accessKeyId', 'the access key of the S3 server is not given');
  if (secretAccessKey === undefined) throw invalid('secretAccessKey', 'the secret of the S3 server is not given');
  return { kind: 's3', bucket, prefix, endpoint: endpoint.replace(/\/$/, ''), accessKeyId, secretAccessKey };
}

function directoryOf(url: string): string {
  try {
    const path = fileURLToPath(url);
    if (isAbsolute(path)) return path;
  } catch (cause) {
    throw invalid('url', `${url} names no directory`, cause);
  }
  throw invalid('url', `${url} names no directory`);
}

const invalid = (field: string, message: string, cause?: unknown): PlatformError =>
  new PlatformError('config_invalid', message, { details: { field }, cause });
