//! Opening paths that others chose. The kernel resolves them against the sandbox's root; the links of /proc that lead anywhere
//! (/proc/self/fd, /proc/PID/root) are never followed, because in aether's hands "self" is aether.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::errors::{Failure, Outcome};
use crate::sys::fd::owned;
use crate::sys::{Errno, check, retry};

/// Attempts when the kernel says that a rename was in the way.
const MAX_TRIES: u32 = 32;

pub const NO_MAGIC: u64 = libc::RESOLVE_NO_MAGICLINKS;
/// Not out of the directory, whatever the links say.
pub const BENEATH: u64 = libc::RESOLVE_BENEATH | libc::RESOLVE_NO_MAGICLINKS;

pub fn open_resolved(directory: RawFd, path: &CStr, flags: i32, mode: u32, resolve: u64) -> Result<OwnedFd, Errno> {
    // SAFETY: open_how is plain data; zeros are its defaults.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (flags | libc::O_CLOEXEC) as u64;
    how.mode = u64::from(mode);
    how.resolve = resolve;
    for _ in 0..MAX_TRIES {
        // SAFETY: `path` ends with NUL; `how` is valid for its size.
        let opened = retry(|| unsafe {
            libc::syscall(libc::SYS_openat2, directory, path.as_ptr(), &how, size_of::<libc::open_how>())
        });
        match opened {
            Err(libc::EAGAIN) => {}
            other => return other.map(|fd| owned(fd as RawFd)),
        }
    }
    Err(libc::EAGAIN)
}

/// Opens as a client asks: never blocks, never becomes a controlling terminal.
pub fn open(directory: RawFd, path: &CStr, flags: i32, mode: u32) -> Result<OwnedFd, Errno> {
    let flags = if flags & libc::O_PATH == 0 { flags | libc::O_NONBLOCK | libc::O_NOCTTY } else { flags };
    open_resolved(directory, path, flags, mode, NO_MAGIC)
}

/// A path of a request as the kernel takes it: `/` before a relative one.
pub fn absolute(field: &str, path: &str) -> Outcome<String> {
    if path.is_empty() {
        return Err(Failure::invalid(field, format!("{field} is empty")));
    }
    if path.contains('\0') {
        return Err(Failure::invalid(field, format!("{field} contains a NUL byte")));
    }
    Ok(if path.starts_with('/') { path.to_owned() } else { format!("/{path}") })
}

/// A name or path without NUL.
pub fn c_path(path: impl Into<Vec<u8>>) -> Result<CString, Errno> {
    CString::new(path).map_err(|_| libc::EINVAL)
}

pub fn stat_at(directory: RawFd, path: &CStr, follow: bool) -> Result<libc::stat, Errno> {
    let flags = if follow { 0 } else { libc::AT_SYMLINK_NOFOLLOW };
    // SAFETY: a stat of zeros is valid; `path` ends with NUL.
    unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        check(libc::fstatat(directory, path.as_ptr(), &mut stat, flags))?;
        Ok(stat)
    }
}

pub fn read_link(directory: RawFd, path: &CStr) -> Result<Vec<u8>, Errno> {
    let mut target = vec![0; libc::PATH_MAX as usize];
    // SAFETY: the buffer is valid for its length.
    let n =
        check(unsafe { libc::readlinkat(directory, path.as_ptr(), target.as_mut_ptr().cast(), target.len()) } as i64)?;
    target.truncate(n as usize);
    Ok(target)
}

/// True for files of /proc, whose contents depend on who reads them.
pub fn is_on_proc(file: &OwnedFd) -> bool {
    // SAFETY: a statfs of zeros is valid; the kernel fills it.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        libc::fstatfs(file.as_raw_fd(), &mut info) == 0 && info.f_type == libc::PROC_SUPER_MAGIC
    }
}

pub fn kind(stat: &libc::stat) -> libc::mode_t {
    stat.st_mode & libc::S_IFMT
}
