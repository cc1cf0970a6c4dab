import { FileEntrySchema, FileListSchema, PlatformError, SignedLinkSchema, type FileEntry } from '@dsec/contract';
import { segment, type Api, type ApiRequest, type Query } from '../http/api.ts';
import { asBytes, type ByteSource } from '../http/byte-source.ts';
import type { CallOptions } from '../http/deadline.ts';
import { parserOf } from '../http/schema.ts';
import type { Platform } from '../platform/platform.ts';
import { readableOf, writableTo } from './byte-streams.ts';
import { Watch, type WatchOptions } from './watch.ts';

const parseEntry = parserOf<typeof FileEntrySchema, FileEntry>(FileEntrySchema, 'file entry');
const parseList = parserOf<typeof FileListSchema, FileList>(FileListSchema, 'list of files');
const parseLink = parserOf(SignedLinkSchema, 'signed link');

/** Largest file that `read` and `readText` put into memory; `readStream` has no bound. */
const MAX_READ_BYTES = 1_073_741_824;

export interface FileList {
  readonly entries: readonly FileEntry[];
  /** There is more than `limit`, or than the server has memory for now. */
  readonly truncated: boolean;
}

export interface FileOptions extends CallOptions {
  /** Whose rights apply, and who owns what is made: a name, a uid, `uid:gid` or `name:group`. @default that of the sandbox */
  readonly user?: string;
}

export interface ReadOptions extends FileOptions {
  /** First byte. @default 0 */
  readonly offset?: number;
  /** Most bytes. @default all */
  readonly length?: number;
}

export interface WriteOptions extends FileOptions {
  /** Permission bits of a new file; an existing one keeps its own. @default 0o644 */
  readonly mode?: number;
  /** Adds at the end instead of replacing. Not repeated when the connection breaks on the way. @default false */
  readonly append?: boolean;
}

/**
 * The files of a sandbox. Paths are absolute, or relative to `/`, and never lead out of the sandbox. Everything is done with
 * the rights of `user`.
 *
 * Errors thrown by all: `file_not_found`, `file_permission`, `not_directory`, `user_not_found`, `file_error`, `disk_full`,
 * `sandbox_ended`, and what every call may.
 */
export class Files {
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #platform: Platform;

  /** @internal Use `sandbox.files`. */
  constructor(api: Api, sandboxId: string, platform: Platform) {
    this.#api = api;
    this.#sandboxId = sandboxId;
    this.#platform = platform;
  }

