/** Writes down what becomes of each request: once, when it is over, and before that when it takes long. */
import type { IncomingHttpHeaders } from 'node:http';
import type { AuditCredential, PlatformError } from '@dsec/contract';
import type { Principal } from '@dsec/iam';
import type { Clock, Random, Timer } from '@dsec/kit';
import type { EncodedFields } from './audit-line.ts';
import type { AuditSink } from './audit-log.ts';
import type { Operation } from './operations.ts';
import { Refusals } from './refusals.ts';
import {
  detailOfCommand,
  detailOfFile,
  encodeSubject,
  quoted,
  type CommandDigest,
  type Detail,
  type Subject,
} from './request-subject.ts';
import { SeenKeys } from './seen-keys.ts';

/** An operation that has gone on for this long is written down before its end. */
const LONG_MS = 2000;
/** Idempotency keys that are known again: two to this power. */
const SEEN_BITS = 14;
const MAX_KEY_CHARS = 256;

export interface RequestAuditOptions {
  readonly log: AuditSink;
  readonly clock: Clock;
  readonly random: Random;
  readonly digest: CommandDigest;
}

/** What the audit log wants of a request: one of HTTP, or a command among others on one connection. */
export interface AuditedRequest {
  readonly headers: IncomingHttpHeaders;
  readonly url?: string | undefined;
  readonly socket: { readonly remoteAddress?: string | undefined };
}

/** One request, from its begin. */
export interface Audited {
  readonly operation: Operation;
  readonly request: AuditedRequest;
  readonly requestId: string;
  readonly remote: string;
  readonly startedMs: number;
  readonly params: Readonly<Record<string, string | undefined>>;
  /** Number of the record of its begin; 0: none. */
  begunSeq: number;
  isOver: boolean;
}

/** How a request ended. */
export interface Ending {
  readonly status: number;
  readonly error: PlatformError | undefined;
  /** The answer did not reach the client whole. */
  readonly isBroken?: boolean;
  readonly body?: unknown;
}

/** What its handler tells of a request: who asks, and what of it only the handler knows. */
class RequestNotes {
  principal: Principal | undefined;
  credential: AuditCredential | undefined;
  operation: string | undefined;
  subject: Subject | undefined;
}

/** Where the notes of a request are: at the request itself, since a map beside it would cost a command more than all else here. */
const NOTES = Symbol('what its handler tells of a request');
type Noted = AuditedRequest & { [NOTES]?: RequestNotes };

const foundOf = (request: Noted): RequestNotes | undefined => request[NOTES];

function notesOf(request: Noted): RequestNotes {
  const found = request[NOTES] ?? new RequestNotes();
  request[NOTES] = found;
  return found;
}

/** Who asks, whether or not it may: known before the body is read. */
export const setPrincipal = (request: AuditedRequest, principal: Principal): void =>
  void (notesOf(request).principal = principal);

export const principalOf = (request: AuditedRequest): Principal | undefined => foundOf(request)?.principal;

/** A request that was let in by something else than a key, whatever key it carries. */
export function setCredential(request: AuditedRequest, credential: AuditCredential): void {
  const found = notesOf(request);
  found.credential = credential;
  found.principal = undefined;
}

/** What the request turned out to be about. */
export function noteSubject(request: AuditedRequest, subject: Subject): void {
  const found = notesOf(request);
  found.subject = found.subject === undefined ? subject : { ...found.subject, ...subject };
}

/** What the request turned out to be. */
export const noteOperation = (request: AuditedRequest, operation: string): void =>
  void (notesOf(request).operation = operation);

export class RequestAudit implements Disposable {
  readonly #options: RequestAuditOptions;
  readonly #refusals: Refusals;
  readonly #seen: SeenKeys;
  /** Those that are under way and not written down. */
  readonly #young = new Set<Audited>();
  #timer: Timer | undefined;

  constructor(options: RequestAuditOptions) {
    this.#options = options;
    const { random } = options;
    this.#seen = new SeenKeys(SEEN_BITS, [random.bytes(4).readUInt32LE(), random.bytes(4).readUInt32LE()]);
    this.#refusals = new Refusals(options.clock, (fields) => void options.log.append(fields));
  }

  get log(): AuditSink {
    return this.#options.log;
  }

  begin(
    operation: Operation,
    request: AuditedRequest,
    requestId: string,
    params: Readonly<Record<string, string | undefined>>,
  ): Audited {
    const { clock } = this.#options;
    const startedMs = clock.monotonicMs();
    const remote = request.socket.remoteAddress ?? 'unix';
    const audited = { operation, request, requestId, remote, startedMs, params, begunSeq: 0, isOver: false };
    if (operation.name !== undefined) {
      this.#young.add(audited);
      this.#timer ??= clock.setTimer(LONG_MS, () => this.#onTimer());
    }
    return audited;
  }

