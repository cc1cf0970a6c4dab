/** Names each request, in its answer and in the log. */
import type { IncomingMessage } from 'node:http';
import type { Random } from '@dsec/kit';

const REQUEST_ID_CHARS = 16;
const given = /^[A-Za-z0-9_.-]{1,64}$/;

export const newRequestId = (random: Random): string => random.base36(REQUEST_ID_CHARS);

/** The id that the client gave, when it has a fit form, else a new one. */
export function requestIdOf(request: IncomingMessage, random: Random): string {
  const header = request.headers['x-request-id'];
  return typeof header === 'string' && given.test(header) ? header : newRequestId(random);
}
