import { PlatformError } from '@dsec/contract';
import { DEFAULT_ENDPOINT, DSecClient } from '@dsec/libdsec';
import type { Context } from './context.ts';
import { DataDirectory, DEFAULT_DATA_DIRECTORY, readAdminKey } from './server/data-directory.ts';
import { readServerFile, type ServerFile } from './server/server-file.ts';

/** Options that every verb has that speaks to a server. */
export interface ConnectionOptions {
  readonly endpoint?: string;
  readonly data?: string;
}

export function dataDirectoryOf(context: Context, options: { readonly data?: string }): DataDirectory {
  return new DataDirectory(options.data ?? context.variables.DSEC_DATA ?? DEFAULT_DATA_DIRECTORY);
}

/**
 * A client of the server that is meant: `--endpoint` or DSEC_ENDPOINT with DSEC_API_KEY; else the server on this machine's data
 * directory, with the key that root finds there.
 * @throws PlatformError `server_unreachable`, `unauthenticated`
 */
export async function connect(context: Context, options: ConnectionOptions): Promise<DSecClient> {
  const data = dataDirectoryOf(context, options);
  const named = options.endpoint ?? context.variables.DSEC_ENDPOINT;
  const local = named === undefined ? await readServerFile(data) : undefined;
  const { DSEC_API_KEY: givenKey } = context.variables;
  if (named === undefined && local === undefined && (givenKey === undefined || options.data !== undefined)) {
    throw notRunning(data);
  }
  const apiKey = givenKey ?? (named === undefined ? await readAdminKey(data) : undefined);
  if (apiKey === undefined) {
    throw new PlatformError(
      'unauthenticated',
      named === undefined
        ? 'no API key: set DSEC_API_KEY, or run this as root on the machine of the server'
        : 'no API key: set DSEC_API_KEY; that of root is only for a server that no endpoint names',
    );
  }
  return new DSecClient({ endpoint: named ?? local?.endpoint ?? DEFAULT_ENDPOINT, apiKey, ...socketOf(local) });
}

/** A client of the server on this data directory, whatever the environment says. */
export async function connectLocal(data: DataDirectory): Promise<DSecClient> {
  const [server, apiKey] = await Promise.all([readServerFile(data), readAdminKey(data)]);
  if (server === undefined || apiKey === undefined) throw notRunning(data);
  return new DSecClient({ endpoint: server.endpoint, apiKey, ...socketOf(server) });
}

const socketOf = (server: ServerFile | undefined): { readonly socketPath?: string } =>
  server?.socket === undefined ? {} : { socketPath: server.socket };

function notRunning(data: DataDirectory): PlatformError {
  return new PlatformError('server_unreachable', `no server runs on ${data.path}`, { details: { path: data.path } });
}
