//! Files and directories whose opening is an event: tripwires of sandboxes, and what lies over parts of /proc and /sys.

use std::collections::HashMap;
use std::ffi::CString;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, fstatfs, openat2};

use super::bounds::MAX_PINNED;
use crate::sys::fanotify::OpenGroup;
use crate::sys::{Errno, Result};

const TMPFS_MAGIC: i64 = 0x0102_1994;

/// A file of the host, as its device and its number there.
pub type Object = (u64, u64);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Of the sandbox in a slot, by its place among that one's.
    Tripwire { slot: u32, at: usize },
    /// The same for all sandboxes.
    Cover,
}

pub struct Marks {
    pub group: OpenGroup,
    objects: HashMap<Object, Marked>,
    /// Files that have several names, by slot. Of such a file in an image overlayfs makes another one for each name and for each time that it looks a name up
    /// anew, which it does not as long as somebody holds it.
    pinned: Vec<(u32, OwnedFd)>,
}

pub fn object_of(file: impl AsFd) -> Result<Object> {
    fstat(file).map(|found| (found.st_dev, found.st_ino))
}

impl Marks {
    pub fn new() -> Result<Self> {
        Ok(Self { group: OpenGroup::new()?, objects: HashMap::new(), pinned: Vec::new() })
    }

    pub fn find(&self, object: Object) -> Option<Marked> {
        self.objects.get(&object).copied()
    }

    /// Marks what is there of a sandbox's tripwires; returns the places of the others.
    pub fn lay(&mut self, proc: BorrowedFd<'_>, root: BorrowedFd<'_>, slot: u32, paths: &[String]) -> Vec<usize> {
        let is_absent = |(at, path): (usize, &String)| self.lay_one(proc, root, slot, (at, path)).err().map(|_| at);
        paths.iter().enumerate().filter_map(is_absent).collect()
    }

    fn lay_one(
        &mut self,
        proc: BorrowedFd<'_>,
        root: BorrowedFd<'_>,
        slot: u32,
        (at, path): (usize, &String),
    ) -> Result<()> {
        // Nothing that is mounted in it: that may be everybody's, or be served by a program.
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_XDEV | ResolveFlags::NO_MAGICLINKS;
        let found = find(root, path, within)?;
        let shown = fstat(&found)?;
        let has_names = FileType::from_raw_mode(shown.st_mode) == FileType::RegularFile && shown.st_nlink > 1;
        if has_names && self.pinned.len() >= MAX_PINNED {
            return Err(Errno::MFILE);
        }
        self.mark(proc, &found, Marked::Tripwire { slot, at })?;
        if has_names {
            self.pinned.push((slot, found));
        }
        Ok(())
    }

    /// Marks what covers these paths, where they are covered.
    pub fn watch_covers(&mut self, proc: BorrowedFd<'_>, root: BorrowedFd<'_>, paths: &[String]) {
        let within = ResolveFlags::IN_ROOT | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        for path in paths {
            let Ok(found) = find(root, path, within) else { continue };
            if fstatfs(&found).is_ok_and(|filesystem| filesystem.f_type == TMPFS_MAGIC) {
                // What cannot be marked is not told.
                let _ = self.mark(proc, &found, Marked::Cover);
            }
        }
    }

    fn mark(&mut self, proc: BorrowedFd<'_>, found: &OwnedFd, marked: Marked) -> Result<()> {
        let object = object_of(found)?;
        let link = CString::new(format!("self/fd/{}", found.as_raw_fd())).map_err(|_| Errno::INVAL)?;
        self.group.mark(proc, &link)?;
        self.objects.insert(object, marked);
        Ok(())
    }

    /// Its marks go with its filesystem, and the numbers of that are another's soon.
    pub fn forget(&mut self, gone: u32) {
        self.pinned.retain(|(slot, _)| *slot != gone);
        self.objects.retain(|_, marked| !matches!(marked, Marked::Tripwire { slot, .. } if *slot == gone));
    }
}

/// A file or directory below a root.
fn find(root: BorrowedFd<'_>, path: &str, within: ResolveFlags) -> Result<OwnedFd> {
    let found = openat2(root, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty(), within)?;
    match FileType::from_raw_mode(fstat(&found)?.st_mode) {
        FileType::RegularFile | FileType::Directory => Ok(found),
        _ => Err(Errno::INVAL),
    }
}
