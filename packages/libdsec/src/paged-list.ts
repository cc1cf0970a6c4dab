import type { Api, ApiRequest } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import type { Parse } from './http/schema.ts';

/** One answer of a listing. */
export interface ListPage<T> {
  readonly items: readonly T[];
  /** For the next one; null: there is none. */
  readonly cursor: string | null;
}

export interface ListOptions extends CallOptions {
  /** How many a page has (1 to 1,000). @default 100 */
  readonly pageSize?: number;
}

interface Listing<T> extends Pick<ApiRequest, 'path' | 'what' | 'query'> {
  readonly parse: Parse<ListPage<T>>;
}

/** What the server lists in pages: iterate over all, or by pages. Pages are asked for as they are needed. */
export class PagedList<T> implements AsyncIterable<T> {
  readonly #api: Api;
  readonly #listing: Listing<T>;
  readonly #options: ListOptions;

  /** @internal Clients hand them out. */
  constructor(api: Api, listing: Listing<T>, options: ListOptions) {
    this.#api = api;
    this.#listing = listing;
    this.#options = options;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<T, void, undefined> {
    for await (const page of this.pages()) yield* page;
  }

  async *pages(): AsyncGenerator<readonly T[], void, undefined> {
    const { path, what, parse } = this.#listing;
    const { pageSize, signal, timeoutMs } = this.#options;
    let cursor: string | undefined;
    do {
      const query = { ...this.#listing.query, limit: pageSize, cursor };
      const page = await this.#api.json({ method: 'GET', path, what, query, repeatable: 'always' }, parse, {
        signal,
        timeoutMs,
      });
      yield page.items;
      cursor = page.cursor ?? undefined;
    } while (cursor !== undefined);
  }

  async toArray(): Promise<readonly T[]> {
    const all: T[] = [];
    for await (const page of this.pages()) all.push(...page);
    return all;
  }
}
