import { PlatformError } from '@dsec/contract';

/** Longest head of an answer, and longest line between the chunks of a body. */
const MAX_HEAD_BYTES = 65_536;
const MAX_LINE_BYTES = 4096;
const HEAD_END = Buffer.from('\r\n\r\n');
const LF = 0x0a;
const CR = 0x0d;
const BLANK = 0x20;

export interface ResponseHead {
  readonly status: number;
  /** By a name in lower case; of one that came more than once the first. */
  readonly header: (name: string) => string | undefined;
  /** The connection may carry another request after this answer. */
  readonly isKept: boolean;
}

export interface ResponseSink {
  onHead(head: ResponseHead): void;
  /** The bytes are valid during the call only. */
  onBody(bytes: Buffer): void;
  onEnd(): void;
}

/** What is read next. A body without a length ends with the connection. */
type State = 'nothing' | 'head' | 'body' | 'body-until-close' | 'chunk-size' | 'chunk' | 'chunk-end' | 'trailers';

/**
 * Reads the answers of one connection, in pieces of any size (RFC 9112). Whatever is not well formed, or comes when nothing was asked, throws
 * `protocol_error`; the connection is then good for nothing.
 */
export class ResponseReader {
  readonly #sink: ResponseSink;
  #state: State = 'nothing';
  /** Left of the body or the chunk. */
  #left = 0;
  /** A head or a line of which only a part is here. */
  #part: Buffer | undefined;

  constructor(sink: ResponseSink) {
    this.#sink = sink;
  }

  /** A request was sent. */
  expect(): void {
    this.#state = 'head';
  }

  push(bytes: Buffer): void {
    let at = 0;
    while (at < bytes.length) {
      switch (this.#state) {
        case 'nothing':
          throw malformed('sent something that was not asked for');
        case 'head':
          at = this.#head(bytes, at);
          break;
        case 'body':
        case 'chunk':
          at = this.#body(bytes, at);
          break;
        case 'body-until-close':
          this.#sink.onBody(at === 0 ? bytes : bytes.subarray(at));
          return;
        case 'chunk-size':
        case 'chunk-end':
        case 'trailers':
          at = this.#line(bytes, at);
          break;
      }
    }
  }

  /** The connection has ended. Whether that is the end of an answer. */
  close(): boolean {
    if (this.#state !== 'body-until-close') return false;
    this.#end();
    return true;
  }

  #head(bytes: Buffer, from: number): number {
    let text: string;
    let next: number;
    const found = this.#part === undefined ? bytes.indexOf(HEAD_END, from) : -1;
    if (found >= 0) {
      if (found - from > MAX_HEAD_BYTES) throw malformed('sent a head that is too large');
      text = bytes.toString('latin1', from, found);
      next = found + HEAD_END.length;
    } else {
      const before = this.#part ?? Buffer.alloc(0);
      const whole = Buffer.concat([before, bytes.subarray(from)]);
      const end = whole.indexOf(HEAD_END, Math.max(0, before.length - HEAD_END.length));
      if ((end < 0 ? whole.length : end) > MAX_HEAD_BYTES) throw malformed('sent a head that is too large');
      if (end < 0) {
        this.#part = whole;
        return bytes.length;
      }
      this.#part = undefined;
      text = whole.toString('latin1', 0, end);
      next = from + end + HEAD_END.length - before.length;
    }
    this.#begin(text);
    return next;
  }

  #begin(text: string): void {
    const { status, isOld, length, coding: codingAsSent, connection } = parseHead(text);
    if (status === 101) throw malformed('changed the protocol without being asked');
    // Others of the 100s only announce the answer.
    if (status < 200) return;
    const coding = codingAsSent?.toLowerCase();
    const isBodiless = status === 204 || status === 304;
    const isChunked = coding === 'chunked';
    if (coding !== undefined && !isChunked) throw malformed(`sent a body in the transfer coding ${coding}`);
    if (isChunked && length !== undefined) throw malformed('sent a body with two lengths');
    const hasEnd = isBodiless || isChunked || length !== undefined;
    const isKept = hasEnd && (isOld ? connection === 'keep-alive' : connection !== 'close');
    this.#left = length === undefined || isBodiless ? 0 : lengthOf(length);
    this.#sink.onHead({ status, isKept, header: (name) => findHeader(text, name) });
    if (isChunked && !isBodiless) this.#state = 'chunk-size';
    else if (!hasEnd) this.#state = 'body-until-close';
    else if (this.#left === 0) this.#end();
    else this.#state = 'body';
  }

