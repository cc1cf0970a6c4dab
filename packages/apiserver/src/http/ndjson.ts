/** Answers of one JSON value a line, as they come. */
import type { ServerResponse } from 'node:http';
import { KEEPALIVE_MS, PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import type { WireStream } from '@dsec/native-link';
import type { FastifyReply } from 'fastify';
import { asPlatformError } from './error-reply.ts';
import { noteFailure } from './outcome.ts';
import { ResponseStream } from './response-stream.ts';

export const NDJSON_TYPE = 'application/x-ndjson';
export const NDJSON_HEADERS = { 'content-type': NDJSON_TYPE, 'cache-control': 'no-store', 'x-accel-buffering': 'no' };
export const KEEPALIVE_LINE = '{"keepalive":true}\n';

/**
 * Resets the stream when the client goes before its answer is whole, or has gone already, while the stream was waited for; the work behind it
 * goes on or not as the method says.
 */
export function resetOnClose(response: ServerResponse, stream: WireStream): void {
  if (response.closed) stream.reset();
  else response.once('close', () => stream.reset());
}

/** Whether `promise` settles in this time, in whichever way. */
export async function settlesWithin(clock: Clock, promise: Promise<unknown>, ms: number): Promise<boolean> {
  const late = Promise.withResolvers<boolean>();
  const timer = clock.setTimer(ms, () => late.resolve(false));
  const settled = promise.then(
    () => true,
    () => true,
  );
  try {
    return await Promise.race([settled, late.promise]);
  } finally {
    timer.cancel();
  }
}

/**
 * Passes the messages of a stream on as lines. An error before the first is thrown, and so has an HTTP status, unless it comes only after the time
 * in which a silent answer needs its first keepalive; a later one is a last line `{"error":…}`.
 */
export async function sendLines(
  reply: FastifyReply,
  clock: Clock,
  stream: WireStream,
  check: (value: object) => object,
): Promise<void> {
  resetOnClose(reply.raw, stream);
  const first = stream.next();
  if (await settlesWithin(clock, first, KEEPALIVE_MS)) await first;
  const response = new ResponseStream(reply, clock, 200, NDJSON_HEADERS);
  response.keepAlive(KEEPALIVE_LINE);
  try {
    let next = await first;
    while (next.done !== true) {
      const item = next.value;
      if (item.type !== 'message')
        throw new PlatformError('protocol_error', `${stream.method} answered with something else than messages`);
      const ready = response.write(`${JSON.stringify(check(item.value))}\n`);
      if (ready !== undefined) await ready;
      next = await stream.next();
    }
    response.end();
  } catch (thrown) {
    const error = asPlatformError(thrown);
    noteFailure(reply.request.raw, error);
    stream.reset(error);
    response.end(`${JSON.stringify({ error: error.toWire() })}\n`);
  }
}
