import { KEEPALIVE_MS, PlatformError, type FileEvent } from '@dsec/contract';
import { segment, type Api } from '../http/api.ts';
import { Cancellation, onAbort } from '../http/cancellation.ts';
import { cancelled, Deadline, type CallOptions } from '../http/deadline.ts';
import { errorOfLine } from '../http/error-body.ts';
import { ndjson } from '../http/ndjson.ts';
import { isRepeatable, Retries } from '../http/retry.ts';

/** How long it may take to begin, unless the caller says. */
const START_MS = 3 * KEEPALIVE_MS;

export interface WatchOptions extends CallOptions {
  /** @default that of the sandbox */
  readonly user?: string;
  /** Everything below the directory too, also what is made later. @default false */
  readonly recursive?: boolean;
}

/** What happened to a file; or `overflow`: something did, but was not seen. */
export type WatchEvent = FileEvent | { readonly kind: 'overflow' };

/** Events of a directory. Iterate once; leaving the loop, or disposing it, ends it. */
export class Watch implements AsyncIterable<WatchEvent>, AsyncDisposable {
  readonly #api: Api;
  readonly #connect: (cancellation: Cancellation) => Promise<AsyncGenerator<unknown, void, undefined>>;
  readonly #lifetime = new Cancellation();
  readonly #release: () => void;
  #lines: AsyncGenerator<unknown, void, undefined>;

  private constructor(
    api: Api,
    connect: (cancellation: Cancellation) => Promise<AsyncGenerator<unknown, void, undefined>>,
    first: {
      readonly lines: AsyncGenerator<unknown, void, undefined>;
      readonly lifetime: Cancellation;
      readonly release: () => void;
    },
  ) {
    this.#api = api;
    this.#connect = connect;
    this.#lines = first.lines;
    this.#lifetime = first.lifetime;
    this.#release = first.release;
  }

  /** @internal Use `files.watch`. */
  static async open(api: Api, sandboxId: string, path: string, options: WatchOptions): Promise<Watch> {
    const { user, recursive, signal } = options;
    const what = `watching ${path} in sandbox ${sandboxId}`;
    const connect = async (lifetime: Cancellation): Promise<AsyncGenerator<unknown, void, undefined>> => {
      const response = await api.send(
        {
          method: 'GET',
          path: `/sandboxes/${segment(sandboxId)}/files/watch`,
          what,
          query: { path, user, recursive },
          repeatable: 'always',
        },
        lifetime,
      );
      const lines = ndjson(response.body, what);
      await untilReady(lines, what);
      return lines;
    };
    const lifetime = new Cancellation();
    const release = onAbort(signal, () => lifetime.cancel(cancelled(what, signal?.reason)));
    using start = new Deadline(api.timing, what, { timeoutMs: options.timeoutMs }, START_MS);
    start.onCancel(() => lifetime.cancel(start.reason));
    try {
      const lines = await repeated(api, lifetime, connect);
      return new Watch(api, connect, { lines, lifetime, release });
    } catch (error) {
      release();
      throw error;
    }
  }

  async *[Symbol.asyncIterator](): AsyncGenerator<WatchEvent, void, undefined> {
    try {
      for (;;) {
        try {
          for await (const line of this.#lines) yield* eventsOf(line);
          throw new PlatformError('connection_lost', 'the stream of a watch ended');
        } catch (error) {
          if (!isRepeatable(error, 'always')) throw error;
        }
        this.#lines = await repeated(this.#api, this.#lifetime, this.#connect);
        // Whatever happened in between was not seen.
        yield { kind: 'overflow' };
      }
    } finally {
      await this[Symbol.asyncDispose]();
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#release();
    this.#lifetime.cancel(new PlatformError('cancelled', 'the watch was closed'));
    await this.#lines.return();
  }
}

async function repeated<T>(
  api: Api,
  cancellation: Cancellation,
  attempt: (cancellation: Cancellation) => Promise<T>,
): Promise<T> {
  const retries = new Retries(api.timing, api.retry);
  for (;;) {
    try {
      return await attempt(cancellation);
    } catch (error) {
      if (!isRepeatable(error, 'always') || (error.code === 'server_unreachable' && !api.hasAnswered)) throw error;
      if (!(await retries.next(cancellation))) throw error;
    }
  }
}

async function untilReady(lines: AsyncGenerator<unknown, void, undefined>, what: string): Promise<void> {
  const { done, value } = await lines.next();
  if (done === true) throw new PlatformError('connection_lost', `${what} ended at once`);
  if (typeof value === 'object' && value !== null && 'ready' in value) return;
  throw new PlatformError('protocol_error', `${what} began with something else than "ready"`);
}

const kinds: ReadonlySet<unknown> = new Set(['create', 'modify', 'remove', 'move', 'attrib']);

function* eventsOf(line: unknown): Generator<WatchEvent, void, undefined> {
  if (typeof line !== 'object' || line === null)
    throw new PlatformError('protocol_error', 'a line of a watch is no object');
  if ('overflow' in line) yield { kind: 'overflow' };
  if ('error' in line) throw errorOfLine(line.error, 'the watch');
  if (!('events' in line) || !Array.isArray(line.events)) return;
  for (const event of line.events as readonly unknown[]) {
    if (!isFileEvent(event)) throw new PlatformError('protocol_error', 'a watch told of an event of an unknown form');
    yield event;
  }
}

function isFileEvent(event: unknown): event is FileEvent {
  if (typeof event !== 'object' || event === null || !('kind' in event) || !('path' in event)) return false;
  if (!kinds.has(event.kind) || typeof event.path !== 'string') return false;
  return !('to' in event) || typeof event.to === 'string';
}
