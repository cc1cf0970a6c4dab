/**
 * Which blob store a server uses: `--blob` names it, variables or a file give the account, and `keys/blob.json` keeps both, for the daemons and
 * for verbs on this machine. Neither an endpoint nor a secret is ever an argument.
 */
import { open, readFile, stat } from 'node:fs/promises';
import { dirname, resolve } from 'node:path';
import { pathToFileURL } from 'node:url';
import {
  checkStore,
  openStore,
  parseBlobSettings,
  storeDirectory,
  type BlobSettings,
  type ObjectStore,
} from '@dsec/blob';
import { PlatformError } from '@dsec/contract';
import { writeDurably, type Clock, type Random } from '@dsec/kit';
import { EDGE_USER, isErrno, type DataDirectory } from './data-directory.ts';

type Variables = Readonly<Record<string, string | undefined>>;

/** Names a JSON file with `endpoint`, `region`, `accessKeyId` and `secretAccessKey`. */
const ACCOUNT_FILE = 'DSEC_BLOB_FILE';
const MAX_ACCOUNT_FILE_BYTES = 65_536;
const ACCOUNT_VARIABLES = {
  endpoint: 'DSEC_BLOB_ENDPOINT',
  region: 'DSEC_BLOB_REGION',
  accessKeyId: 'DSEC_BLOB_ACCESS_KEY_ID',
  secretAccessKey: 'DSEC_BLOB_SECRET_ACCESS_KEY',
} as const;
/** How long a store may take to answer for the first time. */
const CHECK_MS = 30_000;

/**
 * What `url` means here: a directory, `file:///DIRECTORY` or `s3://BUCKET/PREFIX`; variables win over the file that one of them names.
 * @throws PlatformError `config_invalid`
 */
