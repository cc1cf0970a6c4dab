//! Unix sockets: listeners in a directory that is held open, and descriptors that travel with a message.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, chmodat, chownat, unlinkat};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer, SendAncillaryMessage,
    SendFlags, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, recvmsg, sendmsg, socket_with,
};
use rustix::process::{Gid, Uid};

use crate::{Errno, Result};

/// Descriptors that one message may carry.
pub const MAX_FDS: usize = 4;

/// Listens at `name` in `directory`, for `owner` alone. Replaces what was there. The working directory moves to `directory`.
pub fn listen_at(
    directory: BorrowedFd<'_>,
    name: &str,
    kind: SocketType,
    owner: (u32, u32),
    backlog: i32,
) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    match unlinkat(directory, name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(error) => return Err(error),
    }
    // The path of a socket is 108 bytes long at most; relative to its directory it always fits.
    rustix::process::fchdir(directory)?;
    bind(&socket, &SocketAddrUnix::new(name)?)?;
    // Nobody can connect before `listen`, so the order of these does not matter.
    chmodat(directory, name, Mode::RUSR | Mode::WUSR, AtFlags::empty())?;
    chownat(directory, name, Some(Uid::from_raw(owner.0)), Some(Gid::from_raw(owner.1)), AtFlags::SYMLINK_NOFOLLOW)?;
    listen(&socket, backlog)?;
    Ok(socket)
}

/// Connects to `name` in `directory`. `EAGAIN`: the backlog of who listens is full; to wait for room might be for ever. The working directory moves to
/// `directory`.
pub fn connect_at(directory: BorrowedFd<'_>, name: &str, kind: SocketType) -> Result<OwnedFd> {
    let socket = socket_with(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    rustix::process::fchdir(directory)?;
    connect(&socket, &SocketAddrUnix::new(name)?)?;
    rustix::io::ioctl_fionbio(&socket, false)?;
    Ok(socket)
}

/// Sends one message with descriptors.
pub fn send_with_fds(socket: impl AsFd, bytes: &[u8], fds: &[BorrowedFd<'_>]) -> Result<()> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = SendAncillaryBuffer::new(&mut space);
    if !fds.is_empty() && !ancillary.push(SendAncillaryMessage::ScmRights(fds)) {
        return Err(Errno::INVAL);
    }
    sendmsg(socket, &[IoSlice::new(bytes)], &mut ancillary, SendFlags::NOSIGNAL)?;
    Ok(())
}

/// Receives one message and its descriptors. No bytes: the other end is closed.
pub fn receive_with_fds(socket: impl AsFd, bytes: &mut [u8]) -> Result<(usize, Vec<OwnedFd>)> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(MAX_FDS))];
    let mut ancillary = RecvAncillaryBuffer::new(&mut space);
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut ancillary, RecvFlags::CMSG_CLOEXEC)?;
    let mut fds = Vec::new();
    for message in ancillary.drain() {
        if let RecvAncillaryMessage::ScmRights(received) = message {
            fds.extend(received);
        }
    }
    Ok((received.bytes, fds))
}
