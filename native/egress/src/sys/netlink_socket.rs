//! A socket of rtnetlink(7).

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use super::{Result, check};

pub struct NetlinkSocket(OwnedFd);

impl NetlinkSocket {
    /// In the network namespace of the calling thread. `groups` (RTMGRP_*) are what it hears without asking.
    pub fn open(groups: u32) -> Result<Self> {
        let kind = libc::SOCK_RAW | libc::SOCK_CLOEXEC;
        // SAFETY: no memory is passed, and the descriptor is new.
        let socket = unsafe {
            let fd = check(libc::socket(libc::AF_NETLINK, kind, libc::NETLINK_ROUTE).into())?;
            OwnedFd::from_raw_fd(fd as i32)
        };
        // SAFETY: zeros are a valid address: this process, no groups.
        let mut address: libc::sockaddr_nl = unsafe { std::mem::zeroed() };
        address.nl_family = libc::AF_NETLINK as u16;
        address.nl_groups = groups;
        let length = size_of::<libc::sockaddr_nl>() as libc::socklen_t;
        // SAFETY: the kernel reads an address of this length.
        check(unsafe { libc::bind(socket.as_raw_fd(), std::ptr::from_ref(&address).cast(), length) }.into())?;
        Ok(Self(socket))
    }

    pub fn send(&self, bytes: &[u8]) -> Result<()> {
        // SAFETY: the kernel reads so many bytes.
        check(unsafe { libc::send(self.0.as_raw_fd(), bytes.as_ptr().cast(), bytes.len(), 0) } as libc::c_long)?;
        Ok(())
    }

    /// One datagram. One that does not fit the buffer is an error of the reader.
    pub fn receive(&self, buffer: &mut [u8], waits: bool) -> Result<usize> {
        let flags = libc::MSG_TRUNC | if waits { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the kernel writes within the buffer.
        let length =
            check(unsafe { libc::recv(self.0.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), flags) }
                as libc::c_long)? as usize;
        if length > buffer.len() { Err(super::Errno::MSGSIZE) } else { Ok(length) }
    }
}

impl AsFd for NetlinkSocket {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}
