//! The domain (Landlock) that all programs of a sandbox live in, with aether's own thread, which starts them. From inside it no process outside can be
//! signalled, traced or looked into through /proc, whatever the capabilities: aether's workers are outside ([`crate::outside`]).
//!
//! It is one for all: two that were entered separately could not signal or trace each other. It has no rules for files: those would also forbid mounts,
//! which nested sandboxes need.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::fd::owned;
use crate::sys::{Errno, check};

/// The first version that knows scopes.
const MIN_ABI: i64 = 6;
const CREATE_RULESET_VERSION: libc::c_ulong = 1;
const SCOPE_ABSTRACT_UNIX_SOCKET: u64 = 1;
const SCOPE_SIGNAL: u64 = 2;

/// `struct landlock_ruleset_attr` of linux/landlock.h.
#[repr(C)]
struct Ruleset {
    handled_access_fs: u64,
    handled_access_net: u64,
    scoped: u64,
}

/// A domain that can be entered; `None` where the kernel has none.
pub fn prepare() -> Result<Option<OwnedFd>, Errno> {
    // SAFETY: with this flag the first two arguments are null and zero.
    let abi = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, CREATE_RULESET_VERSION)
    });
    match abi {
        Ok(MIN_ABI..) => {}
        // Too old, not built in, or switched off.
        Ok(_) | Err(libc::ENOSYS | libc::EOPNOTSUPP) => return Ok(None),
        Err(errno) => return Err(errno),
    }
    let ruleset =
        Ruleset { handled_access_fs: 0, handled_access_net: 0, scoped: SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL };
    // SAFETY: the structure has the size that is passed.
    let fd = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, &raw const ruleset, size_of::<Ruleset>(), 0)
    })?;
    Ok(Some(owned(fd as i32)))
}

/// Enters the domain: this thread alone, and all that it will start. Needs CAP_SYS_ADMIN in its user namespace, or no_new_privs; aether sets the latter for
/// nobody, as it would disable setuid programs.
pub fn enter(domain: &OwnedFd) -> Result<(), Errno> {
    // SAFETY: plain call.
    check(unsafe { libc::syscall(libc::SYS_landlock_restrict_self, domain.as_raw_fd(), 0) })?;
    Ok(())
}
