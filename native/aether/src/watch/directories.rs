//! The directories that one watch is told about: descriptors of inotify by path, and back.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::errors::{Failure, Outcome};
use crate::files::access::AsUser;
use crate::files::list::join;
use crate::files::open::c_path;
use crate::identity::Identity;
use crate::sys::{Errno, check};

/// Directories that one stream may watch; the kernel's memory for each is about a kilobyte.
pub const MAX_WATCHES: usize = 16_384;

const MASK: u32 = libc::IN_CREATE
    | libc::IN_MODIFY
    | libc::IN_DELETE
    | libc::IN_MOVED_FROM
    | libc::IN_MOVED_TO
    | libc::IN_ATTRIB
    | libc::IN_DELETE_SELF
    | libc::IN_EXCL_UNLINK;

#[derive(Debug)]
pub struct Directories {
    inotify: OwnedFd,
    paths: BTreeMap<i32, Vec<u8>>,
    by_path: BTreeMap<Vec<u8>, i32>,
}

pub fn too_many() -> Failure {
    let message = "There are more directories than one watch may have.";
    Failure::new("too_many_requests", message).with("limit", MAX_WATCHES).with("resource", "watches")
}

impl Directories {
    pub fn new(inotify: OwnedFd) -> Self {
        Self { inotify, paths: BTreeMap::new(), by_path: BTreeMap::new() }
    }

    pub fn inotify(&self) -> &OwnedFd {
        &self.inotify
    }

    pub fn path(&self, descriptor: i32) -> Option<&[u8]> {
        self.paths.get(&descriptor).map(Vec::as_slice)
    }

    fn watch(&mut self, path: &[u8], mask: u32) -> Result<(), Errno> {
        let c_path = c_path(path)?;
        // SAFETY: the path ends with NUL.
        let descriptor =
            check(unsafe { libc::inotify_add_watch(self.inotify.as_raw_fd(), c_path.as_ptr(), MASK | mask) })?;
        // The same directory by another path than before: it was moved.
        if let Some(former) = self.paths.insert(descriptor, path.to_vec())
            && former != path
        {
            self.by_path.remove(&former);
        }
        self.by_path.insert(path.to_vec(), descriptor);
        Ok(())
    }

    /// Watches where it all begins: a directory or a file, itself perhaps behind a link.
    pub fn add_root(&mut self, path: &[u8]) -> Result<(), Errno> {
        self.watch(path, 0)
    }

    /// Watches a directory below the root. One that vanished, or that the user may not read, is passed over.
    pub fn add(&mut self, path: &[u8], identity: &Identity) -> Outcome<()> {
        if self.by_path.len() >= MAX_WATCHES && !self.by_path.contains_key(path) {
            return Err(too_many());
        }
        let Ok(_user) = AsUser::enter(identity) else { return Ok(()) };
        match self.watch(path, libc::IN_ONLYDIR | libc::IN_DONT_FOLLOW) {
            Err(libc::ENOSPC) => Err(too_many()),
            _ => Ok(()),
        }
    }

    /// The kernel has ended a watch: its directory is gone.
    pub fn forget(&mut self, descriptor: i32) {
        if let Some(path) = self.paths.remove(&descriptor)
            && self.by_path.get(&path) == Some(&descriptor)
        {
            self.by_path.remove(&path);
        }
    }

    /// The watches of a directory and of what is in it.
    fn below(&self, path: &[u8]) -> Vec<(Vec<u8>, i32)> {
        let inside = join(path, b"");
        let is_there = |other: &[u8]| other == path || other.starts_with(&inside);
        let from = self.by_path.range(path.to_vec()..);
        // Names that continue with a byte below `/` lie between a path and what is in it.
        from.take_while(|(other, _)| other.starts_with(path))
            .filter(|(other, _)| is_there(other))
            .map(|(other, &descriptor)| (other.clone(), descriptor))
            .collect()
    }

    /// A directory was moved within the tree: what is watched keeps its descriptors.
    pub fn rename(&mut self, from: &[u8], to: &[u8]) {
        for (path, descriptor) in self.below(from) {
            let renamed = [to, &path[from.len()..]].concat();
            self.by_path.remove(&path);
            self.by_path.insert(renamed.clone(), descriptor);
            self.paths.insert(descriptor, renamed);
        }
    }

    /// A directory left the tree.
    pub fn remove(&mut self, path: &[u8]) {
        for (path, descriptor) in self.below(path) {
            // SAFETY: plain call.
            unsafe { libc::inotify_rm_watch(self.inotify.as_raw_fd(), descriptor) };
            self.paths.remove(&descriptor);
            self.by_path.remove(&path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_move_takes_along_what_is_inside_and_not_what_is_only_named_alike() {
        let (inotify, _other) = crate::sys::fd::pipe().expect("pipe");
        let mut directories = Directories::new(inotify);
        for (descriptor, path) in [(1, "/r"), (2, "/r/a"), (3, "/r/a/b"), (4, "/r/a-x"), (5, "/r/a.b/c")] {
            directories.paths.insert(descriptor, path.into());
            directories.by_path.insert(path.into(), descriptor);
        }
        directories.rename(b"/r/a", b"/r/z");
        let path = |descriptor| String::from_utf8_lossy(directories.path(descriptor).expect("path")).into_owned();
        assert_eq!((2..=5).map(path).collect::<Vec<_>>(), ["/r/z", "/r/z/b", "/r/a-x", "/r/a.b/c"]);
        directories.forget(2);
        assert_eq!(directories.path(2), None);
    }
}
