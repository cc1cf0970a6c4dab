//! Thin, typed covers over the system calls that no library covers. Everything unsafe of egressd is in this folder, beside the form of the maps.

pub mod bpf;
pub mod cgroup;
pub mod mapped;
pub mod netlink_socket;
pub mod process;
pub mod socket_space;
pub mod transparent;

pub use rustix::io::{Errno, Result};

/// The result of a raw system call.
pub(crate) fn check(returned: libc::c_long) -> Result<libc::c_long> {
    if returned < 0 { Err(last_errno()) } else { Ok(returned) }
}

/// The error of the C library's last call.
pub(crate) fn last_errno() -> Errno {
    std::io::Error::last_os_error().raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error)
}
