//! Covers parts of /proc and /sys, where a profile has it so.

use std::ffi::CStr;
use std::os::fd::OwnedFd;

use rustix::fs::{CWD, FileType, Mode, OFlags, fstat, mkdirat, openat};

use crate::sys::mount;
use crate::sys::{Errno, Result};
use crate::templates::{hidden, small_tmpfs};

const DIRECTORY: &CStr = c"directory";
const FILE: &CStr = c"file";

/// Some of what profiles cover, files and directories: what lies over all is the same two.
pub const SAMPLES: [&str; 4] = ["/proc/cmdline", "/proc/kallsyms", "/proc/swaps", "/sys/kernel"];

/// What lies over things: an empty directory and an empty file, read-only, made once for all sandboxes.
pub struct Covers(OwnedFd);

impl Covers {
    pub fn new() -> Result<Self> {
        let root = small_tmpfs(hidden())?;
        mkdirat(&root, DIRECTORY, Mode::from_raw_mode(0o555))?;
        openat(&root, FILE, OFlags::CREATE | OFlags::WRONLY | OFlags::CLOEXEC, Mode::from_raw_mode(0o444))?;
        mount::make_read_only(&root)?;
        Ok(Self(root))
    }

    /// Covers what there is of the paths, in this mount namespace.
    pub fn lay(&self, paths: &[&CStr]) -> Result<()> {
        paths.iter().try_for_each(|path| self.lay_one(path))
    }

    fn lay_one(&self, path: &CStr) -> Result<()> {
        let found = match openat(CWD, path, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty()) {
            Ok(found) => fstat(found)?,
            Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let is_directory = FileType::from_raw_mode(found.st_mode) == FileType::Directory;
        let cover = mount::duplicate_below(&self.0, if is_directory { DIRECTORY } else { FILE })?;
        mount::attach(cover, CWD, path)
    }
}
