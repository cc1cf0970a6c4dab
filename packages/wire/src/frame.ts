/**
 * Frames of the wire protocol (docs/wire.md): a header of 12 bytes and a payload whose length is checked before any of it is kept.
 */
import { type ProtocolErrorKind, protocolError } from './protocol-error.ts';

export const HEADER_LENGTH = 12;
/** Payload bytes of DATA, MESSAGE and every other frame but OPEN and CLOSE. */
export const MAX_DATA = 65_536;
/** Payload bytes of OPEN and CLOSE. */
export const MAX_CONTROL = 4 * 1024 * 1024;
/** Credit that both sides of a stream start with. */
export const INITIAL_WINDOW = 262_144;
/** Greatest credit that grants may add up to. */
export const MAX_WINDOW = 16 * 1024 * 1024;
/** What a DATA or MESSAGE frame costs at least, so that credit also bounds the number of frames that wait. */
export const MIN_COST = 64;
/** Streams that may be live on one connection, unless the server says less. */
export const MAX_STREAMS = 1_024;
export const MAX_STREAM_ID = 0xffff_ffff;

export const FrameType = {
  hello: 1,
  open: 2,
  data: 3,
  message: 4,
  end: 5,
  close: 6,
  reset: 7,
  window: 8,
  ping: 9,
  pong: 10,
} as const;

/** Least and greatest payload length by frame type; index 0 is no type. */
const LEAST_LENGTH = [0, 1, 1, 1, 1, 0, 1, 0, 4, 8, 8] as const;
const GREATEST_LENGTH = [0, MAX_DATA, MAX_CONTROL, MAX_DATA, MAX_DATA, 0, MAX_CONTROL, 0, 4, 8, 8] as const;

/** First memory for a payload that arrives in pieces; it grows with what really came, not with what the header claims. */
const FIRST_BODY = MAX_DATA;

export const costOf = (length: number): number => (length < MIN_COST ? MIN_COST : length);

export const writeHeader = (
  target: Buffer,
  at: number,
  type: number,
  channel: number,
  stream: number,
  length: number,
): void => {
  target.writeUInt32LE(length, at);
  target[at + 4] = type;
  target[at + 5] = channel;
  target[at + 6] = 0;
  target[at + 7] = 0;
  target.writeUInt32LE(stream, at + 8);
};

/** One frame as a buffer of its own. The connection does not use it: it writes into shared memory. */
export const encodeFrame = (type: number, channel: number, stream: number, payload: Uint8Array): Buffer => {
  const frame = Buffer.allocUnsafe(HEADER_LENGTH + payload.length);
  writeHeader(frame, 0, type, channel, stream, payload.length);
  frame.set(payload, HEADER_LENGTH);
  return frame;
};

/**
 * Takes frames from a decoder. The payload is `chunk[start..end)`, which the sink may keep: the decoder never writes there again. A DATA frame
 * that arrives in pieces may come as several, each of at least `MIN_COST` bytes, so that their costs add up to that of the frame.
 */
export interface FrameSink {
  frame(type: number, channel: number, stream: number, chunk: Buffer, start: number, end: number): void;
}

/** Cuts chunks of a byte stream into frames, without copying payloads that lie within a chunk. After an error it must not be used again. */
export class FrameDecoder {
  readonly #sink: FrameSink;
  #type = 0;
  #channel = 0;
  #stream = 0;
  #length = 0;
  /** A header that is not whole yet. */
  #head: Buffer | undefined;
  #headHave = 0;
  /** A payload that is collected: `#bodyHave` of `#bodyNeed` bytes are there. */
  #body: Buffer | undefined;
  #bodyHave = 0;
  #bodyNeed = 0;
  /** Payload bytes of a DATA frame that are still to come and are passed on as they do. */
  #dataLeft = 0;

  constructor(sink: FrameSink) {
    this.#sink = sink;
  }

