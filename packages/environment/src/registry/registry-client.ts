import { createHash } from 'node:crypto';
import type { Random } from '@dsec/kit';
import type { Account } from './auth-file.ts';
import { Authorizer } from './authorizer.ts';
import { exchange, type HttpAnswer, type HttpOptions, type HttpRequest } from './http-exchange.ts';
import { MANIFEST_MEDIA_TYPES } from './media-type.ts';
import { corrupt, imageNotFound, rateLimited, unauthenticated, unavailable } from './registry-failure.ts';
import { retryAfterMs } from './retry-after.ts';
import { RetryBudget } from './retry-budget.ts';

export interface RegistryClientOptions {
  /** Named in errors. */
  readonly registry: string;
  /** Where its API is, without a path. */
  readonly url: URL;
  readonly repository: string;
  readonly actions: 'pull' | 'pull,push';
  readonly account: Account | undefined;
  readonly http: HttpOptions;
  readonly random: Random;
  /** Most attempts of one request, the first included. */
  readonly attempts: number;
}

export interface FetchedManifest {
  readonly bytes: Buffer;
  readonly digest: string;
  /** As the registry calls it, without parameters. */
  readonly mediaType: string;
}

export interface BlobAnswer extends AsyncDisposable {
  /** Where in the blob the first chunk stands. */
  readonly offset: number;
  readonly chunks: () => AsyncGenerator<Uint8Array>;
}

/** What registries allow (OCI distribution specification 1.1: at least so much has to be taken). */
export const MAX_MANIFEST_BYTES = 4 * 1024 * 1024;

/** One repository of one registry (OCI distribution specification 1.1). */
export class RegistryClient {
  readonly registry: string;
  readonly #options: RegistryClientOptions;
  readonly #authorizer: Authorizer;

  constructor(options: RegistryClientOptions) {
    this.registry = options.registry;
    this.#options = options;
    const { registry, url, account, http } = options;
    const scope = `repository:${options.repository}:${options.actions}`;
    this.#authorizer = new Authorizer({ registry, url, scope, account, http });
  }

  get repository(): string {
    return this.#options.repository;
  }

  /** A budget for what is tried again above single requests. */
  budget(signal: AbortSignal | undefined): RetryBudget {
    const { http, random, attempts } = this.#options;
    return new RetryBudget({ clock: http.clock, random, attempts, signal });
  }

