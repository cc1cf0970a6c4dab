import { PlatformError } from '@dsec/contract';
import type { TransportResponse } from '../http/transport.ts';

/** The body of an answer as a web stream; `signal` ends it with `cancelled`. */
export function readableOf(
  response: TransportResponse,
  what: string,
  signal: AbortSignal | undefined,
): ReadableStream<Uint8Array<ArrayBuffer>> {
  const iterator = response.body[Symbol.asyncIterator]();
  let onAbort: (() => void) | undefined;
  const release = (): void => {
    if (onAbort !== undefined) signal?.removeEventListener('abort', onAbort);
  };
  return new ReadableStream<Uint8Array<ArrayBuffer>>(
    {
      start(controller) {
        onAbort = () => {
          controller.error(
            new PlatformError('cancelled', `${what} was cancelled by the caller`, { cause: signal?.reason }),
          );
          response.cancel();
        };
        if (signal?.aborted === true) onAbort();
        else signal?.addEventListener('abort', onAbort, { once: true });
      },
      async pull(controller) {
        try {
          const next = await iterator.next();
          if (next.done === true) {
            release();
            controller.close();
          } else {
            controller.enqueue(next.value);
          }
        } catch (error) {
          release();
          // Aborted: the stream has its error already.
          if (signal?.aborted !== true) controller.error(error);
        }
      },
      cancel() {
        release();
        response.cancel();
      },
    },
    { highWaterMark: 0 },
  );
}

/**
 * A web stream whose chunks go to `send`, which resolves when all has been taken. Closing the stream resolves then; aborting
 * it, or `signal`, aborts the signal that `send` got.
 */
export function writableTo(
  send: (data: AsyncIterable<Uint8Array>, signal: AbortSignal) => Promise<unknown>,
  signal: AbortSignal | undefined,
): WritableStream<Uint8Array<ArrayBuffer>> {
  const passage = new TransformStream<Uint8Array<ArrayBuffer>, Uint8Array<ArrayBuffer>>();
  const writer = passage.writable.getWriter();
  const lifetime = new AbortController();
  const onAbort = (): void => lifetime.abort(signal?.reason);
  if (signal?.aborted === true) onAbort();
  else signal?.addEventListener('abort', onAbort, { once: true });
  const sent = send(chunksOf(passage.readable), lifetime.signal).finally(() =>
    signal?.removeEventListener('abort', onAbort),
  );
  // Told to the next write, or to close.
  sent.catch((error: unknown) => writer.abort(error).catch(() => undefined));
  return new WritableStream<Uint8Array<ArrayBuffer>>({
    async write(chunk) {
      await writer.ready;
      await writer.write(chunk);
    },
    async close() {
      await writer.close();
      await sent;
    },
    async abort(reason) {
      lifetime.abort(reason);
      await writer.abort(reason);
    },
  });
}

async function* chunksOf(stream: ReadableStream<Uint8Array<ArrayBuffer>>): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return;
    yield value;
  }
}
