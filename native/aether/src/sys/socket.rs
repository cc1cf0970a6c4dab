//! Stream sockets.

use std::os::fd::{AsRawFd, OwnedFd};

use super::fd::owned;
use super::{Errno, retry};

/// Takes one connection from a listening socket that does not block.
pub fn accept(listener: &OwnedFd) -> Result<OwnedFd, Errno> {
    let flags = libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: no address is asked for.
    retry(|| unsafe { libc::accept4(listener.as_raw_fd(), std::ptr::null_mut(), std::ptr::null_mut(), flags) })
        .map(owned)
}

/// Writes without SIGPIPE.
pub fn send(socket: &OwnedFd, bytes: &[u8]) -> Result<usize, Errno> {
    let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
    // SAFETY: the slice is valid for its length.
    retry(|| unsafe { libc::send(socket.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), flags) } as i64)
        .map(|n| n as usize)
}
