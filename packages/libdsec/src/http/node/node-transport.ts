import { PlatformError } from '@dsec/contract';
import type { LocalSocket } from '../../platform/platform.ts';
import type { Timing } from '../../platform/timing.ts';
import type { Transport, TransportRequest, TransportResponse } from '../transport.ts';
import { ConnectionPool } from './connection-pool.ts';
import { originPart, parseOrigin } from './origin.ts';

/** Servers that one client speaks to. */
const MAX_ORIGINS = 64;

/** What a header may hold: a line break in it would begin another one. */
const HEADER_VALUE = /^[\t\x20-\x7e\x80-\xff]*$/;
const PATH = /^[\x21-\x7e]*$/;

/**
 * The transport of Node: HTTP/1.1 over kept connections. It is our own because a small command spends more time in `node:http` than in the rest
 * of the SDK (docs/decisions/0004).
 */
export function nodeTransport(timing: Timing, local?: LocalSocket): Transport {
  const localOrigin = local === undefined ? undefined : originPart(local.endpoint);
  const pools = new Map<string, ConnectionPool>();
  const poolOf = (url: string): ConnectionPool => {
    const origin = originPart(url);
    let pool = pools.get(origin);
    if (pool === undefined) {
      if (pools.size >= MAX_ORIGINS)
        throw new PlatformError('invalid_argument', `one client speaks to at most ${MAX_ORIGINS} servers`);
      pool = new ConnectionPool(parseOrigin(origin, origin === localOrigin ? local?.socketPath : undefined), timing);
      pools.set(origin, pool);
    }
    return pool;
  };
  return {
    send: async (request): Promise<TransportResponse> => {
      request.cancellation?.throwIfCancelled();
      checkRequest(request);
      return poolOf(request.url).send(request);
    },
    startCommand: (request, sink) => poolOf(request.url).startCommand(request, sink),
    close: () => {
      for (const pool of pools.values()) pool.close();
      return Promise.resolve();
    },
  };
}

/** @throws PlatformError `invalid_argument` for what would not be one request */
function checkRequest({ url, headers }: TransportRequest): void {
  if (!PATH.test(url))
    throw new PlatformError('invalid_argument', 'the address of the request holds characters that no address may', {
      details: { field: 'url' },
    });
  for (const name in headers) {
    if (!HEADER_VALUE.test(headers[name] ?? '')) {
      throw new PlatformError('invalid_argument', `the header ${name} holds characters that no header may`, {
        details: { field: name },
      });
    }
  }
}
