/** Layers of a few chunks in a directory, and stores that count, refuse and die. */
import { writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { SeededRandom } from '@dsec/kit';
import { BLOCK_BYTES, CHUNK_BYTES } from './layer-format.ts';
import type { LayerFiles } from './layer-source.ts';
import type { ListOptions, ObjectBody, ObjectStore, PutOptions, ReadOptions, StoreOptions } from './object-store.ts';

/** A chunk of text of this number; 0 is a hole; negative does not compress. */
export function chunkOf(number: number, bytes = CHUNK_BYTES): Buffer {
  if (number === 0) return Buffer.alloc(bytes);
  if (number > 0) return Buffer.alloc(bytes, `chunk ${number}\n`);
  const noise = new SeededRandom(-number).bytes(65_521);
  const chunk = Buffer.alloc(bytes);
  for (let at = 0; at < bytes; at += noise.length) noise.copy(chunk, at);
  // One stretch of noise again and again would compress: each one is turned by its place.
  for (let at = 0; at + 4 <= bytes; at += 4)
    chunk.writeUInt32LE((chunk.readUInt32LE(at) ^ Math.imul(at + 1, 0x9e3779b1)) >>> 0, at);
  return chunk;
}

/** Writes the files of a layer: these chunks, the last one of two blocks only. */
export async function layerFiles(
  directory: string,
  name: string,
  chunks: readonly number[],
): Promise<LayerFiles & { readonly data: Buffer; readonly metadata: Buffer }> {
  const metadata = Buffer.from(`metadata of ${name} `.repeat(1000));
  const metadataPath = join(directory, `${name}.erofs`);
  await writeFile(metadataPath, metadata);
  const data = Buffer.concat(
    chunks.map((number, index) => chunkOf(number, index === chunks.length - 1 ? 2 * BLOCK_BYTES : CHUNK_BYTES)),
  );
  const dataPath = join(directory, `${name}.data`);
  await writeFile(dataPath, data);
  return { metadataPath, dataPath, data, metadata };
}

/** A store that counts what is sent and that may die: once `putsLeft` is used up, everything fails, as after a kill. */
export class MortalStore implements ObjectStore {
  readonly name: string;
  readonly #inner: ObjectStore;
  /** Keys that were written, in order. */
  readonly written: string[] = [];
  sentBytes = 0;
  changesLeft = Number.POSITIVE_INFINITY;
  /** Runs before a change. */
  onChange: (key: string) => Promise<void> = () => Promise.resolve();

  constructor(inner: ObjectStore) {
    this.#inner = inner;
    this.name = inner.name;
  }

  async put(key: string, body: ObjectBody, options?: PutOptions): Promise<'written' | 'present'> {
    await this.#change(key);
    const outcome = await this.#inner.put(key, this.#counted(body), options);
    if (outcome === 'written') {
      this.written.push(key);
      if (body instanceof Uint8Array) this.sentBytes += body.length;
    }
    return outcome;
  }

  get(key: string, options?: ReadOptions): ReturnType<ObjectStore['get']> {
    this.#live();
    return this.#inner.get(key, options);
  }

  head(key: string, options?: StoreOptions): ReturnType<ObjectStore['head']> {
    this.#live();
    return this.#inner.head(key, options);
  }

  list(prefix: string, options?: ListOptions): ReturnType<ObjectStore['list']> {
    this.#live();
    return this.#inner.list(prefix, options);
  }

  async delete(key: string, options?: StoreOptions): Promise<void> {
    await this.#change(key);
    await this.#inner.delete(key, options);
  }

  removeUnfinished(beforeMs: number, options?: StoreOptions): Promise<number> {
    this.#live();
    return this.#inner.removeUnfinished(beforeMs, options);
  }

  #live(): void {
    if (this.changesLeft <= 0) throw new Killed();
  }

  async #change(key: string): Promise<void> {
    this.#live();
    this.changesLeft--;
    await this.onChange(key);
  }

  #counted(body: ObjectBody): ObjectBody {
    if (body instanceof Uint8Array) return body;
    const count = (length: number): void => void (this.sentBytes += length);
    return (async function* () {
      for await (const part of body) {
        count(part.length);
        yield part;
      }
    })();
  }
}

export class Killed extends Error {
  constructor() {
    super('killed');
  }
}
