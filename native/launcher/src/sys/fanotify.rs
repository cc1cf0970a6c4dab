//! Pre-content events (fanotify(7)): the kernel asks the holder of a group before it reads a range of a marked file, and waits for the answer.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::{Result, check};

const FAN_PRE_ACCESS: u64 = 0x0010_0000;

/// From here on whoever opens the file and reads it is asked about first. A file that is marked already stays so. No link is followed: whoever made it
/// would choose of which file of the host all reads wait. `EINVAL` for what is no file.
pub fn mark(group: impl AsFd, directory: impl AsFd, name: &CStr) -> Result<()> {
    let (group, directory) = (group.as_fd().as_raw_fd(), directory.as_fd().as_raw_fd());
    let flags = libc::FAN_MARK_ADD | libc::FAN_MARK_DONT_FOLLOW;
    // SAFETY: the name is a C string.
    check(unsafe { libc::fanotify_mark(group, flags, FAN_PRE_ACCESS, directory, name.as_ptr()) }.into())?;
    Ok(())
}

/// Watches reads of a file before its data are there, and stops again.
pub fn watch_once(directory: impl AsFd, name: &CStr) -> Result<()> {
    let flags = libc::FAN_CLASS_PRE_CONTENT | libc::FAN_CLOEXEC;
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::fanotify_init(flags, libc::O_RDWR as libc::c_uint) }.into())?;
    // SAFETY: the kernel has just made this descriptor for this process.
    let group = unsafe { OwnedFd::from_raw_fd(fd as i32) };
    mark(group, directory, name)
}
