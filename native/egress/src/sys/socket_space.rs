//! What the kernel calls a network namespace where programs ask for that of a socket.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::process::within_network;
use super::{Result, check};

/// `SO_NETNS_COOKIE`; Linux 5.14.
const NETNS_COOKIE: libc::c_int = 71;

/// The cookie of a namespace: no other of the boot has it. `home` is that of the calling thread.
pub fn cookie_of(home: BorrowedFd<'_>, namespace: BorrowedFd<'_>) -> Result<u64> {
    let socket = within_network(home, namespace, || {
        socket_with(AddressFamily::UNIX, SocketType::DGRAM, SocketFlags::CLOEXEC, None)
    })?;
    cookie(socket.as_fd())
}

fn cookie(socket: BorrowedFd<'_>) -> Result<u64> {
    let mut cookie = 0u64;
    let mut length = size_of::<u64>() as libc::socklen_t;
    // SAFETY: the kernel writes an integer of this length.
    let returned = unsafe {
        let value = std::ptr::from_mut(&mut cookie).cast();
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, NETNS_COOKIE, value, &raw mut length)
    };
    check(returned.into())?;
    Ok(cookie)
}
