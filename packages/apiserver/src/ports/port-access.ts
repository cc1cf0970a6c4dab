/** Lets a request through to a port, and takes out of it what let it through, so that no secret of ours reaches the inside. */
import type { IncomingMessage } from 'node:http';
import { requireRight, type Keys } from '@dsec/iam';
import { PlatformError } from '@dsec/contract';
import { setCredential, setPrincipal } from '../audit/request-audit.ts';
import { KEY_HEADER, secretIn } from '../http/authentication.ts';
import type { Services } from '../services.ts';
import type { PortAddress } from './port-address.ts';
import { checkPortToken, PORT_TOKEN_HEADER, PORT_TOKEN_QUERY } from './port-token.ts';

/** Headers that concern one connection, not the request (RFC 9110, 7.6.1). */
const HOP_BY_HOP: ReadonlySet<string> = new Set([
  'connection',
  'keep-alive',
  'proxy-connection',
  'proxy-authorization',
  'proxy-authenticate',
  'te',
  'trailer',
  'upgrade',
  'expect',
  'http2-settings',
]);

export interface Admitted {
  readonly keyId: string | undefined;
  /** Path and query for the service. */
  readonly target: string;
  /** Names and values in turn, as `rawHeaders`. */
  readonly headers: readonly string[];
}

/** @throws PlatformError `unauthenticated`, `permission_denied` */
export function admit(services: Services, request: IncomingMessage, address: PortAddress): Admitted {
  const { path, token: queryToken } = splitToken(address.target);
  const header = request.headers[PORT_TOKEN_HEADER];
  const token = typeof header === 'string' ? header : queryToken;
  const secret = secretIn(request.headers);
  let keyId: string | undefined;
  if (token !== undefined) {
    checkPortToken(services.linkKey, address, token, services.clock.now());
    setCredential(request, 'port-token');
  } else {
    if (secret === undefined)
      throw new PlatformError('unauthenticated', 'the request carries neither an API key nor a port token');
    const principal = services.keys.authenticate(secret);
    setPrincipal(request, principal);
    requireRight(principal, 'write');
    ({ keyId } = principal);
  }
  // The Authorization of a request that was let in by something else belongs to the service; a key of ours never does.
  const dropped = new Set([PORT_TOKEN_HEADER, KEY_HEADER, ...(hasKey(services, request) ? ['authorization'] : [])]);
  return { keyId, target: path, headers: forwardedHeaders(request.rawHeaders, dropped) };
}

/** Whether any Authorization of the request is a key of ours: Node reads the first of several, the service gets them all. */
function hasKey({ keys }: Services, { rawHeaders }: IncomingMessage): boolean {
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.toLowerCase() !== 'authorization') continue;
    const secret = secretIn({ authorization: rawHeaders[at + 1] });
    if (secret !== undefined && isKey(keys, secret)) return true;
  }
  return false;
}

function isKey(keys: Keys, secret: string): boolean {
  try {
    keys.authenticate(secret);
    return true;
  } catch (error) {
    if (PlatformError.is(error)) return false;
    throw error;
  }
}

/** Headers that go on, in their order and spelling. */
export function forwardedHeaders(rawHeaders: readonly string[], dropped: ReadonlySet<string>): readonly string[] {
  const named = new Set<string>();
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    if (rawHeaders[at]?.toLowerCase() !== 'connection') continue;
    for (const name of (rawHeaders[at + 1] ?? '').split(',')) named.add(name.trim().toLowerCase());
  }
  const kept: string[] = [];
  for (let at = 0; at + 1 < rawHeaders.length; at += 2) {
    const [name = '', value = ''] = rawHeaders.slice(at, at + 2);
    const lower = name.toLowerCase();
    // Framing is never a matter of the connection options of a client.
    const isNamed = named.has(lower) && lower !== 'content-length' && lower !== 'transfer-encoding' && lower !== 'host';
    if (HOP_BY_HOP.has(lower) || isNamed || dropped.has(lower)) continue;
    kept.push(name, value);
  }
  return kept;
}

/** Takes the token out of a query; everything else stays as it is, byte for byte. */
function splitToken(target: string): { readonly path: string; readonly token: string | undefined } {
  const at = target.indexOf('?');
  if (at < 0) return { path: target, token: undefined };
  let token: string | undefined;
  const kept = target
    .slice(at + 1)
    .split('&')
    .filter((pair) => {
      if (!pair.startsWith(`${PORT_TOKEN_QUERY}=`)) return true;
      token = pair.slice(PORT_TOKEN_QUERY.length + 1);
      return false;
    });
  const query = token !== undefined && kept.length === 0 ? '' : `?${kept.join('&')}`;
  return { path: target.slice(0, at) + query, token };
}
