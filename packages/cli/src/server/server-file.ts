import { readFile, rm } from 'node:fs/promises';
import { PlatformError } from '@dsec/contract';
import { compileSchema, writeDurably } from '@dsec/kit';
import { Type, type Static } from 'typebox';
import { isErrno, type DataDirectory } from './data-directory.ts';

const SERVER_FILE_VERSION = 1;

/** What `run/server.json` says of the server that runs on a data directory. It holds no secret. */
const ServerFileSchema = Type.Object(
  {
    version: Type.Literal(SERVER_FILE_VERSION),
    endpoint: Type.String({ pattern: '^https?://' }),
    /** The unix socket of the same API. */
    socket: Type.Optional(Type.String()),
    /** Of the supervisor. */
    pid: Type.Integer({ minimum: 1 }),
    startedAtMs: Type.Integer(),
    /** Of the daemons, for whoever looks after them. */
    pids: Type.Record(Type.String(), Type.Integer()),
  },
  { additionalProperties: false },
);
export type ServerFile = Static<typeof ServerFileSchema>;

const parser = compileSchema(ServerFileSchema);

export async function writeServerFile(data: DataDirectory, content: Omit<ServerFile, 'version'>): Promise<void> {
  await writeDurably(data.serverFile, `${JSON.stringify({ version: SERVER_FILE_VERSION, ...content }, null, 2)}\n`, {
    mode: 0o644,
  });
}

/** Undefined when no server runs on this directory. */
export async function readServerFile(data: DataDirectory): Promise<ServerFile | undefined> {
  let text: string;
  try {
    text = await readFile(data.serverFile, 'utf8');
  } catch (error) {
    if (isErrno(error, 'ENOENT') || isErrno(error, 'ENOTDIR')) return undefined;
    if (isErrno(error, 'EACCES'))
      throw new PlatformError('permission_denied', `${data.serverFile} may not be read`, { cause: error });
    throw error;
  }
  return parser.parse(JSON.parse(text), { what: data.serverFile, code: 'config_invalid' });
}

export async function removeServerFile(data: DataDirectory): Promise<void> {
  await rm(data.serverFile, { force: true });
}
