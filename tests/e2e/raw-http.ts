/** Where to send it, and as whom; a `Server` is one. */
export interface RawTarget {
  readonly endpoint: string;
  readonly apiKey: string;
}

/** A request as a client without the SDK would send it. */
export function rawRequest(server: RawTarget, path: string, init: RequestInit = {}): Promise<Response> {
  const headers = new Headers(init.headers);
  if (!headers.has('authorization')) headers.set('authorization', `Bearer ${server.apiKey}`);
  if (headers.get('authorization') === '') headers.delete('authorization');
  return fetch(`${server.endpoint}/v1${path}`, { ...init, headers });
}

/** A request with a JSON body. */
export function rawJson(
  server: RawTarget,
  path: string,
  body: unknown,
  init: { readonly method?: string; readonly headers?: Readonly<Record<string, string>> } = {},
): Promise<Response> {
  return rawRequest(server, path, {
    method: init.method ?? 'POST',
    headers: { 'content-type': 'application/json', ...init.headers },
    body: JSON.stringify(body),
  });
}

/** Runs a command and waits for its JSON result. */
export function rawExec(
  server: RawTarget,
  sandboxId: string,
  body: object,
  headers: Readonly<Record<string, string>> = {},
): Promise<Response> {
  return rawJson(server, `/sandboxes/${sandboxId}/execs`, body, {
    headers: { accept: 'application/json', ...headers },
  });
}