export async function blobSettingsOf(url: string, variables: Variables): Promise<BlobSettings> {
  const isFile = /^file:/i.test(url);
  if (isFile || !/^[a-z0-9+.-]+:\/\//i.test(url))
    return parseBlobSettings({ url: isFile ? url : pathToFileURL(resolve(url)).href });
  const { [ACCOUNT_FILE]: file } = variables;
  const account: Record<string, unknown> = file === undefined ? {} : await readAccount(file);
  for (const [name, variable] of Object.entries(ACCOUNT_VARIABLES)) {
    const value = variables[variable];
    if (value !== undefined && value !== '') account[name] = value;
  }
  try {
    return parseBlobSettings({ ...account, url });
  } catch (error) {
    throw withVariable(error, account);
  }
}

/** What no variable and no file gave is said by the name of the variable that would have. */
function withVariable(error: unknown, account: Readonly<Record<string, unknown>>): unknown {
  const field = PlatformError.is(error) ? error.details['field'] : undefined;
  const [name, variable] = Object.entries(ACCOUNT_VARIABLES).find(([key]) => key === field) ?? [];
  if (!PlatformError.is(error) || name === undefined || variable === undefined || account[name] !== undefined)
    return error;
  return new PlatformError('config_invalid', `${error.message}: set ${variable}, or name a file in ${ACCOUNT_FILE}`, {
    details: { field: variable },
  });
}

/** What an earlier `up --blob` has said. @throws PlatformError `config_invalid`, `permission_denied` */
export async function readBlobSettings(data: DataDirectory): Promise<BlobSettings | undefined> {
  let text: string;
  try {
    text = await readFile(data.blobFile, 'utf8');
  } catch (error) {
    if (isErrno(error, 'ENOENT')) return undefined;
    if (!isErrno(error, 'EACCES')) throw error;
    throw new PlatformError(
      'permission_denied',
      `${data.blobFile} may not be read: use sudo, or name the store with --blob`,
      { cause: error },
    );
  }
  return parseBlobSettings(parsedJson(text, data.blobFile));
}

export async function keepBlobSettings(data: DataDirectory, settings: BlobSettings): Promise<void> {
  await writeDurably(data.blobFile, `${JSON.stringify(settings, null, 2)}\n`, {
    mode: 0o440,
    owner: { uid: 0, gid: EDGE_USER.gid },
  });
}

/** Opens the store and asks it for something. @throws PlatformError `config_invalid`, `blob_unavailable`, `timeout` */
export async function openCheckedStore(
  settings: BlobSettings,
  parts: { readonly clock: Clock; readonly random: Random; readonly signal?: AbortSignal | undefined },
): Promise<ObjectStore> {
  const store = openStore(settings, parts);
  const deadline = AbortSignal.timeout(CHECK_MS);
  const signal = parts.signal === undefined ? deadline : AbortSignal.any([parts.signal, deadline]);
  try {
    await checkStore(store, { signal });
  } catch (error) {
    throw ofAbsentDirectory(error, settings);
  }
  return store;
}

/** A store is never made here: a share that is not mounted would become a directory of this machine that nobody else sees. */
function ofAbsentDirectory(error: unknown, settings: BlobSettings): unknown {
  const store = storeDirectory(settings);
  if (store === undefined || !PlatformError.is(error) || error.details['reason'] !== 'ENOENT') return error;
  return new PlatformError(
    'blob_unavailable',
    `the blob store ${store} is not there: mount it, or make the directory`,
    {
      details: { store, reason: 'ENOENT' },
    },
  );
}

/** The edge, which is not root's, reads a directory store by itself. @throws PlatformError `config_invalid` when it cannot get there */
export async function checkEdgeMayRead(settings: BlobSettings): Promise<void> {
  const directory = storeDirectory(settings);
  for (let path = directory; path !== undefined; path = path === dirname(path) ? undefined : dirname(path)) {
    const { mode, uid, gid } = await stat(path);
    const bits = uid === EDGE_USER.uid ? mode >> 6 : gid === EDGE_USER.gid ? mode >> 3 : mode;
    const needed = path === directory ? 0o5 : 0o1;
    if ((bits & needed) === needed) continue;
    throw new PlatformError(
      'config_invalid',
      `the user ${EDGE_USER.uid} of the edge may not read ${path} (chmod o+rx)`,
      {
        details: { field: '--blob', path },
      },
    );
  }
}

/** Variables that tell a program which is not dsec's own about an S3 account. */
export function accountVariables(settings: BlobSettings): Readonly<Record<string, string>> {
  const { endpoint, region, accessKeyId, secretAccessKey } = settings;
  const variables = {
    AWS_ENDPOINT_URL: endpoint,
    AWS_REGION: region,
    AWS_ACCESS_KEY_ID: accessKeyId,
    AWS_SECRET_ACCESS_KEY: secretAccessKey,
  };
  return Object.fromEntries(
    Object.entries(variables).flatMap(([name, value]) => (value === undefined ? [] : [[name, value]])),
  );
}

async function readAccount(file: string): Promise<Record<string, unknown>> {
  let text: string;
  try {
    await using handle = await open(file, 'r');
    const { buffer, bytesRead } = await handle.read(
      Buffer.alloc(MAX_ACCOUNT_FILE_BYTES + 1),
      0,
      MAX_ACCOUNT_FILE_BYTES + 1,
      0,
    );
    if (bytesRead > MAX_ACCOUNT_FILE_BYTES) throw new Error('it is too long');
    text = buffer.toString('utf8', 0, bytesRead);
  } catch (cause) {
    throw new PlatformError('config_invalid', `${file} cannot be read`, { details: { field: ACCOUNT_FILE }, cause });
  }
  const value = parsedJson(text, file);
  if (typeof value === 'object' && value !== null && !Array.isArray(value)) return { ...value };
  throw new PlatformError('config_invalid', `${file} is not a JSON object`, { details: { field: ACCOUNT_FILE } });
}

function parsedJson(text: string, file: string): unknown {
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw new PlatformError('config_invalid', `${file} is not JSON`, { details: { field: file }, cause });
  }
}
