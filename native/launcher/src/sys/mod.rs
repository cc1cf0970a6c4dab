//! Thin, typed covers over the system calls that no library covers. Everything unsafe of the launcher is in this folder.

pub mod btrfs;
pub mod clone;
pub mod confinement;
pub mod fanotify;
pub mod loop_device;
pub mod loopback;
pub mod mount;
pub mod process;
pub mod seccomp_notify;
pub mod shared_page;

pub use rustix::io::{Errno, Result};

/// The result of a raw system call.
pub(crate) fn check(returned: libc::c_long) -> Result<libc::c_long> {
    if returned < 0 { Err(last_errno()) } else { Ok(returned) }
}

/// The error of the C library's last call.
pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
