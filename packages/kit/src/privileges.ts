/** Gives up root for good. */
import { PlatformError } from '@dsec/contract';

export interface Identity {
  readonly uid: number;
  readonly gid: number;
}

/**
 * Becomes `uid:gid` with no other groups, and makes sure that there is no way back. A process that already is that user stays as it is.
 * @throws PlatformError `config_invalid` when the user cannot be taken or the privileges cannot be lost
 */
export function dropPrivileges(identity: Identity): void {
  const { getuid, getgid, geteuid, getegid, getgroups, setgroups, setgid, setuid } = process;
  if (!getuid || !getgid || !geteuid || !getegid || !getgroups || !setgroups || !setgid || !setuid) {
    throw new PlatformError('host_unsuitable', 'this system has no users to become', {
      details: { missing: 'setuid' },
    });
  }
  if (identity.uid === 0 || identity.gid === 0) {
    throw new PlatformError('config_invalid', 'this process must not run as root', { details: { field: 'uid' } });
  }
  if (geteuid() === 0) {
    setgroups([]);
    setgid(identity.gid);
    setuid(identity.uid);
  }
  const isDropped =
    [getuid(), geteuid()].every((uid) => uid === identity.uid) &&
    [getgid(), getegid()].every((gid) => gid === identity.gid);
  const hasOnlyOwnGroup = getgroups().every((gid) => gid === identity.gid);
  if (!isDropped || !hasOnlyOwnGroup || canBecomeRoot(setuid)) {
    throw new PlatformError('config_invalid', `the process could not become user ${identity.uid}:${identity.gid}`, {
      details: { field: 'uid' },
    });
  }
}

function canBecomeRoot(setuid: (uid: number) => void): boolean {
  try {
    setuid(0);
    return true;
  } catch {
    return false;
  }
}
