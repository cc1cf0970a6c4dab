//! Descriptors: pipes, reading, writing.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::{Errno, check, retry};

/// Takes ownership of a descriptor that a system call returned.
pub fn owned(fd: RawFd) -> OwnedFd {
    debug_assert!(fd >= 0);
    // SAFETY: the callers pass a descriptor that a system call has just made for them.
    unsafe { OwnedFd::from_raw_fd(fd) }
}

/// A pipe: (read end, write end), both close-on-exec.
pub fn pipe() -> Result<(OwnedFd, OwnedFd), Errno> {
    let mut ends = [-1; 2];
    // SAFETY: `ends` has room for two descriptors.
    check(unsafe { libc::pipe2(ends.as_mut_ptr(), libc::O_CLOEXEC) })?;
    Ok((owned(ends[0]), owned(ends[1])))
}

pub fn set_nonblocking(fd: &impl AsRawFd) -> Result<(), Errno> {
    // SAFETY: plain descriptor call.
    let flags = check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_GETFL) })?;
    // SAFETY: plain descriptor call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, flags | libc::O_NONBLOCK) })?;
    Ok(())
}

/// Sets the status flags of a pipe end of aether's own, which has no others.
pub fn make_pipe_end_nonblocking(fd: &impl AsRawFd) -> Result<(), Errno> {
    // SAFETY: plain descriptor call.
    check(unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETFL, libc::O_NONBLOCK) })?;
    Ok(())
}

pub fn read(fd: &impl AsRawFd, buffer: &mut [u8]) -> Result<usize, Errno> {
    // SAFETY: the buffer is valid for its length.
    retry(|| unsafe { libc::read(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len()) } as i64).map(|n| n as usize)
}

pub fn pread(fd: &impl AsRawFd, buffer: &mut [u8], offset: u64) -> Result<usize, Errno> {
    // SAFETY: the buffer is valid for its length.
    retry(|| unsafe { libc::pread(fd.as_raw_fd(), buffer.as_mut_ptr().cast(), buffer.len(), offset as i64) } as i64)
        .map(|n| n as usize)
}

pub fn write(fd: &impl AsRawFd, bytes: &[u8]) -> Result<usize, Errno> {
    // SAFETY: the slice is valid for its length.
    retry(|| unsafe { libc::write(fd.as_raw_fd(), bytes.as_ptr().cast(), bytes.len()) } as i64).map(|n| n as usize)
}

/// Writes all of it to a descriptor that blocks or never fills.
pub fn write_all(fd: &impl AsRawFd, mut bytes: &[u8]) -> Result<(), Errno> {
    while !bytes.is_empty() {
        let n = write(fd, bytes)?;
        bytes = &bytes[n..];
    }
    Ok(())
}

/// Opens relative to a directory; always close-on-exec and never a controlling terminal.
pub fn open_at(directory: RawFd, path: &CStr, flags: i32, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = flags | libc::O_CLOEXEC | libc::O_NOCTTY;
    // SAFETY: `path` ends with NUL.
    retry(|| unsafe { libc::openat(directory, path.as_ptr(), flags, mode) }).map(owned)
}

pub fn stat(fd: &impl AsRawFd) -> Result<libc::stat, Errno> {
    // SAFETY: a stat of zeros is valid; the kernel fills it.
    let mut stat: libc::stat = unsafe { std::mem::zeroed() };
    // SAFETY: `stat` is valid to write to.
    check(unsafe { libc::fstat(fd.as_raw_fd(), &mut stat) })?;
    Ok(stat)
}

/// Bytes that can be read at once.
pub fn readable_bytes(fd: &impl AsRawFd) -> usize {
    let mut n: libc::c_int = 0;
    // SAFETY: FIONREAD writes an int.
    match unsafe { libc::ioctl(fd.as_raw_fd(), libc::FIONREAD, &mut n) } {
        0 => n.max(0) as usize,
        _ => 0,
    }
}

/// Reads a small file to its end, at most `limit` bytes.
pub fn read_to_limit(fd: &impl AsRawFd, limit: usize) -> Result<Vec<u8>, Errno> {
    let mut bytes = Vec::new();
    let mut chunk = [0; 1024];
    while bytes.len() < limit {
        match read(fd, &mut chunk)? {
            0 => break,
            n => bytes.extend_from_slice(&chunk[..n]),
        }
    }
    bytes.truncate(limit);
    Ok(bytes)
}
