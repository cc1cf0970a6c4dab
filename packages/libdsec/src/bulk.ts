import { PlatformError, type SandboxInfo } from '@dsec/contract';
import type { Api, ApiRequest } from './http/api.ts';
import { Deadline, type CallOptions } from './http/deadline.ts';
import { detailsOf } from './http/error-body.ts';
import { ndjson } from './http/ndjson.ts';
import { isRepeatable, Retries } from './http/retry.ts';
import { parseSandbox } from './sandbox-answers.ts';

/** What became of one of many. */
export type BulkOutcome<T> =
  | { readonly index: number; readonly sandbox: T }
  | { readonly index: number; readonly error: PlatformError };

/**
 * The answer to a bulk request, item by item, in the order of readiness. When the connection breaks the request is sent again
 * (it is the same one to the server: same idempotency key, or idempotent by nature), and what was seen is not told twice.
 */
export async function* bulkOutcomes(
  api: Api,
  request: ApiRequest,
  options: CallOptions,
  expected: number | undefined,
): AsyncGenerator<BulkOutcome<SandboxInfo>, void, undefined> {
  using deadline = new Deadline(api.timing, request.what, options);
  const retries = new Retries(api.timing, api.retry);
  const seen = new Set<number>();
  for (;;) {
    try {
      const response = await api.send(request, deadline);
      for await (const line of ndjson(response.body, request.what)) {
        const outcome = outcomeOf(line);
        if (outcome === undefined || seen.has(outcome.index)) continue;
        seen.add(outcome.index);
        retries.reset();
        yield outcome;
      }
      if (expected !== undefined && seen.size < expected)
        throw new PlatformError(
          'connection_lost',
          `${request.what}: the answer ended after ${seen.size} of ${expected}`,
        );
      return;
    } catch (error) {
      if (!isRepeatable(error, 'always') || (error.code === 'server_unreachable' && !api.hasAnswered)) throw error;
      if (!(await retries.next(deadline))) throw error;
    }
  }
}

/** One line of the answer; undefined for a keepalive. */
function outcomeOf(line: unknown): BulkOutcome<SandboxInfo> | undefined {
  if (typeof line === 'object' && line !== null) {
    if ('keepalive' in line) return undefined;
    const index = 'index' in line ? line.index : undefined;
    if (typeof index === 'number' && 'sandbox' in line) return { index, sandbox: parseSandbox(line.sandbox) };
    if ('error' in line && typeof line.error === 'object' && line.error !== null) {
      const { error } = line;
      const code = 'code' in error && typeof error.code === 'string' ? error.code : 'internal';
      const message = 'message' in error && typeof error.message === 'string' ? error.message : 'it failed';
      const failure = PlatformError.fromWire({
        code,
        message,
        details: detailsOf('details' in error ? error.details : {}),
      });
      // Without an index it is the whole request that failed.
      if (typeof index !== 'number') throw failure;
      return { index, error: failure };
    }
  }
  throw new PlatformError('protocol_error', 'a line of a bulk answer has an unknown form');
}
