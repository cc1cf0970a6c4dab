//! Events that whoever causes them waits in (fanotify(7)): the kernel asks the holder of a group before it reads a range of a marked file, or opens one.

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

/// Whoever opens a marked file or directory waits until the holder of the group has answered. When the last descriptor of the group closes, the kernel lets
/// all through.
pub struct OpenGroup(OwnedFd);

/// Somebody opens something. It waits until this is dropped.
pub struct Opening<'a> {
    group: &'a OpenGroup,
    /// What is opened.
    pub object: OwnedFd,
    /// The process, in the pid namespace of whoever holds the group; not a number where it has none there.
    pub pid: Option<u32>,
    pub is_execution: bool,
}

/// `struct fanotify_event_metadata` of linux/fanotify.h.
#[repr(C)]
#[derive(Default)]
struct Metadata {
    length: u32,
    version: u8,
    reserved: u8,
    metadata_length: u16,
    mask: u64,
    fd: i32,
    pid: i32,
}

impl OpenGroup {
    /// Needs CAP_SYS_ADMIN.
    pub fn new() -> Result<Self> {
        let flags = libc::FAN_CLASS_CONTENT | libc::FAN_CLOEXEC | libc::FAN_NONBLOCK;
        // Each opener waits, so there are never more events than threads.
        let unlimited = libc::FAN_UNLIMITED_QUEUE | libc::FAN_UNLIMITED_MARKS;
        let objects = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_CLOEXEC | libc::O_LARGEFILE;
        // SAFETY: no memory is passed; the new descriptor is nobody else's.
        unsafe {
            let fd = check(libc::fanotify_init(flags | unlimited, objects as libc::c_uint).into())?;
            Ok(Self(OwnedFd::from_raw_fd(fd as i32)))
        }
    }

    /// Marks what a link of `proc` leads to. What is marked already stays so. A mark goes with its file, and with the filesystem.
    pub fn mark(&self, proc: impl AsFd, link: &CStr) -> Result<()> {
        let mask = libc::FAN_OPEN_PERM | libc::FAN_OPEN_EXEC_PERM | libc::FAN_ONDIR;
        let (group, proc) = (self.0.as_raw_fd(), proc.as_fd().as_raw_fd());
        // SAFETY: the name is a C string.
        check(unsafe { libc::fanotify_mark(group, libc::FAN_MARK_ADD, mask, proc, link.as_ptr()) }.into())?;
        Ok(())
    }

    /// The next that waits. `EAGAIN`: none.
    pub fn take(&self) -> Result<Option<Opening<'_>>> {
        let mut event = Metadata::default();
        // SAFETY: the kernel writes at most as many bytes as the structure has, which are any.
        let length = check(unsafe {
            libc::read(self.0.as_raw_fd(), (&raw mut event).cast(), size_of::<Metadata>()) as libc::c_long
        })?;
        if length as usize != size_of::<Metadata>() || event.fd < 0 {
            return Ok(None);
        }
        // SAFETY: the kernel has just made this descriptor for this process.
        let object = unsafe { OwnedFd::from_raw_fd(event.fd) };
        Ok(Some(Opening {
            group: self,
            object,
            pid: u32::try_from(event.pid).ok().filter(|pid| *pid > 0),
            is_execution: event.mask & libc::FAN_OPEN_EXEC_PERM != 0,
        }))
    }
}

impl AsFd for OpenGroup {
    fn as_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.0.as_fd()
    }
}

impl Drop for Opening<'_> {
    fn drop(&mut self) {
        let response = libc::fanotify_response { fd: self.object.as_raw_fd(), response: libc::FAN_ALLOW };
        // Who is gone needs no answer.
        // SAFETY: as many bytes as the structure has.
        let _ = unsafe {
            libc::write(self.group.0.as_raw_fd(), (&raw const response).cast(), size_of::<libc::fanotify_response>())
        };
    }
}
