import { ManualClock } from '@dsec/kit';
import fc from 'fast-check';
import { describe, expect, it } from 'vitest';
import { ChunkMap } from './chunk-map.ts';
import { parseDigest } from './digest.ts';
import { traceKey } from './layer-keys.ts';
import { decodeTrace, MAX_TRACE_CHUNKS, putTrace, readTrace } from './layer-trace.ts';
import { MemoryStore } from './memory-store.fixture.ts';

const layer = parseDigest('ab'.repeat(32));
const CHUNKS = 10;
/** A map of holes. */
const map = ((): ChunkMap => {
  const bytes = Buffer.alloc(32 + CHUNKS * 48);
  bytes.write('DSECCHNK', 'latin1');
  bytes.writeUInt32LE(1, 8);
  bytes.writeUInt32LE(262_144, 12);
  bytes.writeBigUInt64LE(BigInt(CHUNKS * 262_144), 16);
  bytes.writeUInt32LE(CHUNKS, 24);
  return ChunkMap.decode(bytes, layer);
})();

describe('the trace of a layer in the store', () => {
  it('comes back in its order, each chunk once, without those that the layer does not have', async () => {
    const store = new MemoryStore(new ManualClock());
    await putTrace(store, layer, { map, trace: [7, 3, 7, 0, 99] });
    expect(await readTrace(store, layer, map)).toEqual([7, 3, 0]);
  });

  it('is empty where there is none, or one of another size or form', async () => {
    const store = new MemoryStore(new ManualClock());
    expect(await readTrace(store, layer, map)).toEqual([]);
    await putTrace(store, layer, { map, trace: [1] });
    const stored = Buffer.from((await store.get(traceKey(layer)).then(bytesOf)) ?? []);
    for (const [offset, byte] of [
      [0, 0x41],
      [8, 2],
      [12, CHUNKS + 1],
    ] as const) {
      const damaged = Buffer.from(stored);
      damaged[offset] = byte;
      await store.put(traceKey(layer), damaged);
      expect(await readTrace(store, layer, map)).toEqual([]);
    }
    await store.put(traceKey(layer), Buffer.concat([stored, Buffer.alloc(4 * MAX_TRACE_CHUNKS)]));
    expect(await readTrace(store, layer, map)).toEqual([]);
  });

  it('of any bytes names chunks of the layer, each once (fuzz)', () => {
    fc.assert(
      fc.property(fc.uint8Array({ maxLength: 200 }), fc.boolean(), (bytes, isOurs) => {
        const input = Buffer.concat([
          isOurs ? Buffer.from('DSECTRAC\x01\0\0\0\x0a\0\0\0', 'latin1') : Buffer.alloc(0),
          bytes,
        ]);
        const chunks = decodeTrace(input, CHUNKS);
        expect(new Set(chunks).size).toBe(chunks.length);
        for (const chunk of chunks) expect(chunk).toBeLessThan(CHUNKS);
      }),
    );
  });
});

async function bytesOf(stream: AsyncIterable<Uint8Array> | undefined): Promise<Buffer | undefined> {
  if (stream === undefined) return undefined;
  const parts: Uint8Array[] = [];
  for await (const part of stream) parts.push(part);
  return Buffer.concat(parts);
}
