/** Bulk creates and stops: one message for each sandbox, in the order in which they are ready. */
import { PlatformError, type BulkItem, type SandboxInfo } from '@dsec/contract';
import type { WireServerStream } from '@dsec/native-link';
import type { CreateRequest, Creator } from './creator.ts';
import type { Lifecycle } from './lifecycle.ts';
import type { Sandbox } from './sandbox.ts';

/** Creates of one bulk that are under way at the same time; the rest has not begun and may still be cancelled. */
const CREATES_UNDER_WAY = 32;

export interface BulkCreateOptions {
  readonly creator: Creator;
  /** What each of them is made from; the claim is completed with its index. */
  readonly template: Omit<CreateRequest, 'claim'>;
  readonly count: number;
  readonly idempotency: { readonly key: string; readonly fingerprint: string } | undefined;
}

/** Creates `count` like sandboxes. A client that goes away cancels what has not begun; what has begun is kept. */
export async function createMany(
  options: BulkCreateOptions,
  stream: WireServerStream,
): Promise<{ created: number; failed: number }> {
  const { creator, template, count, idempotency } = options;
  const items = new ItemWriter(stream);
  let next = 0;
  const worker = async (): Promise<void> => {
    while (next < count && !stream.signal.aborted) {
      const index = next++;
      const claim = idempotency === undefined ? undefined : { ...idempotency, index, count };
      await items.settle(index, () => created(creator.begin({ ...template, claim })));
    }
  };
  await Promise.all(Array.from({ length: Math.min(count, CREATES_UNDER_WAY) }, worker));
  return { created: items.done, failed: items.failed };
}

/** Waits for a create that may be under way. */
export const created = (sandbox: Sandbox, signal?: AbortSignal): Promise<SandboxInfo> =>
  sandbox.creation === undefined ? Promise.resolve(sandbox.info()) : sandbox.creation.join(signal);

/** Stops them all at once; `undefined` stands for an id that is unknown. */
export async function stopMany(
  lifecycle: Lifecycle,
  targets: readonly (Sandbox | PlatformError)[],
  stream: WireServerStream,
): Promise<{ stopped: number; failed: number }> {
  const items = new ItemWriter(stream);
  await Promise.all(
    targets.map((target, index) =>
      items.settle(index, () => (PlatformError.is(target) ? Promise.reject(target) : lifecycle.stop(target))),
    ),
  );
  return { stopped: items.done, failed: items.failed };
}

/** Writes one item after the other, as fast as the client takes them. */
class ItemWriter {
  readonly #stream: WireServerStream;
  #last: Promise<void> = Promise.resolve();
  done = 0;
  failed = 0;

  constructor(stream: WireServerStream) {
    this.#stream = stream;
  }

  /** Runs the work of one item and writes how it went. A client that has gone is no failure of the item. */
  async settle(index: number, work: () => Promise<SandboxInfo>): Promise<void> {
    let item: BulkItem;
    try {
      item = { index, sandbox: await work() };
      this.done++;
    } catch (error) {
      if (!PlatformError.is(error)) throw error;
      item = { index, error: error.toWire() };
      this.failed++;
    }
    this.#last = this.#last.then(() => this.#write(item));
    await this.#last;
  }

  /** Never rejects: a client that has gone misses nothing. */
  async #write(item: BulkItem): Promise<void> {
    try {
      await this.#stream.message(item);
    } catch (error) {
      const isTooLarge = PlatformError.is(error) && error.code === 'request_too_large';
      // Metadata is all that can be large, and who made or stops the sandbox knows it.
      if (isTooLarge && 'sandbox' in item)
        await this.#write({ index: item.index, sandbox: { ...item.sandbox, metadata: {} } });
    }
  }
}