  push(chunk: Buffer): void {
    let at = 0;
    if (this.#bodyNeed > 0) at = this.#collect(chunk, 0);
    else if (this.#dataLeft > 0) at = this.#passOn(chunk, 0);
    else if (this.#headHave > 0) at = this.#finishHeader(chunk);
    while (chunk.length - at >= HEADER_LENGTH) {
      this.#readHeader(chunk, at);
      at = this.#readPayload(chunk, at + HEADER_LENGTH);
    }
    // Inside a payload everything was taken; what is left is the beginning of a header.
    if (at < chunk.length) this.#keepHeader(chunk, at);
  }

  #readHeader(from: Buffer, at: number): void {
    const type = from.readUInt8(at + 4);
    if (type < FrameType.hello || type > FrameType.pong) fail('bad_type');
    if (from.readUInt16LE(at + 6) !== 0) fail('bad_reserved');
    const channel = from.readUInt8(at + 5);
    if (channel !== 0 && type !== FrameType.data) fail('bad_channel');
    const stream = from.readUInt32LE(at + 8);
    const isOfConnection = type === FrameType.hello || type >= FrameType.ping;
    if ((stream === 0) !== isOfConnection) fail('bad_stream');
    const length = from.readUInt32LE(at);
    if (length < (LEAST_LENGTH[type] ?? 0) || length > (GREATEST_LENGTH[type] ?? 0)) fail('bad_length');
    this.#type = type;
    this.#channel = channel;
    this.#stream = stream;
    this.#length = length;
  }

  /** Reads the payload of the header just read; returns where the next header begins. */
  #readPayload(chunk: Buffer, at: number): number {
    const end = at + this.#length;
    if (end <= chunk.length) {
      this.#sink.frame(this.#type, this.#channel, this.#stream, chunk, at, end);
      return end;
    }
    if (this.#type === FrameType.data) {
      this.#dataLeft = this.#length;
      return this.#passOn(chunk, at);
    }
    this.#bodyNeed = this.#length;
    return this.#collect(chunk, at);
  }

  #passOn(chunk: Buffer, at: number): number {
    const left = this.#dataLeft;
    const available = chunk.length - at;
    if (available >= left) {
      this.#dataLeft = 0;
      this.#sink.frame(this.#type, this.#channel, this.#stream, chunk, at, at + left);
      return at + left;
    }
    // Neither this piece nor the last one may be shorter than MIN_COST; what cannot be passed on so is collected.
    const piece = Math.min(available, left - MIN_COST);
    if (piece >= MIN_COST) {
      this.#sink.frame(this.#type, this.#channel, this.#stream, chunk, at, at + piece);
      at += piece;
      this.#dataLeft = left - piece;
      if (at === chunk.length) return at;
    }
    this.#bodyNeed = this.#dataLeft;
    this.#dataLeft = 0;
    return this.#collect(chunk, at);
  }

  #collect(chunk: Buffer, at: number): number {
    const need = this.#bodyNeed;
    const have = this.#bodyHave;
    const end = Math.min(chunk.length, at + need - have);
    const total = have + end - at;
    let body = this.#body;
    if (body === undefined || body.length < total) {
      const grown = Buffer.allocUnsafeSlow(Math.min(need, Math.max(FIRST_BODY, 2 * total)));
      if (body !== undefined) body.copy(grown, 0, 0, have);
      body = this.#body = grown;
    }
    chunk.copy(body, have, at, end);
    this.#bodyHave = total;
    if (total === need) {
      this.#body = undefined;
      this.#bodyHave = 0;
      this.#bodyNeed = 0;
      this.#sink.frame(this.#type, this.#channel, this.#stream, body, 0, need);
    }
    return end;
  }

  #keepHeader(chunk: Buffer, at: number): void {
    this.#head ??= Buffer.allocUnsafe(HEADER_LENGTH);
    chunk.copy(this.#head, 0, at);
    this.#headHave = chunk.length - at;
  }

  #finishHeader(chunk: Buffer): number {
    const head = (this.#head ??= Buffer.allocUnsafe(HEADER_LENGTH));
    const missing = HEADER_LENGTH - this.#headHave;
    if (chunk.length < missing) {
      chunk.copy(head, this.#headHave);
      this.#headHave += chunk.length;
      return chunk.length;
    }
    chunk.copy(head, this.#headHave, 0, missing);
    this.#headHave = 0;
    this.#head = undefined;
    this.#readHeader(head, 0);
    return this.#readPayload(chunk, missing);
  }
}

const fail = (kind: ProtocolErrorKind): never => {
  throw protocolError(kind);
};