  /** Writes it down, unless that was done. */
  end(audited: Audited, ending: Ending): void {
    if (audited.isOver) return;
    audited.isOver = true;
    this.#young.delete(audited);
    const { error } = ending;
    const found = foundOf(audited.request);
    const isNobody = found?.principal === undefined && found?.credential === undefined;
    if (isRefusal(error) || (isNobody && audited.operation.name !== undefined)) {
      if (!this.#refusals.admit(error?.code ?? 'ok', audited.remote)) return;
    } else if (audited.operation.name === undefined) return;
    this.#options.log.appendEncoded(this.#encode(audited, ending, found));
  }

  /** Resolves when it is on the disk, or the disk has refused: what was done is done. */
  async endDurably(audited: Audited, ending: Ending): Promise<void> {
    this.end(audited, ending);
    await this.#options.log.flush().catch(() => undefined);
  }

  /** Writes down what is still under way. */
  [Symbol.dispose](): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    for (const audited of this.#young) this.#begun(audited);
    this.#young.clear();
    this.#refusals[Symbol.dispose]();
  }

  #onTimer(): void {
    const { clock } = this.#options;
    this.#timer = undefined;
    const longMs = clock.monotonicMs() - LONG_MS;
    // In the order of their begins.
    for (const audited of this.#young) {
      if (audited.startedMs > longMs) {
        this.#timer = clock.setTimer(audited.startedMs - longMs, () => this.#onTimer());
        return;
      }
      this.#young.delete(audited);
      this.#begun(audited);
    }
  }

  #begun(audited: Audited): void {
    const found = foundOf(audited.request);
    // One whose sender proves nothing is bounded at its end.
    if (found?.principal === undefined && found?.credential === undefined) return;
    const { operation, requestId, remote, params } = audited;
    const who = `${encodeWho(found)},"remote":"${remote}"`;
    const subject = encodeSubject(params, found.subject, undefined);
    audited.begunSeq = this.#options.log.appendEncoded(
      `${encodeOperation(operation, found)},"outcome":"begun","requestId":"${requestId}"${who}${subject}`,
    );
  }

  #encode(audited: Audited, { status, error, isBroken, body }: Ending, found: RequestNotes | undefined): EncodedFields {
    const { operation, request, requestId, remote, startedMs, params, begunSeq } = audited;
    const durationMs = Math.round((this.#options.clock.monotonicMs() - startedMs) * 1000) / 1000;
    const outcome = error?.code ?? (isBroken === true ? 'cancelled' : 'ok');
    const ending = `"outcome":"${outcome}","status":${status},"durationMs":${durationMs}`;
    const replay = this.#isReplay(request, operation, found) ? ',"replay":true' : '';
    const begun = begunSeq === 0 ? '' : `,"begunSeq":${begunSeq}`;
    const subject = encodeSubject(params, found?.subject, this.#detailOf(operation, request, body));
    // Ids of requests and addresses have characters that JSON leaves as they are.
    const who = `${encodeWho(found)},"remote":"${remote}"`;
    return `${encodeOperation(operation, found)},${ending},"requestId":"${requestId}"${who}${subject}${replay}${begun}`;
  }

  #detailOf(operation: Operation, { url = '' }: AuditedRequest, body: unknown): Detail | undefined {
    const { name } = operation;
    if (name === 'exec.start') return detailOfCommand(body, this.#options.digest);
    if (name?.startsWith('file.') === true || name?.startsWith('tree.') === true) return detailOfFile(url, body);
    return undefined;
  }

  #isReplay({ headers }: AuditedRequest, { name }: Operation, found: RequestNotes | undefined): boolean {
    const key = headers['idempotency-key'];
    if (typeof key !== 'string' || key.length > MAX_KEY_CHARS || found?.principal === undefined) return false;
    return this.#seen.add(found.principal.keyId, name ?? '', key);
  }
}

const refusalCodes: ReadonlySet<string> = new Set([
  'unauthenticated',
  'permission_denied',
  'link_invalid',
  'link_expired',
]);

const isRefusal = (error: PlatformError | undefined): error is PlatformError =>
  error !== undefined && refusalCodes.has(error.code);

const encodeOperation = ({ encoded, method, route }: Operation, found: RequestNotes | undefined): EncodedFields =>
  found?.operation === undefined ? encoded : JSON.stringify({ operation: found.operation, method, route }).slice(1, -1);

/** By principal, which is one object as long as its key is good. */
const principals = new WeakMap<Principal, EncodedFields>();

function encodeWho(found: RequestNotes | undefined): EncodedFields {
  const { principal, credential } = found ?? {};
  if (principal === undefined) return credential === undefined ? '' : `,"credential":"${credential}"`;
  let encoded = principals.get(principal);
  if (encoded === undefined) {
    const { keyId, name, project } = principal;
    encoded = `,"credential":"key","keyId":${quoted(keyId)},"keyName":${quoted(name)},"project":${quoted(project)}`;
    principals.set(principal, encoded);
  }
  return encoded;
}
