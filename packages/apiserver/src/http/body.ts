/** Bodies of requests: JSON into memory within its bound, bytes into a stream of the edge as that takes them. */
import { isUtf8 } from 'node:buffer';
import type { IncomingMessage, OutgoingHttpHeaders, ServerResponse } from 'node:http';
import { limits, PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';

/** What is still read of a body that is not wanted, so that the client gets to see the answer. */
const DRAIN_BYTES = 64 * 1024 * 1024;
const DRAIN_MS = 5000;

const tooLarge = (): PlatformError =>
  new PlatformError('request_too_large', `the body is larger than ${limits.bodyBytes} bytes`, {
    details: { limitBytes: limits.bodyBytes },
  });

const notJson = (reason: string, cause?: unknown): PlatformError =>
  new PlatformError('invalid_argument', `the body ${reason}`, { details: { field: '', reason }, cause });

/** Reads and parses a JSON body; an empty one is undefined. */
export function readJson(request: IncomingMessage, done: (error: Error | null, body?: unknown) => void): void {
  if (Number(request.headers['content-length'] ?? 0) > limits.bodyBytes) {
    done(tooLarge());
    return;
  }
  const chunks: Buffer[] = [];
  let size = 0;
  const finish = (error: Error | null, body?: unknown): void => {
    request.removeListener('data', onData);
    request.removeListener('end', onEnd);
    request.removeListener('close', onClose);
    done(error, body);
  };
  const onData = (chunk: Buffer): void => {
    size += chunk.length;
    if (size > limits.bodyBytes) finish(tooLarge());
    else chunks.push(chunk);
  };
  const onEnd = (): void => {
    let value: unknown;
    try {
      value = parse(chunks.length === 1 && chunks[0] !== undefined ? chunks[0] : Buffer.concat(chunks));
    } catch (error) {
      finish(error as Error);
      return;
    }
    finish(null, value);
  };
  const onClose = (): void => finish(new PlatformError('cancelled', 'the client broke the connection'));
  request.on('data', onData);
  request.on('end', onEnd);
  request.on('close', onClose);
}

function parse(bytes: Buffer): unknown {
  if (bytes.length === 0) return undefined;
  const text = bytes.toString('utf8');
  // A U+FFFD was either sent as one or stands for what is not UTF-8.
  if (text.includes('\ufffd') && !isUtf8(bytes)) throw notJson('is not UTF-8');
  try {
    return JSON.parse(text);
  } catch (cause) {
    throw notJson('is not JSON', cause);
  }
}

/**
 * Sends the body of a request to a stream, as fast as that takes it, until the body or the stream is over: a client that waits with the rest is
 * told at once that nobody wants it. Does not end the stream.
 *
 * @throws PlatformError `cancelled` when the client breaks the body off
 */
export function pumpBody(request: IncomingMessage, stream: WireStream): Promise<void> {
  return new Promise((resolve, reject) => {
    let isOver = false;
    let writing: Promise<void> = Promise.resolve();
    const finish = (error?: unknown): void => {
      if (isOver) return;
      isOver = true;
      request.pause();
      request.removeListener('data', onData);
      request.removeListener('end', onEnd);
      request.removeListener('close', onClose);
      if (error === undefined) resolve();
      else reject(error as Error);
    };
    const onData = (chunk: Buffer): void => {
      request.pause();
      writing = stream.write(chunk).then(() => {
        if (!isOver) request.resume();
      });
      writing.catch(finish);
    };
    const onEnd = (): void => {
      request.removeListener('close', onClose);
      writing.then(() => finish(), finish);
    };
    const onClose = (): void => finish(new PlatformError('cancelled', 'the client broke the connection'));
    request.on('data', onData);
    request.on('end', onEnd);
    // An error of the request is the break of its connection, and its close follows.
    request.on('error', () => undefined);
    request.on('close', onClose);
    // Why it is over, the stream tells whoever asks for its result.
    const onStreamOver = (): void => finish();
    stream.result.then(onStreamOver, onStreamOver);
  });
}

/**
 * Sends a whole answer to a request whose body nobody wants any more. While that body still comes, the answer is kept open: its end would close
 * a connection that is not kept alive, and reset it under a client that sends, whom the answer then never reaches.
 */
export function answerEarly(
  request: IncomingMessage,
  response: ServerResponse,
  clock: Clock,
  head: { readonly status: number; readonly headers: OutgoingHttpHeaders },
  body: string,
): void {
  response.writeHead(head.status, { ...head.headers, 'content-length': Buffer.byteLength(body) });
  if (request.complete || request.destroyed) {
    response.end(body);
    return;
  }
  response.write(body);
  let left = DRAIN_BYTES;
  const timer = clock.setTimer(DRAIN_MS, () => request.socket.destroy());
  request.once('end', () => response.end());
  request.once('close', () => timer.cancel());
  request.on('data', (chunk: Buffer) => {
    left -= chunk.length;
    if (left < 0) request.socket.destroy();
  });
  request.resume();
}
