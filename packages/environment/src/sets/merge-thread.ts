/** The thread that merges layers, seen from the event loop. */
import { Worker } from 'node:worker_threads';
import { PlatformError } from '@dsec/contract';
import type { MergeAnswer, MergeRequest } from './merge-worker.ts';
import type { EnsuredSet, SetDirectories } from './write-set.ts';

/** A tree of a million files is about half a gigabyte, and is garbage when it is written. */
const HEAP = { maxOldGenerationSizeMb: 4096, maxYoungGenerationSizeMb: 64 } as const;

/** What makes sets. */
export interface SetMerger {
  /** @see ensureSet */
  ensure(layers: readonly string[], options?: { readonly isForced?: boolean }): Promise<EnsuredSet>;
}

export interface MergeThreadOptions {
  /**
   * Hears that the thread has ended and cannot be started again, as in a process that may no longer read its own modules: only another process can
   * merge then. Default: each merge fails.
   */
  readonly onLost?: ((error: PlatformError) => void) | undefined;
  /** @internal For tests. */
  readonly module?: URL;
}

const MODULE = new URL('./merge-worker.ts', import.meta.url);

export class MergeThread implements SetMerger, AsyncDisposable {
  readonly #directories: SetDirectories;
  readonly #options: MergeThreadOptions;
  readonly #pending = new Map<number, PromiseWithResolvers<EnsuredSet>>();
  #worker: Worker | undefined;
  #nextId = 1;
  #isClosed = false;
  /** The thread that runs, or ran last, has loaded its modules. */
  #isReady = false;

  private constructor(directories: SetDirectories, options: MergeThreadOptions) {
    this.#directories = directories;
    this.#options = options;
  }

  /** Resolves when the thread has loaded its modules. */
  static async start(directories: SetDirectories, options: MergeThreadOptions = {}): Promise<MergeThread> {
    const thread = new MergeThread(directories, options);
    const worker = thread.#start();
    const { promise, resolve, reject } = Promise.withResolvers<unknown>();
    worker.once('message', resolve);
    worker.once('error', reject);
    await promise;
    worker.removeListener('error', reject);
    return thread;
  }

  ensure(layers: readonly string[], options: { readonly isForced?: boolean } = {}): Promise<EnsuredSet> {
    if (this.#isClosed) return Promise.reject(new PlatformError('unavailable', 'the edge is stopping'));
    // One that died, of too large a tree, has taken only its own merges with it.
    const worker = this.#worker ?? this.#start();
    const id = this.#nextId++;
    const pending = Promise.withResolvers<EnsuredSet>();
    this.#pending.set(id, pending);
    const request: MergeRequest = {
      id,
      directories: this.#directories,
      layers,
      isForced: options.isForced === true,
    };
    worker.postMessage(request);
    return pending.promise;
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.#isClosed = true;
    // What it was writing is a draft, which the next start removes.
    await this.#worker?.terminate();
  }

  #start(): Worker {
    const worker = new Worker(this.#options.module ?? MODULE, { name: 'merge', resourceLimits: HEAP });
    this.#worker = worker;
    this.#isReady = false;
    worker.unref();
    worker.on('message', (answer: MergeAnswer) => this.#answered(answer));
    worker.once('error', (cause) => this.#lost(worker, cause));
    worker.once('exit', () => this.#lost(worker));
    return worker;
  }

  #answered(answer: MergeAnswer): void {
    if (answer.type === 'ready') {
      this.#isReady = true;
      return;
    }
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    if (answer.type === 'made') {
      pending?.resolve(answer.made);
      return;
    }
    const { code, message, details, cause } = answer;
    pending?.reject(new PlatformError(code, message, { details, cause: new Error(cause) }));
  }

  #lost(worker: Worker, cause?: unknown): void {
    if (this.#worker !== worker) return;
    this.#worker = undefined;
    const error = new PlatformError('internal', 'the thread that merges layers has ended', { cause });
    for (const { reject } of this.#pending.values()) reject(error);
    this.#pending.clear();
    if (!this.#isReady && !this.#isClosed) this.#options.onLost?.(error);
  }
}