  #body(bytes: Buffer, from: number): number {
    const end = Math.min(bytes.length, from + this.#left);
    this.#left -= end - from;
    this.#sink.onBody(from === 0 && end === bytes.length ? bytes : bytes.subarray(from, end));
    if (this.#left > 0) return end;
    if (this.#state === 'chunk') this.#state = 'chunk-end';
    else this.#end();
    return end;
  }

  #line(bytes: Buffer, from: number): number {
    const found = bytes.indexOf(LF, from);
    const end = found < 0 ? bytes.length : found;
    const size = end - from + (this.#part?.length ?? 0);
    if (size > MAX_LINE_BYTES) throw malformed('sent a line that is too long');
    if (found < 0) {
      const rest = bytes.subarray(from);
      this.#part = this.#part === undefined ? Buffer.from(rest) : Buffer.concat([this.#part, rest]);
      return bytes.length;
    }
    let line = bytes.subarray(from, end);
    if (this.#part !== undefined) line = Buffer.concat([this.#part, line]);
    this.#part = undefined;
    if (line.at(-1) !== CR) throw malformed('sent a line without its end');
    this.#onLine(line.toString('latin1', 0, line.length - 1));
    return end + 1;
  }

  #onLine(line: string): void {
    if (this.#state === 'chunk-size') {
      const size = /^([\da-f]{1,12})[ \t]*(?:;.*)?$/i.exec(line)?.[1];
      if (size === undefined) throw malformed('sent a chunk without a size');
      this.#left = Number.parseInt(size, 16);
      this.#state = this.#left === 0 ? 'trailers' : 'chunk';
    } else if (this.#state === 'chunk-end') {
      if (line !== '') throw malformed('sent a chunk that is longer than its size');
      this.#state = 'chunk-size';
    } else if (line === '') {
      this.#end();
    }
  }

  #end(): void {
    this.#state = 'nothing';
    this.#sink.onEnd();
  }
}

/** What of a head tells where the answer ends and what becomes of the connection. */
interface Framing {
  readonly status: number;
  readonly isOld: boolean;
  length: string | undefined;
  coding: string | undefined;
  connection: string | undefined;
}

const STATUS_LINE = /^HTTP\/1\.([01]) ([1-9]\d\d)(?: |\r|$)/;
const FRAMING_NAME = /^(?:content-length|transfer-encoding|connection)$/i;

/** Reads no more of it than it needs: nobody asks for most headers of most answers. */
function parseHead(text: string): Framing {
  const match = STATUS_LINE.exec(text);
  if (match === null) throw malformed('sent something that is no HTTP');
  const framing: Framing = {
    status: Number(match[2]),
    isOld: match[1] === '0',
    length: undefined,
    coding: undefined,
    connection: undefined,
  };
  for (let end = text.indexOf('\r\n'); end >= 0; ) {
    const from = end + 2;
    end = text.indexOf('\r\n', from);
    const colon = text.indexOf(':', from);
    // Neither a folded line nor a name with a blank behind it: two readers of those might disagree.
    if (
      colon <= from ||
      (end >= 0 && colon > end) ||
      text.charCodeAt(from) <= BLANK ||
      text.charCodeAt(colon - 1) <= BLANK
    )
      throw malformed('sent a header that is none');
    const length = colon - from;
    if (length !== 10 && length !== 14 && length !== 17) continue;
    const name = text.slice(from, colon);
    if (FRAMING_NAME.test(name)) addFraming(framing, length, text.slice(colon + 1, end < 0 ? undefined : end).trim());
  }
  return framing;
}

/** The three names differ in their lengths. */
function addFraming(framing: Framing, nameLength: number, value: string): void {
  if (nameLength === 10) {
    framing.connection ??= value.toLowerCase();
    return;
  }
  const member = nameLength === 14 ? 'length' : 'coding';
  if (framing[member] !== undefined && framing[member] !== value) throw malformed('sent a body with two lengths');
  framing[member] = value;
}

/** The first value of a header. */
function findHeader(text: string, name: string): string | undefined {
  for (const line of text.split('\r\n').slice(1)) {
    const colon = line.indexOf(':');
    if (line.slice(0, colon).toLowerCase() === name) return line.slice(colon + 1).trim();
  }
  return undefined;
}

function lengthOf(text: string): number {
  const length = /^\d{1,16}$/.test(text) ? Number(text) : Number.NaN;
  if (!Number.isSafeInteger(length)) throw malformed('sent a body whose length is no number');
  return length;
}

const malformed = (what: string): PlatformError => new PlatformError('protocol_error', `the server ${what}`);
