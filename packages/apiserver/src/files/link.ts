/** Signed links: the route of one file, opened without a key for one operation until a moment. */
import { PlatformError } from '@dsec/contract';
import type { LinkKey } from '../link-key.ts';

export type LinkOperation = 'read' | 'write';

/** What a link is signed over. */
export interface Link {
  readonly operation: LinkOperation;
  readonly sandboxId: string;
  readonly path: string;
  readonly user: string | undefined;
  readonly expiresAtMs: number;
}

const partsOf = ({ operation, sandboxId, path, user, expiresAtMs }: Link): readonly (string | number | null)[] => [
  operation,
  sandboxId,
  path,
  user ?? null,
  expiresAtMs,
];

/** The query of a signed link. */
export function signLink(key: LinkKey, link: Link): string {
  const query = new URLSearchParams({ path: link.path });
  if (link.user !== undefined) query.set('user', link.user);
  query.set('expires', String(link.expiresAtMs));
  query.set('sig', key.sign('file-link', partsOf(link)));
  return query.toString();
}

/** @throws PlatformError `link_invalid`, `link_expired` */
export function checkLink(key: LinkKey, link: Link, signature: string, nowMs: number): void {
  if (!key.verify('file-link', partsOf(link), signature)) {
    throw new PlatformError('link_invalid', 'the signature of the link does not match its use');
  }
  if (nowMs >= link.expiresAtMs) throw new PlatformError('link_expired', 'the signed link has expired');
}
