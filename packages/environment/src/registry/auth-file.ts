import { open } from 'node:fs/promises';
import { join } from 'node:path';
import { PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { Type } from 'typebox';
import { DOCKER_HUB, parseRegistry } from './reference.ts';

/** What a registry knows its user by. */
export type Account =
  | { readonly kind: 'password'; readonly username: string; readonly password: string }
  /** Given to the token server, which gives tokens for it. */
  | { readonly kind: 'identity'; readonly token: string }
  /** Given to the registry as it is. */
  | { readonly kind: 'bearer'; readonly token: string };

const MAX_FILE_BYTES = 1024 * 1024;

const EntrySchema = Type.Object({
  auth: Type.Optional(Type.String()),
  username: Type.Optional(Type.String()),
  password: Type.Optional(Type.String()),
  identitytoken: Type.Optional(Type.String()),
  registrytoken: Type.Optional(Type.String()),
});
/** Docker's config.json holds much else, which is none of our business. */
const parser = compileSchema(
  Type.Object({
    auths: Type.Optional(Type.Record(Type.String(), EntrySchema)),
    credsStore: Type.Optional(Type.String()),
    credHelpers: Type.Optional(Type.Record(Type.String(), Type.String())),
  }),
);
type Content = ReturnType<typeof parser.parse>;
type Entry = NonNullable<Content['auths']>[string];

export interface AuthFileSearch {
  /** A file that must be there. */
  readonly path?: string | undefined;
  /** Variables of the environment, of which DOCKER_CONFIG and HOME say where it may be. */
  readonly variables?: Readonly<Record<string, string | undefined>>;
}

/** Accounts as `docker login` keeps them. */
export class AuthFile {
  readonly #content: Content;

  private constructor(content: Content) {
    this.#content = content;
  }

  static readonly none = new AuthFile({});

  /**
   * Reads the file that is named; else config.json in $DOCKER_CONFIG, else in ~/.docker, which need not be there.
   *
   * @throws PlatformError `file_not_found` when a file that is named is not there, `config_invalid`
   */
  static async find({ path, variables = {} }: AuthFileSearch): Promise<AuthFile> {
    if (path !== undefined) return await AuthFile.#read(path, true);
    const { DOCKER_CONFIG: directory, HOME: home } = variables;
    if (directory) return await AuthFile.#read(join(directory, 'config.json'), false);
    return home ? await AuthFile.#read(join(home, '.docker', 'config.json'), false) : AuthFile.none;
  }

  static async #read(path: string, isRequired: boolean): Promise<AuthFile> {
    const text = await readBounded(path);
    if (text === undefined) {
      if (!isRequired) return AuthFile.none;
      throw new PlatformError('file_not_found', `There is no auth file ${path}`, { details: { path } });
    }
    return AuthFile.parse(text);
  }

  /** @throws PlatformError `config_invalid`; never with anything of the text, which holds secrets */
  static parse(text: string): AuthFile {
    let value: unknown;
    try {
      value = JSON.parse(text);
    } catch {
      throw invalid('', 'is no JSON');
    }
    return new AuthFile(parser.parse(value, { what: 'the auth file', code: 'config_invalid' }));
  }

  /**
   * The account for a registry; undefined when the file has none.
   *
   * @throws PlatformError `config_invalid` when it is in a credential helper (a program of the user's choice is not run here), or malformed
   */
  account(registry: string): Account | undefined {
    const { auths = {}, credHelpers = {}, credsStore } = this.#content;
    const helper = Object.entries(credHelpers).find(([key]) => registryOfKey(key) === registry)?.[1];
    if (helper !== undefined) throw inHelper(registry, 'credHelpers', helper);
    const entries = Object.entries(auths).filter(([key]) => registryOfKey(key) === registry);
    for (const [, entry] of entries) {
      const account = accountOf(entry, registry);
      if (account !== undefined) return account;
    }
    // With a store of credentials `docker login` leaves an entry with nothing in it.
    if (entries.length > 0 && credsStore) throw inHelper(registry, 'credsStore', credsStore);
    return undefined;
  }
}

/** Keys are hosts, or addresses of the API; with another path they are for a part of the registry only. */
const registryOfKey = (key: string): string | undefined => {
  const [, host, path] = /^(?:https?:\/\/)?([^/]+)(\/.*)?$/.exec(key) ?? [];
  if (host === undefined || !['', '/', '/v1', '/v1/', '/v2', '/v2/'].includes(path ?? '')) return undefined;
  return parseRegistry(host) === DOCKER_HUB ? DOCKER_HUB : host;
};

const accountOf = (entry: Entry, registry: string): Account | undefined => {
  if (entry.registrytoken) return { kind: 'bearer', token: entry.registrytoken };
  if (entry.identitytoken) return { kind: 'identity', token: entry.identitytoken };
  if (entry.auth) {
    // Docker ends what it writes with NUL bytes at times.
    const pair = Buffer.from(entry.auth, 'base64').toString('utf8').replace(/\0+$/, '');
    const colon = pair.indexOf(':');
    if (colon < 1) throw invalid(`auths.${registry}.auth`, 'is not the base64 of a name, a colon and a password');
    return { kind: 'password', username: pair.slice(0, colon), password: pair.slice(colon + 1) };
  }
  if (entry.username) return { kind: 'password', username: entry.username, password: entry.password ?? '' };
  return undefined;
};

const inHelper = (registry: string, field: string, helper: string): PlatformError =>
  new PlatformError(
    'config_invalid',
    `The account for ${registry} is kept by the credential helper ${helper.slice(0, 64)}, which is not asked: name an auth file that holds the account itself`,
    { details: { field, registry, reason: 'credential_helper' } },
  );

const invalid = (field: string, reason: string): PlatformError =>
  new PlatformError('config_invalid', `the auth file${field === '' ? '' : `: ${field}`} ${reason}`, {
    details: { field, reason },
  });

const readBounded = async (path: string): Promise<string | undefined> => {
  try {
    await using file = await open(path, 'r');
    const buffer = Buffer.alloc(MAX_FILE_BYTES + 1);
    let length = 0;
    for (;;) {
      const { bytesRead } = await file.read(buffer, length, buffer.length - length);
      if (bytesRead === 0) break;
      length += bytesRead;
    }
    if (length > MAX_FILE_BYTES) throw invalid('', 'is too large');
    return buffer.toString('utf8', 0, length);
  } catch (error) {
    if (PlatformError.is(error)) throw error;
    const code = error instanceof Error && 'code' in error ? error.code : undefined;
    if (code === 'ENOENT' || code === 'ENOTDIR') return undefined;
    throw new PlatformError('config_invalid', `the auth file ${path} cannot be read`, {
      details: { field: 'authFile', path },
      cause: error,
    });
  }
};
