/** Tokens that open one port of one sandbox, and nothing else, until they expire. */
import { PlatformError } from '@dsec/contract';
import type { LinkKey } from '../link-key.ts';

export const PORT_TOKEN_HEADER = 'x-dsec-port-token';
export const PORT_TOKEN_QUERY = 'dsec_token';

const form = /^([0-9a-z]{1,12})\.([\w-]{43})$/;

export interface PortScope {
  readonly sandboxId: string;
  readonly port: number;
}

export function signPortToken(key: LinkKey, { sandboxId, port }: PortScope, expiresAtMs: number): string {
  return `${expiresAtMs.toString(36)}.${key.sign('port-token', [sandboxId, port, expiresAtMs])}`;
}

/** @throws PlatformError `unauthenticated` for a token of another port, an altered or an expired one */
export function checkPortToken(key: LinkKey, { sandboxId, port }: PortScope, token: string, nowMs: number): void {
  const [, expires = '', signature = ''] = form.exec(token) ?? [];
  const expiresAtMs = Number.parseInt(expires, 36);
  const isValid = key.verify('port-token', [sandboxId, port, expiresAtMs], signature);
  if (!isValid || nowMs >= expiresAtMs) {
    throw new PlatformError('unauthenticated', 'the port token is not valid for this port, or has expired');
  }
}