  /**
   * The bytes of a file.
   * @throws PlatformError `is_directory`, `not_regular_file`; `request_too_large` beyond 1 GiB
   */
  async read(path: string, options: ReadOptions = {}): Promise<Uint8Array<ArrayBuffer>> {
    const { offset, length, user, ...call } = options;
    const request = this.#get('', `reading ${path}`, { path, user, offset, length });
    return this.#api.call(
      request,
      call,
      async (response) => {
        const chunks: Uint8Array<ArrayBuffer>[] = [];
        let size = 0;
        for await (const chunk of response.body) {
          size += chunk.length;
          if (size > MAX_READ_BYTES)
            throw new PlatformError(
              'request_too_large',
              `${path} is larger than ${MAX_READ_BYTES} bytes: use readStream`,
            );
          chunks.push(chunk);
        }
        return joined(chunks, size);
      },
      Infinity,
    );
  }

  /** The text of a file, as UTF-8; what is not UTF-8 shows as U+FFFD. Otherwise as `read`. */
  async readText(path: string, options: ReadOptions = {}): Promise<string> {
    return new TextDecoder('utf-8', { ignoreBOM: true }).decode(await this.read(path, options));
  }

  /** The bytes of a file as they come. `timeoutMs` is until the first; what is not taken holds the sandbox back. */
  async readStream(path: string, options: ReadOptions = {}): Promise<ReadableStream<Uint8Array<ArrayBuffer>>> {
    const { offset, length, user, ...call } = options;
    const request = this.#get('', `reading ${path}`, { path, user, offset, length });
    const response = await this.#api.call(request, call, (answer) => Promise.resolve(answer));
    return readableOf(response, request.what, options.signal);
  }

  /**
   * Writes a file whole: readers see the old content or the new, never a part. Parent directories are made, owned by `user`;
   * owner and mode of an existing file are kept.
   * @throws PlatformError `is_directory`
   */
  async write(path: string, data: ByteSource, options: WriteOptions = {}): Promise<FileEntry> {
    const { user, mode, append, ...call } = options;
    const request: ApiRequest = {
      method: 'PUT',
      path: this.#path(''),
      what: this.#what(`writing ${path}`),
      query: { path, user, mode, append },
      bytes: asBytes(data),
      repeatable: append === true ? 'unsent' : 'always',
    };
    return this.#api.json(request, parseEntry, call, Infinity);
  }

  /** A stream to write a file by; the file is there when closing it resolves, and is left as it was when it is aborted. */
  writeStream(path: string, options: WriteOptions = {}): WritableStream<Uint8Array<ArrayBuffer>> {
    return writableTo((data, signal) => this.write(path, data, { ...options, signal }), options.signal);
  }

  /** @throws PlatformError `file_not_found` */
  async stat(
    path: string,
    options: FileOptions & { /** Of a symlink: what it leads to. @default true */ readonly followLinks?: boolean } = {},
  ): Promise<FileEntry> {
    const { user, followLinks, ...call } = options;
    return this.#api.json(this.#get('/stat', `looking at ${path}`, { path, user, followLinks }), parseEntry, call);
  }

  /** Whether there is something at this path; a symlink that leads nowhere counts. */
  async exists(path: string, options: FileOptions = {}): Promise<boolean> {
    try {
      await this.stat(path, { ...options, followLinks: false });
      return true;
    } catch (error) {
      if (PlatformError.is(error) && (error.code === 'file_not_found' || error.code === 'not_directory')) return false;
      throw error;
    }
  }

  /** What is in a directory, down to `depth` levels (1 to 64, default 1). `truncated` when there is more than `limit`. */
  async list(
    path: string,
    options: FileOptions & { readonly depth?: number; readonly limit?: number } = {},
  ): Promise<FileList> {
    const { user, depth, limit, ...call } = options;
    return this.#api.json(this.#get('/list', `listing ${path}`, { path, user, depth, limit }), parseList, call);
  }

  /** Makes a directory. With `parents` (default true) also those above it, and one that exists is no error. */
  async mkdir(
    path: string,
    options: FileOptions & { readonly mode?: number; readonly parents?: boolean } = {},
  ): Promise<FileEntry> {
    const { user, mode, parents = true, ...call } = options;
    return this.#change('mkdir', `making ${path}`, { path, user, mode, parents }, call, parents);
  }

  /**
   * Removes a file, a symlink (not what it leads to), or a directory.
   * @throws PlatformError `directory_not_empty` without `recursive`
   */
  async remove(path: string, options: FileOptions & { readonly recursive?: boolean } = {}): Promise<void> {
    const { user, recursive, ...call } = options;
    const request: ApiRequest = {
      method: 'DELETE',
      path: this.#path(''),
      what: this.#what(`removing ${path}`),
      query: { path, user, recursive },
      repeatable: 'unsent',
    };
    await this.#api.done(request, call);
  }

  /** @throws PlatformError `file_exists` without `overwrite` */
  async move(
    from: string,
    to: string,
    options: FileOptions & { readonly overwrite?: boolean } = {},
  ): Promise<FileEntry> {
    const { user, overwrite, ...call } = options;
    return this.#change('move', `moving ${from}`, { from, to, user, overwrite }, call, false);
  }

  /** Sets the permission bits (up to 0o7777). */
  async chmod(path: string, mode: number, options: FileOptions = {}): Promise<FileEntry> {
    const { user, ...call } = options;
    return this.#change('change', `changing the mode of ${path}`, { path, mode, user }, call, true);
  }

  /** Sets the owner: a name, a uid, `uid:gid` or `name:group`. */
  async chown(path: string, owner: string, options: FileOptions = {}): Promise<FileEntry> {
    const { user, ...call } = options;
    return this.#change('change', `changing the owner of ${path}`, { path, owner, user }, call, true);
  }

  /** Makes a symlink at `path`; `target` is kept as it is written. */
  async symlink(path: string, target: string, options: FileOptions = {}): Promise<FileEntry> {
    const { user, ...call } = options;
    return this.#change('symlink', `linking ${path}`, { path, target, user }, call, false);
  }

  /**
   * Watches a directory or file. Resolves when events from now on are seen. Iterate over it; leaving the loop ends it. An
   * `overflow` event says that some were missed: look at the files themselves then.
   */
  async watch(path: string, options: WatchOptions = {}): Promise<Watch> {
    return Watch.open(this.#api, this.#sandboxId, path, options);
  }

  /**
   * Copies a directory of this machine into the sandbox: symlinks, permission bits, empty directories and dot files too. Node only.
   * @throws PlatformError `file_not_found` for the local directory; `invalid_argument` in a browser
   */
  async uploadDirectory(localPath: string, path: string, options: FileOptions = {}): Promise<void> {
    const { user, ...call } = options;
    const bytes = await this.#platform.packDirectory(localPath);
    await this.#api.done(
      {
        method: 'PUT',
        path: this.#path('/tree'),
        what: this.#what(`copying ${localPath} to ${path}`),
        query: { path, user },
        bytes,
        headers: { 'content-type': 'application/x-tar' },
        repeatable: 'never',
      },
      call,
      Infinity,
    );
  }

  /**
   * Copies a directory of the sandbox to this machine. What a hostile sandbox sends is unpacked below `localPath` and nowhere
   * else, without owners, devices or set-uid bits. Node only.
   * @throws PlatformError `archive_unsafe` for an entry that leads out of it; `invalid_argument` in a browser
   */
  async downloadDirectory(path: string, localPath: string, options: FileOptions = {}): Promise<void> {
    const { user, ...call } = options;
    const request: ApiRequest = {
      ...this.#get('/tree', `copying ${path} to ${localPath}`, { path, user }),
      repeatable: 'unsent',
    };
    await this.#api.call(
      request,
      call,
      (response) => this.#platform.unpackDirectory(response.body, localPath),
      Infinity,
    );
  }

  /** A link to one file that works without a key, for one operation, until it expires (at most 7 days). */
  async signedUrl(
    path: string,
    options: FileOptions & {
      readonly operation?: 'read' | 'write' /** @default 3600 */;
      readonly expiresInSeconds?: number;
    } = {},
  ): Promise<{ readonly url: string; readonly expiresAtMs: number }> {
    const { user, operation = 'read', expiresInSeconds = 3600, ...call } = options;
    const json = { path, operation, expiresInSeconds, ...(user === undefined ? {} : { user }) };
    const link = await this.#api.json(
      {
        method: 'POST',
        path: this.#path('/sign'),
        what: this.#what(`signing a link to ${path}`),
        json,
        repeatable: 'always',
      },
      parseLink,
      call,
    );
    return { url: new URL(link.url, this.#api.endpoint).href, expiresAtMs: link.expiresAtMs };
  }

  #change(
    route: string,
    doing: string,
    members: Readonly<Record<string, string | number | boolean | undefined>>,
    call: CallOptions,
    isIdempotent: boolean,
  ): Promise<FileEntry> {
    const json = Object.fromEntries(Object.entries(members).filter(([, member]) => member !== undefined));
    return this.#api.json(
      {
        method: 'POST',
        path: this.#path(`/${route}`),
        what: this.#what(doing),
        json,
        repeatable: isIdempotent ? 'always' : 'unsent',
      },
      parseEntry,
      call,
    );
  }

  #get(route: string, doing: string, query: Query): ApiRequest {
    return { method: 'GET', path: this.#path(route), what: this.#what(doing), query, repeatable: 'always' };
  }

  #path(route: string): string {
    return `/sandboxes/${segment(this.#sandboxId)}/files${route}`;
  }

  #what(doing: string): string {
    return `${doing} in sandbox ${this.#sandboxId}`;
  }
}

function joined(chunks: readonly Uint8Array<ArrayBuffer>[], size: number): Uint8Array<ArrayBuffer> {
  const only = chunks[0];
  if (only !== undefined && chunks.length === 1) return only;
  const whole = new Uint8Array(size);
  let at = 0;
  for (const chunk of chunks) {
    whole.set(chunk, at);
    at += chunk.length;
  }
  return whole;
}
