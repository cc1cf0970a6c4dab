import { PlatformError, execStreamKind, type ErrorDetails, type ExecStatus } from '@dsec/contract';
import { detailsOf, parseJson } from '../http/error-body.ts';
import { parseExecStatus } from './exec-answers.ts';

/** Largest payload of one record. Servers send at most 64 KiB; more is a sign of another protocol. */
const MAX_RECORD_BYTES = 1_048_576;
const HEADER_BYTES = 5;

/** The first message of an exec stream. */
export interface Started {
  readonly execId: string;
  readonly pid: number;
  /** Of a terminal: names this connection among its clients. */
  readonly clientId?: string;
}

/** What an exec stream says, in the order in which it says it. */
export interface RecordSink {
  onStarted(started: Started): void;
  onData(channel: 1 | 2, data: Uint8Array<ArrayBuffer>): void;
  /** Bytes `from` up to `to` of the stream are no longer held. */
  onGap(channel: 1 | 2, from: number, to: number): void;
  onExit(status: ExecStatus): void;
  onError(error: PlatformError): void;
}

/**
 * Takes an exec stream (`contract`, `EXEC_STREAM_TYPE`) in pieces of any size. Output is passed on as it comes, also when
 * its record is not yet complete; only messages and headers are put together.
 */
export class RecordParser {
  readonly #sink: RecordSink;
  readonly #header = new Uint8Array(HEADER_BYTES);
  #headerUsed = 0;
  #kind = -1;
  #left = 0;
  #message: Uint8Array[] = [];

  constructor(sink: RecordSink) {
    this.#sink = sink;
  }

  push(chunk: Uint8Array<ArrayBuffer>): void {
    let at = 0;
    while (at < chunk.length) {
      if (this.#kind === -1) {
        const taken = Math.min(HEADER_BYTES - this.#headerUsed, chunk.length - at);
        this.#header.set(chunk.subarray(at, at + taken), this.#headerUsed);
        this.#headerUsed += taken;
        at += taken;
        if (this.#headerUsed < HEADER_BYTES) return;
        this.#begin();
        if (this.#left === 0) this.#finish();
        continue;
      }
      const taken = Math.min(this.#left, chunk.length - at);
      this.#payload(chunk.subarray(at, at + taken));
      at += taken;
      this.#left -= taken;
      if (this.#left === 0) this.#finish();
    }
  }

  #begin(): void {
    const view = new DataView(this.#header.buffer);
    const kind = view.getUint8(0);
    const length = view.getUint32(1, true);
    if (kind > execStreamKind.keepalive || length > MAX_RECORD_BYTES) {
      throw new PlatformError(
        'protocol_error',
        `the stream of a command has a record of kind ${kind} and ${length} bytes`,
      );
    }
    this.#kind = kind;
    this.#left = length;
    this.#headerUsed = 0;
  }

  #payload(data: Uint8Array<ArrayBuffer>): void {
    if (this.#kind === execStreamKind.stdout) this.#sink.onData(1, data);
    else if (this.#kind === execStreamKind.stderr) this.#sink.onData(2, data);
    else if (this.#kind === execStreamKind.json) this.#message.push(data);
  }

  #finish(): void {
    const isMessage = this.#kind === execStreamKind.json;
    this.#kind = -1;
    if (!isMessage) return;
    const message = this.#message;
    this.#message = [];
    takeMessage(parseJson(decodeAll(message)), this.#sink);
  }
}

/** Tells what a message of an exec stream says. @throws PlatformError `protocol_error` for one of no known form */
export function takeMessage(message: unknown, sink: RecordSink): void {
  const { started, gap, exit, error } = membersOf(message);
  if (exit !== undefined) {
    sink.onExit(parseExecStatus(exit));
    return;
  }
  const { execId, pid, clientId } = membersOf(started);
  if (typeof execId === 'string' && typeof pid === 'number') {
    sink.onStarted({ execId, pid, ...(typeof clientId === 'string' ? { clientId } : {}) });
    return;
  }
  const { channel, from, to } = membersOf(gap);
  if ((channel === 1 || channel === 2) && typeof from === 'number' && typeof to === 'number') {
    sink.onGap(channel, from, to);
    return;
  }
  const { code, message: text, details } = membersOf(error);
  if (typeof code === 'string' && typeof text === 'string') {
    const known: ErrorDetails = detailsOf(details);
    sink.onError(PlatformError.fromWire({ code, message: text, details: known }));
    return;
  }
  throw new PlatformError('protocol_error', 'the stream of a command has a message of an unknown form');
}

function membersOf(value: unknown): Readonly<Record<string, unknown>> {
  return typeof value === 'object' && value !== null ? (value as Readonly<Record<string, unknown>>) : {};
}

/** Most messages come in one part. */
const wholeDecoder = new TextDecoder();

function decodeAll(parts: readonly Uint8Array[]): string {
  if (parts.length === 1) return wholeDecoder.decode(parts[0]);
  const decoder = new TextDecoder();
  return parts.map((part) => decoder.decode(part, { stream: true })).join('') + decoder.decode();
}
