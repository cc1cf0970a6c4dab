import { PlatformError } from '@dsec/contract';
import { parseJson } from './error-body.ts';

/** Longest line that is taken. */
const MAX_LINE_CHARS = 1_048_576;

/** The values of a body of newline-delimited JSON, as they come. */
export async function* ndjson(
  body: AsyncIterable<Uint8Array<ArrayBuffer>>,
  what: string,
): AsyncGenerator<unknown, void, undefined> {
  const decoder = new TextDecoder();
  let rest = '';
  for await (const chunk of body) {
    rest += decoder.decode(chunk, { stream: true });
    let at = 0;
    for (;;) {
      const end = rest.indexOf('\n', at);
      if (end === -1) break;
      if (end > at) yield valueOf(rest.slice(at, end), what);
      at = end + 1;
    }
    rest = rest.slice(at);
    if (rest.length > MAX_LINE_CHARS)
      throw new PlatformError('protocol_error', `a line of ${what} is longer than ${MAX_LINE_CHARS} characters`);
  }
  if (rest.trim() !== '') throw new PlatformError('connection_lost', `${what} broke off in the middle of a line`);
}

function valueOf(line: string, what: string): unknown {
  const value = parseJson(line);
  if (value === undefined) throw new PlatformError('protocol_error', `a line of ${what} is no JSON`);
  return value;
}
