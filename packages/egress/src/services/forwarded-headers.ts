/** Which headers pass a mirror service. */
import type { IncomingHttpHeaders, IncomingMessage } from 'node:http';
import type { UpstreamClient } from './upstream-client.ts';

/** Of one connection (RFC 9110 7.6.1), and those that are made anew. */
const OF_CONNECTION = new Set([
  'connection',
  'keep-alive',
  'proxy-authenticate',
  'proxy-authorization',
  'proxy-connection',
  'te',
  'trailer',
  'transfer-encoding',
  'upgrade',
  'http2-settings',
  'host',
  'expect',
]);

type Headers = Record<string, string | string[]>;

/** Of a request; the client puts those of the operator over them. */
export function requestHeaders(request: IncomingMessage): Headers {
  return withoutConnection(request.headers);
}

export interface ResponseContext {
  readonly client: UpstreamClient;
  readonly origin: string;
  /** What was asked for, which relative redirects are relative to. */
  readonly target: string;
}

/** Of an answer; undefined when it points to another server, which a sandbox may not reach on the strength of this service. */
export function responseHeaders(
  headers: IncomingHttpHeaders,
  { client, origin, target }: ResponseContext,
): Headers | undefined {
  const kept = withoutConnection(headers);
  // A session of the operator's account is as good as the account.
  if (client.hasHeaders) delete kept['set-cookie'];
  const { location } = headers;
  if (location === undefined) return kept;
  const base = client.urlOf(target);
  const place = URL.canParse(location, base.href) ? client.targetOf(new URL(location, base)) : undefined;
  return place === undefined ? undefined : { ...kept, location: `${origin}${place}` };
}

function withoutConnection(headers: IncomingHttpHeaders): Headers {
  const named = new Set((headers.connection ?? '').split(',').map((name) => name.trim().toLowerCase()));
  const kept: Headers = {};
  for (const [name, value] of Object.entries(headers)) {
    if (value !== undefined && !OF_CONNECTION.has(name) && !named.has(name)) kept[name] = value;
  }
  return kept;
}
