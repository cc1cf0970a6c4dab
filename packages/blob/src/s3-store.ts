/** A blob store in a bucket of an S3 server. */
import { MAX_PACK_BYTES } from './layer-format.ts';
import {
  checkKey,
  checkPrefix,
  checkRange,
  isKey,
  type ListOptions,
  MAX_LIST,
  type ObjectBody,
  type ObjectInfo,
  type ObjectPage,
  type ObjectStore,
  type ObjectStream,
  type PutOptions,
  type ReadOptions,
  type StoreOptions,
} from './object-store.ts';
import { S3Client, type S3ClientOptions, type S3Response, textOf } from './s3-client.ts';
import { multipartPut, removeStaleUploads } from './s3-multipart.ts';
import { xmlElements, xmlText } from './s3-xml.ts';
import { unavailable } from './store-error.ts';

export interface S3StoreOptions extends S3ClientOptions {
  /** What is longer is put in parts of this size; S3 takes none below 5 MiB but the last. Default: a whole pack. */
  readonly partBytes?: number;
}

const DEFAULT_PART_BYTES = MAX_PACK_BYTES;
const NOT_FOUND = 404;
/** The range begins behind the end of the object. */
const RANGE_NOT_SATISFIABLE = 416;

export class S3Store implements ObjectStore {
  readonly name: string;
  readonly #client: S3Client;
  readonly #partBytes: number;

  constructor(options: S3StoreOptions) {
    this.#client = new S3Client(options);
    this.name = this.#client.name;
    this.#partBytes = options.partBytes ?? DEFAULT_PART_BYTES;
  }

  async put(key: string, body: ObjectBody, options: PutOptions = {}): Promise<'written' | 'present'> {
    checkKey(key);
    if (options.ifAbsent === true) {
      const there = await this.head(key, options);
      if (there !== undefined && (!(body instanceof Uint8Array) || there.sizeBytes === body.length)) return 'present';
    }
    await multipartPut(this.#client, { key, body, partBytes: this.#partBytes, signal: options.signal });
    return 'written';
  }

  async get(key: string, options: ReadOptions = {}): Promise<ObjectStream | undefined> {
    checkKey(key);
    checkRange(options.range);
    const first = await this.#open(key, options, 0);
    return first === undefined
      ? undefined
      : new S3Stream(this.#client, first, (offset) => this.#open(key, options, offset));
  }

  async head(key: string, options: StoreOptions = {}): Promise<ObjectInfo | undefined> {
    checkKey(key);
    const { signal } = options;
    const { status, headers } = await this.#client.text({ method: 'HEAD', key, expected: [NOT_FOUND], signal });
    if (status === NOT_FOUND) return undefined;
    const sizeBytes = Number(headers.get('content-length') ?? Number.NaN);
    const modifiedMs = Date.parse(headers.get('last-modified') ?? '');
    if (!Number.isSafeInteger(sizeBytes) || Number.isNaN(modifiedMs)) throw unavailable(this.name, 'protocol');
    return { key, sizeBytes, modifiedMs };
  }

  async list(prefix: string, options: ListOptions = {}): Promise<ObjectPage> {
    checkPrefix(prefix);
    const limit = Math.min(options.limit ?? MAX_LIST, MAX_LIST);
    const { text } = await this.#client.text({
      method: 'GET',
      key: '',
      query: {
        'list-type': '2',
        'max-keys': String(limit),
        prefix,
        // Keys, not tokens of the server: a cursor stays good when the server restarts.
        ...(options.cursor === undefined ? {} : { 'start-after': options.cursor }),
      },
      signal: options.signal,
    });
    const isTruncated = xmlText(text, 'IsTruncated');
    if (isTruncated !== 'true' && isTruncated !== 'false') throw unavailable(this.name, 'protocol');
    const keys = xmlElements(text, 'Contents').map((element) => this.#listed(element));
    const last = keys.at(-1)?.key;
    if (isTruncated === 'true' && last === undefined) throw unavailable(this.name, 'protocol');
    // Somebody else's objects may lie in the bucket too.
    return { objects: keys.filter(({ key }) => isKey(key)), cursor: isTruncated === 'true' ? last : undefined };
  }

  async delete(key: string, options: StoreOptions = {}): Promise<void> {
    checkKey(key);
    await this.#client.text({ method: 'DELETE', key, expected: [NOT_FOUND], signal: options.signal });
  }

  async removeUnfinished(beforeMs: number, options: StoreOptions = {}): Promise<number> {
    return await removeStaleUploads(this.#client, beforeMs, options.signal);
  }

  #listed(element: string): ObjectInfo {
    const key = xmlText(element, 'Key');
    const sizeBytes = Number(xmlText(element, 'Size') ?? Number.NaN);
    const modifiedMs = Date.parse(xmlText(element, 'LastModified') ?? '');
    if (key === undefined || !Number.isSafeInteger(sizeBytes) || Number.isNaN(modifiedMs)) {
      throw unavailable(this.name, 'protocol');
    }
    return { key, sizeBytes, modifiedMs };
  }

  /** The object, or what `range` leaves of it, from `skip` bytes on. */
  async #open(key: string, options: ReadOptions, skip: number): Promise<S3Response | undefined> {
    const { range, signal } = options;
    const from = (range?.offset ?? 0) + skip;
    const to = range === undefined ? '' : range.offset + range.length - 1;
    const isPart = range !== undefined || skip > 0;
    const response = await this.#client.open({
      method: 'GET',
      key,
      headers: isPart ? { range: `bytes=${from}-${to}` } : {},
      expected: [NOT_FOUND, RANGE_NOT_SATISFIABLE],
      signal,
    });
    if (response.status === NOT_FOUND) {
      await using missing = response;
      // A bucket that is not there has the same status.
      if (xmlText(await textOf(missing), 'Code') === 'NoSuchBucket') throw unavailable(this.name, 'bucket');
      return undefined;
    }
    if (isPart && response.status === 200) {
      await response[Symbol.asyncDispose]();
      throw unavailable(this.name, 'no_ranges');
    }
    return response;
  }
}

/** A body that goes on with a new request where the connection broke. */
class S3Stream implements ObjectStream {
  readonly #client: S3Client;
  readonly #reopen: (skip: number) => Promise<S3Response | undefined>;
  #response: S3Response;

  constructor(client: S3Client, first: S3Response, reopen: (skip: number) => Promise<S3Response | undefined>) {
    this.#client = client;
    this.#response = first;
    this.#reopen = reopen;
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<Uint8Array> {
    if (this.#response.status === RANGE_NOT_SATISFIABLE) return;
    let received = 0;
    let parts = this.#response.body()[Symbol.asyncIterator]();
    let isBroken = false;
    for (;;) {
      const next = await this.#client.attempting(undefined, async () => {
        if (isBroken) parts = await this.#again(received);
        isBroken = true;
        const result = await parts.next();
        isBroken = false;
        return result;
      });
      if (next.done === true) return;
      received += next.value.length;
      yield next.value;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    await this.#response[Symbol.asyncDispose]();
  }

  async #again(received: number): Promise<AsyncIterator<Uint8Array>> {
    await this.#response[Symbol.asyncDispose]();
    const response = await this.#reopen(received);
    if (response === undefined) throw unavailable(this.#client.name, 'removed');
    this.#response = response;
    return response.status === RANGE_NOT_SATISFIABLE ? nothing() : response.body()[Symbol.asyncIterator]();
  }
}

async function* nothing(): AsyncGenerator<Uint8Array> {}
