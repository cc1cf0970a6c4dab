/** Who asks, and what they may do. */
import { PlatformError } from '@dsec/contract';

/** The one project of an installation that has not made others. */
export const DEFAULT_PROJECT = 'default';

/**
 * `read` looks; `write` also makes, changes and runs: what an agent at run time needs. `build` also makes what others stand on out of a sandbox, which
 * such an agent must not; `admin` also manages keys.
 */
export type Right = 'read' | 'write' | 'build' | 'admin';

/** The holder of a checked key. */
export interface Principal {
  readonly keyId: string;
  /** Of the key. */
  readonly name: string;
  readonly project: string;
  /** The greatest right of the key; it includes the lesser ones. */
  readonly right: Right;
}

const rank: Readonly<Record<Right, number>> = { read: 0, write: 1, build: 2, admin: 3 };

const reasons: Readonly<Record<Right, string>> = {
  read: 'this key may not read',
  write: 'this key may only read',
  build: 'only the key of a builder may make what others stand on',
  admin: 'only the admin key of the installation may manage keys',
};

export const hasRight = (principal: Principal, right: Right): boolean => rank[principal.right] >= rank[right];

/** @throws PlatformError `permission_denied` */
export function requireRight(principal: Principal, right: Right): void {
  if (hasRight(principal, right)) return;
  throw new PlatformError('permission_denied', reasons[right], { details: { keyId: principal.keyId, right } });
}
