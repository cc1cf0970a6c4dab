//! Locks of single bytes of a file that end with their holder (`F_OFD_SETLK` of fcntl(2)): who does what, and who is still alive.

use std::os::fd::{AsFd, AsRawFd};

use super::{Errno, Result, check};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Shared,
    Exclusive,
    Free,
}

/// Takes a lock, turns one into another, or lets go of it, unless another process is in the way.
pub fn try_set(file: impl AsFd, byte: i64, kind: Kind) -> Result<bool> {
    match call(&file, byte, kind, libc::F_OFD_SETLK) {
        Ok(()) => Ok(true),
        Err(Errno::AGAIN | Errno::ACCESS) => Ok(false),
        Err(error) => Err(error),
    }
}

/// The same, and waits for whoever is in the way.
pub fn wait(file: impl AsFd, byte: i64, kind: Kind) -> Result<()> {
    loop {
        match call(&file, byte, kind, libc::F_OFD_SETLKW) {
            Err(Errno::INTR) => {}
            other => return other,
        }
    }
}

fn call(file: &impl AsFd, byte: i64, kind: Kind, command: libc::c_int) -> Result<()> {
    // SAFETY: zeros are a valid structure.
    let mut lock: libc::flock = unsafe { std::mem::zeroed() };
    lock.l_type = match kind {
        Kind::Shared => libc::F_RDLCK,
        Kind::Exclusive => libc::F_WRLCK,
        Kind::Free => libc::F_UNLCK,
    } as libc::c_short;
    lock.l_whence = libc::SEEK_SET as libc::c_short;
    lock.l_start = byte;
    lock.l_len = 1;
    // SAFETY: the kernel reads a structure of the kind that this command takes.
    check(unsafe { libc::fcntl(file.as_fd().as_raw_fd(), command, &raw const lock) })?;
    Ok(())
}

/// Whether this process is the only one that has the file open. The file must be open here once, for reading and writing.
pub fn is_sole_opener(file: impl AsFd) -> Result<bool> {
    let fd = file.as_fd().as_raw_fd();
    // SAFETY: no memory is passed. A lease for writing is granted only when nobody else has the file open.
    match check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_WRLCK) }) {
        Ok(_) => {}
        Err(Errno::AGAIN) => return Ok(false),
        Err(error) => return Err(error),
    }
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_SETLEASE, libc::F_UNLCK) })?;
    Ok(true)
}
