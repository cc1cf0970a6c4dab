/** What a request was about, as far as its path and body say: names and numbers, never contents. */
import { hash } from 'node:crypto';
import { limits } from '@dsec/contract';
import type { AuditFields, EncodedFields } from './audit-line.ts';

export type Detail = NonNullable<AuditFields['detail']>;
type Params = Readonly<Record<string, string | undefined>>;

/** The members of a record that say what it was about. */
export type Subject = Partial<
  Pick<AuditFields, 'sandboxId' | 'sandboxIds' | 'execId' | 'sessionId' | 'environment' | 'subjectKeyId'>
> & { readonly detail?: Detail };

const idForm = /^[a-z0-9]{1,32}$/;
const keyIdForm = /^[a-zA-Z0-9_]{1,64}$/;
/** 128 bits of a sha256. */
const DIGEST_CHARS = 22;

const cut = (text: string): string => text.slice(0, limits.auditTextChars);

export const quoted = (text: string): string => JSON.stringify(text);

/**
 * As JSON, each member behind a comma: what the parameters of the path name, unless the handler knows better. What has not the form of an id is left out.
 */
export function encodeSubject(params: Params, noted: Subject | undefined, detail: Detail | undefined): EncodedFields {
  const { id, eid, sid, name, keyId, port } = params;
  const sandboxId = formed(noted?.sandboxId ?? id, idForm);
  const execId = formed(noted?.execId ?? eid, idForm);
  const sessionId = formed(noted?.sessionId ?? sid, idForm);
  const environment = noted?.environment ?? name;
  const subjectKeyId = formed(noted?.subjectKeyId ?? keyId, keyIdForm);
  const sandboxIds = noted?.sandboxIds;
  let text = '';
  if (sandboxId !== undefined) text += `,"sandboxId":"${sandboxId}"`;
  if (sandboxIds !== undefined) text += `,"sandboxIds":${JSON.stringify(sandboxIds)}`;
  if (execId !== undefined) text += `,"execId":"${execId}"`;
  if (sessionId !== undefined) text += `,"sessionId":"${sessionId}"`;
  if (environment !== undefined) text += `,"environment":${quoted(cut(environment))}`;
  if (subjectKeyId !== undefined) text += `,"subjectKeyId":"${subjectKeyId}"`;
  const more = noted?.detail;
  if (port === undefined && more === undefined)
    return detail === undefined ? text : `${text},"detail":${JSON.stringify(detail)}`;
  return `${text},"detail":${JSON.stringify({ ...(port === undefined ? {} : { port: cut(port) }), ...detail, ...more })}`;
}

const formed = (text: string | undefined, form: RegExp): string | undefined =>
  text !== undefined && form.test(text) ? text : undefined;

/**
 * Tells commands apart, and gives nobody anything to guess at: arguments may hold secrets, and few of them can be tried one by one. So the digest is of a key
 * of the installation and the arguments; whoever has the key can look whether a record is of a certain command.
 */
export class CommandDigest {
  readonly #key: string;

  constructor(key: string) {
    this.#key = key;
  }

  of(text: string): string {
    return hash('sha256', `${this.#key}\0${text}`, 'base64url').slice(0, DIGEST_CHARS);
  }
}

/** Of the body of `exec.start`, which need not have its form: the program, and a digest of the whole command. */
export function detailOfCommand(body: unknown, digest: CommandDigest): Detail | undefined {
  if (typeof body !== 'object' || body === null) return undefined;
  const { argv, shell, user } = body as Readonly<Record<string, unknown>>;
  const as = typeof user === 'string' ? { user: cut(user) } : {};
  if (typeof shell === 'string') return { shell: true, commandDigest: digest.of(shell), ...as };
  if (!Array.isArray(argv) || typeof argv[0] !== 'string') return undefined;
  return { argv0: cut(argv[0]), args: argv.length - 1, commandDigest: digest.of(argv.join('\0')), ...as };
}

const pathInQuery = /[?&]path=([^&]*)/;

/** The file that a request names, in its query or its body. */
export function detailOfFile(url: string, body: unknown): Detail | undefined {
  const [, encoded] = pathInQuery.exec(url) ?? [];
  if (encoded !== undefined) return { path: cut(decoded(encoded)) };
  if (typeof body !== 'object' || body === null) return undefined;
  const { path, from, to, operation } = body as Readonly<Record<string, unknown>>;
  return {
    ...(typeof path === 'string' ? { path: cut(path) } : {}),
    ...(typeof from === 'string' ? { from: cut(from) } : {}),
    ...(typeof to === 'string' ? { to: cut(to) } : {}),
    ...(typeof operation === 'string' ? { operation: cut(operation) } : {}),
  };
}

function decoded(text: string): string {
  try {
    return decodeURIComponent(text.replaceAll('+', ' '));
  } catch {
    return text;
  }
}
