import { PlatformError } from '@dsec/contract';
import { Type } from 'typebox';
import { segment, type Api } from './http/api.ts';
import type { CallOptions } from './http/deadline.ts';
import { parserOf } from './http/schema.ts';
import type { Platform } from './platform/platform.ts';

const parseToken = parserOf(Type.Object({ token: Type.String(), expiresAtMs: Type.Integer() }), 'port token');

/** The TCP ports on which programs of a sandbox listen, also on its 127.0.0.1. */
export class Ports {
  readonly #api: Api;
  readonly #sandboxId: string;
  readonly #platform: Platform;

  /** @internal Use `sandbox.ports`. */
  constructor(api: Api, sandboxId: string, platform: Platform) {
    this.#api = api;
    this.#sandboxId = sandboxId;
    this.#platform = platform;
  }

  /** The address under which a port is reached. Requests to it need the API key or a token of this port. */
  url(port: number): string {
    return this.#api.url(`${this.#path(port)}/`);
  }

  /** A token that opens one port of this sandbox, nothing else, until it expires. */
  async token(
    port: number,
    options: CallOptions & { /** @default 3600 */ readonly expiresInSeconds?: number } = {},
  ): Promise<{ readonly token: string; readonly expiresAtMs: number }> {
    const { expiresInSeconds = 3600, ...call } = options;
    return this.#api.json(
      {
        method: 'POST',
        path: `${this.#path(port)}/token`,
        what: `making a token for port ${port}`,
        json: { expiresInSeconds },
        repeatable: 'always',
      },
      parseToken,
      call,
    );
  }

  /**
   * An HTTP request to a service in the sandbox. What it answers is yours to read, errors of its own included; when nothing
   * listens the status is 502.
   */
  async fetch(port: number, path = '/', init: RequestInit = {}): Promise<Response> {
    const headers = new Headers(init.headers);
    for (const [name, value] of Object.entries(this.#api.authorization)) headers.set(name, value);
    return this.#platform.fetch(`${this.url(port)}${path.replace(/^\/+/, '')}`, { ...init, headers });
  }

  #path(port: number): string {
    if (!Number.isInteger(port) || port < 1 || port > 65_535) {
      throw new PlatformError('invalid_argument', `there is no port ${port}`, { details: { field: 'port' } });
    }
    return `/sandboxes/${segment(this.#sandboxId)}/ports/${port}`;
  }
}
