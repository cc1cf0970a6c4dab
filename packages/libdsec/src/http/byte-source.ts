/** Bytes to send: text is sent as UTF-8; streams are read as the other side takes them. */
export type ByteSource = string | Uint8Array<ArrayBuffer> | AsyncIterable<Uint8Array> | ReadableStream<Uint8Array>;

/** The form in which a request carries it. */
export function asBytes(source: ByteSource): string | Uint8Array<ArrayBuffer> | AsyncIterable<Uint8Array> {
  if (typeof source === 'string' || source instanceof Uint8Array || Symbol.asyncIterator in source) return source;
  return iterate(source);
}

/** Whether it can be sent again. */
export const isReplayable = (source: unknown): boolean => typeof source === 'string' || source instanceof Uint8Array;

/** Not every browser can iterate over its own streams. */
async function* iterate(stream: ReadableStream<Uint8Array>): AsyncGenerator<Uint8Array, void, undefined> {
  const reader = stream.getReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield value;
    }
  } finally {
    // After the end this does nothing; before it, the source learns that nobody reads on.
    await reader.cancel();
  }
}
