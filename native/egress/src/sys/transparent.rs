//! Listeners for connections to any address.

use std::net::SocketAddr;
use std::os::fd::{AsRawFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, bind, listen, socket_with, sockopt};

use super::{Result, check};

/// Connections that wait to be taken.
const BACKLOG: i32 = 1_024;

/// Listens at `address`; the packet filter may send there what was meant for others. `mark` is on all that is answered.
pub fn listener(address: SocketAddr, mark: u32) -> Result<OwnedFd> {
    let family = if address.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    // What a gate that is gone has left in TIME_WAIT is in nobody's way; one that listens is.
    sockopt::set_socket_reuseaddr(&socket, true)?;
    if address.is_ipv4() {
        set(&socket, libc::SOL_IP, libc::IP_TRANSPARENT, 1)?;
    } else {
        sockopt::set_ipv6_v6only(&socket, true)?;
        set(&socket, libc::SOL_IPV6, libc::IPV6_TRANSPARENT, 1)?;
    }
    set(&socket, libc::SOL_SOCKET, libc::SO_MARK, mark)?;
    bind(&socket, &address)?;
    listen(&socket, BACKLOG)?;
    Ok(socket)
}

fn set(socket: &OwnedFd, level: libc::c_int, name: libc::c_int, value: u32) -> Result<()> {
    let length = size_of::<u32>() as libc::socklen_t;
    let value = std::ptr::from_ref(&value).cast();
    // SAFETY: the kernel reads an integer of this length.
    let returned = unsafe { libc::setsockopt(socket.as_raw_fd(), level, name, value, length) };
    check(returned.into())?;
    Ok(())
}
