/** Bytes of a stream of the edge as the body of an answer. */
import { PlatformError } from '@dsec/contract';
import type { Clock } from '@dsec/kit';
import type { WireItem, WireStream } from '@dsec/native-link';
import type { FastifyReply } from 'fastify';
import { asPlatformError } from './error-reply.ts';
import { noteFailure } from './outcome.ts';
import { ResponseStream, type ResponseHeaders } from './response-stream.ts';

/** What a stream sent where its method has nothing like it. */
export const unexpected = (stream: WireStream): PlatformError =>
  new PlatformError('protocol_error', `${stream.method} sent something that is not in the protocol`);

/**
 * Sends the DATA of a stream as the body of an answer. No length is announced: files change while they are read, and those of the
 * kernel lie about theirs. An error after the head breaks the answer off.
 */
export async function sendBytes(
  reply: FastifyReply,
  { clock }: { readonly clock: Clock },
  stream: WireStream,
  status: number,
  headers: ResponseHeaders,
  first: WireItem | undefined,
): Promise<void> {
  const response = new ResponseStream(reply, clock, status, headers);
  try {
    for (let item = first ?? (await stream.next()).value; item !== undefined; item = (await stream.next()).value) {
      if (item.type === 'message') throw unexpected(stream);
      const ready = item.type === 'data' ? response.write(item.bytes) : undefined;
      if (ready !== undefined) await ready;
    }
    response.end();
  } catch (thrown) {
    const error = asPlatformError(thrown);
    noteFailure(reply.request.raw, error);
    stream.reset(error);
    response.break();
  }
}
