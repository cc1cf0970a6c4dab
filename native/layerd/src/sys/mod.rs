//! Thin, typed covers over the system calls that no library covers. Everything unsafe of layerd is in this folder.

pub mod fanotify;
pub mod lock;
pub mod memory;
pub mod process;

pub use rustix::io::{Errno, Result};

/// The result of a C library call.
pub(crate) fn check(returned: libc::c_int) -> Result<libc::c_int> {
    if returned < 0 { Err(last_errno()) } else { Ok(returned) }
}

/// The error of the C library's last call.
pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
