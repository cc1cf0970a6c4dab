import { createHash, randomBytes } from 'node:crypto';

const BLOCK_BYTES = 1024 * 1024;

/** Any amount of bytes that compress badly and repeat nowhere, made as they are read. */
export class BytePattern {
  readonly #block = randomBytes(BLOCK_BYTES);
  readonly sizeBytes: number;

  constructor(sizeBytes: number) {
    this.sizeBytes = sizeBytes;
  }

  async *chunks(): AsyncGenerator<Uint8Array> {
    for (let at = 0; at < this.sizeBytes; at += BLOCK_BYTES) {
      const chunk = Uint8Array.from(this.#block);
      new DataView(chunk.buffer).setBigUint64(0, BigInt(at));
      yield await Promise.resolve(chunk.subarray(0, Math.min(BLOCK_BYTES, this.sizeBytes - at)));
    }
  }

  async sha256(): Promise<string> {
    return sha256Of(this.chunks());
  }
}

export async function sha256Of(chunks: AsyncIterable<Uint8Array>): Promise<string> {
  const hash = createHash('sha256');
  for await (const chunk of chunks) hash.update(chunk);
  return hash.digest('hex');
}
