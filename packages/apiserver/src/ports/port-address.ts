/** Finds the port that a request is for: by its path below `/v1/sandboxes/ID/ports/PORT/`, or by its Host `PORT-ID.…`. */
import type { IncomingMessage } from 'node:http';
import { PlatformError } from '@dsec/contract';

export interface PortAddress {
  /** As the client wrote it; not checked. */
  readonly sandboxId: string;
  readonly port: number;
  /** Path and query for the service inside. */
  readonly target: string;
}

const MAX_PORT = 65_535;
const byPath = /^\/v1\/sandboxes\/([a-z0-9]{1,24})\/ports\/(\d{1,5})(\/[^?]*)?(\?.*)?$/s;
const byHost = /^(\d{1,5})-([a-z0-9]{1,24})\./i;

/** Below the path of a port, but not of the service inside. */
const OWN_ROUTE = '/token';

/** The port that a request is for; undefined when it is for the API itself. */
export function portAddressOf(request: IncomingMessage): PortAddress | undefined {
  const url = request.url ?? '';
  // The first character rules out nearly all requests.
  const host = request.headers.host ?? '';
  if (host.charCodeAt(0) <= 0x39) {
    const [, port, sandboxId] = byHost.exec(host) ?? [];
    if (port !== undefined && sandboxId !== undefined) {
      return { sandboxId: sandboxId.toLowerCase(), port: portOf(port), target: url.startsWith('/') ? url : '/' };
    }
  }
  if (!url.startsWith('/v1/sandboxes/')) return undefined;
  const [, sandboxId, port, path, query = ''] = byPath.exec(url) ?? [];
  if (sandboxId === undefined || port === undefined || path === OWN_ROUTE) return undefined;
  return { sandboxId, port: portOf(port), target: `${path ?? '/'}${query}` };
}

/** 0, which no request may name, for what is no port. */
function portOf(text: string): number {
  const port = Number(text);
  return port <= MAX_PORT ? port : 0;
}

/** @throws PlatformError `invalid_argument` */
export function requirePort(port: number): number {
  if (Number.isInteger(port) && port >= 1 && port <= MAX_PORT) return port;
  throw new PlatformError('invalid_argument', 'the port must be 1 to 65535', { details: { field: 'port' } });
}
