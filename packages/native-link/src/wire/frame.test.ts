import { PlatformError } from '@dsec/contract';
import fc from 'fast-check';
import { expect, test } from 'vitest';

import type { RawFrame } from '../../tests/raw-peer.ts';
import { costOf, encodeFrame, FrameDecoder, FrameType, MAX_DATA, MIN_COST } from '@dsec/wire';

/** Long enough to cross chunks in every way, short enough to be quick. */
const MAX_TEST_PAYLOAD = 3_000;

const frame = fc
  .record({
    type: fc.constantFrom(...Object.values(FrameType)),
    channel: fc.nat(255),
    stream: fc.integer({ min: 1, max: 0xffff_ffff }),
    payload: fc.uint8Array({ minLength: 1, maxLength: MAX_TEST_PAYLOAD }),
  })
  .map(({ type, channel, stream, payload }): RawFrame => {
    const isOfConnection = type === FrameType.hello || type >= FrameType.ping;
    const isEmpty = type === FrameType.end || type === FrameType.reset;
    const length = type === FrameType.window ? 4 : type >= FrameType.ping ? 8 : payload.length;
    return {
      type,
      channel: type === FrameType.data ? channel : 0,
      stream: isOfConnection ? 0 : stream,
      payload: isEmpty ? Buffer.alloc(0) : Buffer.concat([payload, Buffer.alloc(8)]).subarray(0, length),
    };
  });

const cut = (bytes: Buffer, sizes: readonly number[]): Buffer[] => {
  const chunks: Buffer[] = [];
  let at = 0;
  for (let index = 0; at < bytes.length; index += 1) {
    const size = sizes.length === 0 ? bytes.length : (sizes[index % sizes.length] ?? 1);
    // Chunks of their own, as sockets give them, so that a decoder that writes outside is seen.
    chunks.push(Buffer.from(bytes.subarray(at, at + size)));
    at += size;
  }
  return chunks;
};

const sizes = fc.array(fc.oneof(fc.integer({ min: 1, max: 30 }), fc.integer({ min: 1, max: 5_000 })), {
  maxLength: 20,
});

interface Decoded {
  readonly frames: RawFrame[];
  readonly error: string | undefined;
}

const decode = (chunks: readonly Buffer[]): Decoded => {
  const frames: RawFrame[] = [];
  const decoder = new FrameDecoder({
    frame: (type, channel, stream, chunk, start, end) => {
      frames.push({ type, channel, stream, payload: chunk.subarray(start, end) });
    },
  });
  try {
    for (const chunk of chunks) decoder.push(chunk);
  } catch (error) {
    if (!PlatformError.is(error)) throw error;
    return { frames, error: String(error.details.kind) };
  }
  return { frames, error: undefined };
};

/** Puts the pieces of DATA together again; only a test that knows the frames can tell pieces from frames. */
const matches = (decoded: readonly RawFrame[], wanted: readonly RawFrame[]): boolean => {
  let at = 0;
  for (const { payload, ...head } of wanted) {
    const pieces: Buffer[] = [];
    let have = 0;
    let cost = 0;
    do {
      const piece = decoded[at];
      at += 1;
      if (piece?.type !== head.type || piece.channel !== head.channel || piece.stream !== head.stream) return false;
      pieces.push(piece.payload);
      have += piece.payload.length;
      cost += costOf(piece.payload.length);
    } while (have < payload.length && head.type === FrameType.data);
    if (!Buffer.concat(pieces).equals(payload)) return false;
    if (head.type === FrameType.data && cost !== costOf(payload.length)) return false;
  }
  return at === decoded.length;
};

test('frames decode to what was encoded, however the bytes are cut, and pieces of data cost what the frame does', () => {
  fc.assert(
    fc.property(fc.array(frame, { maxLength: 12 }), sizes, (frames, cuts) => {
      const bytes = Buffer.concat(
        frames.map((item) => encodeFrame(item.type, item.channel, item.stream, item.payload)),
      );
      const { frames: decoded, error } = decode(cut(bytes, cuts));
      expect(error).toBeUndefined();
      expect(matches(decoded, frames)).toBe(true);
    }),
    { numRuns: 300 },
  );
});

test('any bytes decode the same way however they are cut, and what decodes is what was sent', () => {
  const hostile = fc
    .array(
      fc.oneof(
        fc.uint8Array({ maxLength: 40 }).map((bytes) => Buffer.from(bytes)),
        frame.map((item) => encodeFrame(item.type, item.channel, item.stream, item.payload)),
        fc.tuple(frame, fc.nat(), fc.nat(255)).map(([item, at, value]) => {
          const bytes = encodeFrame(item.type, item.channel, item.stream, item.payload);
          bytes[at % bytes.length] = value;
          return bytes;
        }),
      ),
      { maxLength: 10 },
    )
    .map((parts) => Buffer.concat(parts));
  fc.assert(
    fc.property(hostile, sizes, (bytes, cuts) => {
      const whole = decode([bytes]);
      const pieces = decode(cut(bytes, cuts));
      expect(pieces.error).toBe(whole.error);
      const encoded = Buffer.concat(
        whole.frames.map((item) => encodeFrame(item.type, item.channel, item.stream, item.payload)),
      );
      const isDataLeft = whole.frames.at(-1)?.type === FrameType.data;
      // The last frame may be a piece of DATA, whose header says more.
      if (!isDataLeft) expect(bytes.subarray(0, encoded.length).equals(encoded)).toBe(true);
      const payloads = (decoded: Decoded): string =>
        Buffer.concat(
          decoded.frames.filter(({ type }) => type === FrameType.data).map(({ payload }) => payload),
        ).toString('hex');
      const shorter = Math.min(payloads(whole).length, payloads(pieces).length);
      expect(payloads(pieces).slice(0, shorter)).toBe(payloads(whole).slice(0, shorter));
    }),
    { numRuns: 500 },
  );
});

test('data passes through in pieces of at least the least cost, without a copy', () => {
  const payload = Buffer.alloc(MAX_DATA, 7);
  const bytes = encodeFrame(FrameType.data, 1, 1, payload);
  for (const first of [1, 11, 12, 13, 75, 76, 77, 140, 1_000, 65_483, 65_484, 65_547]) {
    const chunks = [Buffer.from(bytes.subarray(0, first)), Buffer.from(bytes.subarray(first))];
    const { frames } = decode(chunks);
    expect(frames.every((piece) => piece.payload.length >= MIN_COST)).toBe(true);
    expect(Buffer.concat(frames.map((piece) => piece.payload)).equals(payload)).toBe(true);
    const isCopied = frames.map((piece) => chunks.every((chunk) => chunk.buffer !== piece.payload.buffer));
    // What is collected into a copy is a short piece, except when the chunk ends right behind the header.
    if (first >= 76 && first < 65_484) expect(isCopied).not.toContain(true);
  }
});

test('a length that is only claimed costs no memory', () => {
  const decoder = new FrameDecoder({ frame: () => expect.unreachable() });
  const header = Buffer.from('00004000020000000100000020', 'hex');
  const before = process.memoryUsage().arrayBuffers;
  decoder.push(header);
  expect(process.memoryUsage().arrayBuffers - before).toBeLessThan(1_000_000);
});
