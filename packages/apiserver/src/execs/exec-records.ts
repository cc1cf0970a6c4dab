/** An exec as a stream of records (see the contract), written in as few pieces as the command allows. */
import { EXEC_STREAM_TYPE, execStreamKind, type ExecStreamMessage } from '@dsec/contract';
import type { Clock, Timer } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import type { FastifyReply } from 'fastify';
import { asPlatformError } from '../http/error-reply.ts';
import { noteFailure } from '../http/outcome.ts';
import { ResponseStream } from '../http/response-stream.ts';
import { followExec, type ExecSink, type Gap, type Started } from './exec-events.ts';

const HEADERS = { 'content-type': EXEC_STREAM_TYPE, 'cache-control': 'no-store', 'x-accel-buffering': 'no' };
const HEAD_BYTES = 5;
/** Records that come together are written together, up to this. */
const BATCH_BYTES = 65_536;
/** Output from this size on is passed on as it is, behind its head; less is copied beside it. */
const WHOLE_BYTES = 4096;
/** A command that ends within this time is answered by one write. */
const HOLD_MS = 3;

function encodeRecord(kind: number, payload: Uint8Array): Buffer {
  const record = Buffer.allocUnsafe(HEAD_BYTES + payload.length);
  writeHead(record, kind, payload.length);
  record.set(payload, HEAD_BYTES);
  return record;
}

function encodeJson(message: ExecStreamMessage): Buffer {
  const text = JSON.stringify(message);
  const length = Buffer.byteLength(text);
  const record = Buffer.allocUnsafe(HEAD_BYTES + length);
  writeHead(record, execStreamKind.json, length);
  record.write(text, HEAD_BYTES);
  return record;
}

function writeHead(record: Buffer, kind: number, length: number): void {
  record.writeUInt8(kind, 0);
  record.writeUInt32LE(length, 1);
}

const KEEPALIVE = encodeRecord(execStreamKind.keepalive, Buffer.alloc(0));

/** Sends the stream of a command that has started to its client, until its end or the client's. */
export async function sendRecords(
  reply: FastifyReply,
  clock: Clock,
  stream: WireStream,
  started: Started,
): Promise<void> {
  using batch = new RecordBatch(new ResponseStream(reply, clock, 200, HEADERS), clock, stream);
  const { execId, pid, clientId } = started;
  void batch.add(encodeJson({ started: { execId, pid, ...(clientId === undefined ? {} : { clientId }) } }));
  try {
    const status = await followExec(stream, batch);
    batch.end(encodeJson({ exit: status }));
  } catch (thrown) {
    const error = asPlatformError(thrown);
    noteFailure(reply.request.raw, error);
    stream.reset(error);
    batch.end(encodeJson({ error: error.toWire() }));
  }
}

class RecordBatch implements ExecSink, Disposable {
  readonly #response: ResponseStream;
  readonly #clock: Clock;
  readonly #stream: WireStream;
  #records: Buffer[] = [];
  #size = 0;
  #timer: Timer | undefined;
  #immediate: NodeJS.Immediate | undefined;
  #hasWritten = false;

  constructor(response: ResponseStream, clock: Clock, stream: WireStream) {
    this.#response = response;
    this.#clock = clock;
    this.#stream = stream;
  }

  output(channel: 1 | 2, bytes: Buffer): Promise<void> | undefined {
    const kind = channel === 1 ? execStreamKind.stdout : execStreamKind.stderr;
    if (bytes.length < WHOLE_BYTES) return this.add(encodeRecord(kind, bytes));
    const head = Buffer.allocUnsafe(HEAD_BYTES);
    writeHead(head, kind, bytes.length);
    this.#records.push(head);
    this.#size += HEAD_BYTES;
    return this.add(bytes);
  }

  gap(gap: Gap): Promise<void> | undefined {
    return this.add(encodeJson({ gap }));
  }

  add(record: Buffer): Promise<void> | undefined {
    this.#records.push(record);
    this.#size += record.length;
    if (this.#size >= BATCH_BYTES) return this.#flush();
    // All that is to come of a stream that is over is here, and its end is next.
    if (this.#stream.isOver) return this.#response.needsDrain ? this.#response.drained() : undefined;
    if (this.#hasWritten) this.#immediate ??= setImmediate(() => this.#flushLate());
    else this.#timer ??= this.#clock.setTimer(HOLD_MS, () => this.#flushLate());
    // A slow client holds back what comes next.
    return this.#response.needsDrain ? this.#response.drained() : undefined;
  }

  end(record: Buffer): void {
    this.#records.push(record);
    this.#response.end(Buffer.concat(this.#take()));
  }

  [Symbol.dispose](): void {
    this.#unschedule();
    this.#response[Symbol.dispose]();
  }

  #flushLate(): void {
    // Whoever adds the next record waits for a slow client, and sees one that is gone.
    this.#flush()?.catch(() => undefined);
  }

  #flush(): Promise<void> | undefined {
    if (!this.#hasWritten) this.#response.keepAlive(KEEPALIVE);
    this.#hasWritten = true;
    return this.#response.write(...this.#take());
  }

  #take(): readonly Buffer[] {
    const records = this.#size < BATCH_BYTES / 2 ? [Buffer.concat(this.#records)] : this.#records;
    this.#unschedule();
    this.#records = [];
    this.#size = 0;
    return records;
  }

  #unschedule(): void {
    this.#timer?.cancel();
    this.#timer = undefined;
    clearImmediate(this.#immediate);
    this.#immediate = undefined;
  }
}