  /** An address below this repository: `manifests/latest`. */
  address(path: string): URL {
    return new URL(`/v2/${this.#options.repository}/${path}`, this.#options.url);
  }

  /** @throws PlatformError `image_not_found`, `image_corrupt` when it has another digest than the registry or the caller says */
  async manifest(
    named: { readonly image: string; readonly selector: string },
    signal: AbortSignal | undefined,
  ): Promise<FetchedManifest> {
    const url = this.address(`manifests/${named.selector}`);
    const headers = { accept: MANIFEST_MEDIA_TYPES.join(', ') };
    return await this.retried(signal, async () => {
      await using answer = await this.requestOnce({ method: 'GET', url, headers, signal }, [404]);
      return await this.#readManifest(answer, named);
    });
  }

  /**
   * A blob, from `offset` on where the registry can do that. Tries once: the caller knows how much it already has.
   *
   * @throws PlatformError `image_corrupt` when there is none
   */
  async blob(digest: string, offset: number, signal: AbortSignal | undefined): Promise<BlobAnswer> {
    const headers: Record<string, string> = offset === 0 ? {} : { range: `bytes=${offset}-` };
    const answer = await this.#authorized({ method: 'GET', url: this.address(`blobs/${digest}`), headers, signal });
    try {
      if (answer.status === 404) throw corrupt(digest, 0, 'missing');
      if (answer.status === 416) throw corrupt(digest, offset, 'truncated');
      if (answer.status === 200) return blobAnswer(answer, 0);
      if (answer.status !== 206) throw this.#refusal(answer);
      const start = /^bytes ([0-9]{1,15})-/.exec(answer.header('content-range') ?? '')?.[1];
      if (Number(start) !== offset) throw unavailable(this.registry, 'range');
      return blobAnswer(answer, offset);
    } catch (error) {
      await answer[Symbol.asyncDispose]();
      throw error;
    }
  }

  /** Does what may be done again until it works or there is no hope. */
  async retried<T>(signal: AbortSignal | undefined, operation: () => Promise<T>): Promise<T> {
    const budget = this.budget(signal);
    for (;;) {
      try {
        return await operation();
      } catch (error) {
        await budget.afterFailure(error);
      }
    }
  }

  /**
   * One request, sent once (or twice, when the registry asks for an account).
   *
   * @param statuses which to return beside 2xx
   * @throws PlatformError for all others
   */
  async requestOnce(request: HttpRequest, statuses: readonly number[] = []): Promise<HttpAnswer> {
    const answer = await this.#authorized(request);
    if ((answer.status >= 200 && answer.status < 300) || statuses.includes(answer.status)) return answer;
    await answer[Symbol.asyncDispose]();
    throw this.#refusal(answer);
  }

  async #readManifest(
    answer: HttpAnswer,
    named: { readonly image: string; readonly selector: string },
  ): Promise<FetchedManifest> {
    if (answer.status === 404) throw imageNotFound(this.registry, named.image);
    if (answer.status !== 200) throw unavailable(this.registry, `status ${answer.status}`);
    const bytes = await answer.document(MAX_MANIFEST_BYTES);
    if (bytes === undefined) throw corrupt(named.image, MAX_MANIFEST_BYTES, 'document_size');
    const digest = `sha256:${createHash('sha256').update(bytes).digest('hex')}`;
    const said = answer.header('docker-content-digest');
    const wanted = named.selector.includes(':') ? named.selector : said;
    if (wanted?.startsWith('sha256:') === true && wanted !== digest) {
      throw corrupt(wanted.slice(0, 80), bytes.length, 'digest_mismatch');
    }
    const mediaType = (answer.header('content-type') ?? '').split(';')[0]?.trim() ?? '';
    return { bytes, digest, mediaType };
  }

  /** Sends the request; when it is refused for lack of authorization, gets that and sends it once more. */
  async #authorized(request: HttpRequest): Promise<HttpAnswer> {
    const { http, url } = this.#options;
    // Uploads may be sent to where a registry says, but its account is for itself alone.
    const isOwn = request.url.origin === url.origin;
    const authorization = isOwn ? this.#authorizer.header : undefined;
    const answer = await exchange(this.registry, { ...request, authorization }, http);
    const challenge = answer.header('www-authenticate');
    // What the registry redirects to may not ask for its account either.
    if (answer.status !== 401 || challenge === undefined || answer.origin !== url.origin) return answer;
    await answer[Symbol.asyncDispose]();
    const renewed = await this.#authorizer.renew(challenge, authorization, request.signal);
    return await exchange(this.registry, { ...request, authorization: renewed }, http);
  }

  #refusal(answer: HttpAnswer): Error {
    const { status } = answer;
    const { account, http, url } = this.#options;
    const isOwn = answer.origin === url.origin;
    const afterMs = retryAfterMs(answer, http.clock);
    if (isOwn && status === 401)
      return unauthenticated(this.registry, account === undefined ? 'no_account' : 'refused');
    if (isOwn && status === 403) return unauthenticated(this.registry, 'denied');
    if (status === 429) return rateLimited(this.registry, afterMs);
    return unavailable(this.registry, `status ${status}`, { retryAfterMs: afterMs });
  }
}

const blobAnswer = (answer: HttpAnswer, offset: number): BlobAnswer => ({
  offset,
  chunks: () => answer.chunks(),
  [Symbol.asyncDispose]: () => answer[Symbol.asyncDispose](),
});
