import type { PlatformError } from '@dsec/contract';
import { compileSchema } from '@dsec/kit';
import { Type } from 'typebox';
import type { Account } from './auth-file.ts';
import { type Challenge, parseChallenges } from './challenge.ts';
import { exchange, type HttpAnswer, type HttpOptions } from './http-exchange.ts';
import { rateLimited, unauthenticated, unavailable } from './registry-failure.ts';
import { retryAfterMs } from './retry-after.ts';

export interface AuthorizerOptions {
  /** Named in errors. */
  readonly registry: string;
  /** The origin of its API. */
  readonly url: URL;
  /** What tokens are to allow: `repository:NAME:pull`. */
  readonly scope: string;
  readonly account: Account | undefined;
  readonly http: HttpOptions;
}

const MAX_TOKEN_DOCUMENT_BYTES = 256 * 1024;
/** The specification's own, for a server that does not say. */
const DEFAULT_TOKEN_SECONDS = 60;
/** A token is not used when it may end on the way. */
const EXPIRY_MARGIN_MS = 5000;
const CLIENT_ID = 'dsec';

const tokenParser = compileSchema(
  Type.Object({
    token: Type.Optional(Type.String({ maxLength: 65_536 })),
    access_token: Type.Optional(Type.String({ maxLength: 65_536 })),
    expires_in: Type.Optional(Type.Union([Type.Number(), Type.Null()])),
  }),
);
/** What a header can hold. */
const TOKEN_CHARACTERS = /^[\x21-\x7e]+$/;

interface Grant {
  readonly header: string;
  readonly endsMs: number;
}

/** Finds out how one registry wants to be authorized to, and keeps what it gave until that ends. */
export class Authorizer {
  readonly #options: AuthorizerOptions;
  #grant: Grant | undefined;
  #renewal: Promise<Grant> | undefined;

  constructor(options: AuthorizerOptions) {
    this.#options = options;
  }

  /** For the Authorization header; undefined before the registry has asked for it. */
  get header(): string | undefined {
    const isLive = this.#grant !== undefined && this.#options.http.clock.monotonicMs() < this.#grant.endsMs;
    return isLive ? this.#grant?.header : undefined;
  }

  /**
   * Gets what the registry asked for in a 401. Callers that were refused at the same time share one answer.
   *
   * @param refused what was sent in vain
   * @returns what to send instead, even when that ends at once
   * @throws PlatformError `registry_unauthenticated`, `registry_unavailable`, `registry_rate_limited`
   */
  async renew(wwwAuthenticate: string, refused: string | undefined, signal: AbortSignal | undefined): Promise<string> {
    // Another caller was faster.
    const { header } = this;
    if (header !== undefined && header !== refused) return header;
    this.#renewal ??= this.#ask(parseChallenges(wwwAuthenticate), signal).finally(() => {
      this.#renewal = undefined;
    });
    this.#grant = await this.#renewal;
    return this.#grant.header;
  }

  async #ask(challenges: readonly Challenge[], signal: AbortSignal | undefined): Promise<Grant> {
    const { account, registry } = this.#options;
    const bearer = challenges.find(({ scheme }) => scheme === 'bearer');
    if (bearer !== undefined) {
      if (account?.kind === 'bearer') return this.#lasting(`Bearer ${account.token}`);
      return await this.#token(bearer, signal);
    }
    if (challenges.some(({ scheme }) => scheme === 'basic')) {
      if (account?.kind !== 'password') throw unauthenticated(registry, 'no_account');
      return this.#lasting(basic(account.username, account.password));
    }
    throw unauthenticated(registry, account === undefined ? 'no_account' : 'refused');
  }

  #lasting(header: string): Grant {
    return { header, endsMs: Number.POSITIVE_INFINITY };
  }

  async #token(challenge: Challenge, signal: AbortSignal | undefined): Promise<Grant> {
    const { account, registry, http } = this.#options;
    await using answer = await this.#askTokenServer(this.#realm(challenge), challenge, signal);
    if (answer.status === 401 || answer.status === 403) {
      throw unauthenticated(registry, account === undefined ? 'no_account' : 'refused');
    }
    if (answer.status === 429) throw rateLimited(registry, retryAfterMs(answer, http.clock));
    if (answer.status !== 200) throw unavailable(registry, `status ${answer.status}`);
    const { token, seconds } = readToken(await answer.document(MAX_TOKEN_DOCUMENT_BYTES), () =>
      unavailable(registry, 'response'),
    );
    const lifeMs = Math.max(0, seconds * 1000 - EXPIRY_MARGIN_MS);
    return { header: `Bearer ${token}`, endsMs: http.clock.monotonicMs() + lifeMs };
  }

  async #askTokenServer(realm: URL, challenge: Challenge, signal: AbortSignal | undefined): Promise<HttpAnswer> {
    const { account, registry, scope, http } = this.#options;
    const service = challenge.parameters.get('service');
    const query: [string, string][] = [['scope', scope]];
    if (service !== undefined) query.push(['service', service]);
    if (account?.kind === 'identity') {
      const form = new URLSearchParams([
        ['grant_type', 'refresh_token'],
        ['refresh_token', account.token],
        ['client_id', CLIENT_ID],
        ...query,
      ]);
      const headers = { 'content-type': 'application/x-www-form-urlencoded' };
      return await exchange(registry, { method: 'POST', url: realm, headers, body: form.toString(), signal }, http);
    }
    const url = new URL(realm);
    for (const [name, value] of query) url.searchParams.append(name, value);
    const authorization = account?.kind === 'password' ? basic(account.username, account.password) : undefined;
    return await exchange(registry, { method: 'GET', url, authorization, signal }, http);
  }

  /** The token server gets the account: it is spoken to by TLS, or it is the very host that the user has named. */
  #realm(challenge: Challenge): URL {
    const { registry, url } = this.#options;
    const text = challenge.parameters.get('realm') ?? '';
    const realm = URL.canParse(text) ? new URL(text) : undefined;
    const isFit =
      realm !== undefined &&
      realm.username === '' &&
      realm.password === '' &&
      (realm.protocol === 'https:' ||
        (realm.protocol === 'http:' && url.protocol === 'http:' && realm.hostname === url.hostname));
    if (!isFit) throw unavailable(registry, 'realm');
    return realm;
  }
}

const basic = (username: string, password: string): string =>
  `Basic ${Buffer.from(`${username}:${password}`, 'utf8').toString('base64')}`;

const readToken = (
  document: Buffer | undefined,
  wrong: () => PlatformError,
): { readonly token: string; readonly seconds: number } => {
  let value: unknown;
  try {
    value = document === undefined ? undefined : JSON.parse(document.toString('utf8'));
  } catch {
    // Not passed on: it may quote a part of the token.
    throw wrong();
  }
  if (!tokenParser.is(value)) throw wrong();
  const token = value.token || value.access_token;
  if (!token || !TOKEN_CHARACTERS.test(token)) throw wrong();
  return { token, seconds: value.expires_in || DEFAULT_TOKEN_SECONDS };
};
