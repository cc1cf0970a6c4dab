//! Removal of a tree that a hostile program has filled: never follows a link, never leaves the tree, takes a bounded time for each call.

use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, RenameFlags, openat, renameat_with, unlinkat};

use crate::sys::{Errno, Result};

/// Entries that one call removes, so that no sandbox can hold up the others.
const BATCH: usize = 2_000;
/// Directories inside each other that one call follows. What is deeper is moved to the top and removed from there.
const MAX_DEPTH: usize = 128;

/// How far a removal has come.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    Done,
    /// Call again: more is there.
    More,
}

/// Removes `name` in `parent`, whatever it is. Nothing else may change the tree meanwhile.
pub fn remove_tree(parent: BorrowedFd<'_>, name: &str) -> Result<Removal> {
    let name = CString::new(name).map_err(|_| Errno::INVAL)?;
    match unlinkat(parent, &name, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => return Ok(Removal::Done),
        Err(Errno::ISDIR | Errno::PERM) => {}
        Err(error) => return Err(error),
    }
    let top = open_directory(parent, &name)?;
    let mut walk = Walk { top: top.as_fd(), budget: BATCH, lifted: 0 };
    if walk.clear(&top, 0)? == Removal::More {
        return Ok(Removal::More);
    }
    unlinkat(parent, &name, AtFlags::REMOVEDIR).map(|()| Removal::Done)
}

fn open_directory(parent: BorrowedFd<'_>, name: &CStr) -> Result<OwnedFd> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

struct Walk<'a> {
    top: BorrowedFd<'a>,
    budget: usize,
    lifted: u64,
}

impl Walk<'_> {
    /// Empties a directory.
    fn clear(&mut self, directory: &OwnedFd, depth: usize) -> Result<Removal> {
        let mut left = Removal::Done;
        for entry in Dir::read_from(directory)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.budget == 0 {
                return Ok(Removal::More);
            }
            self.budget -= 1;
            // The kind in a directory entry may be unknown: the kernel's refusal tells a directory from the rest.
            if entry.file_type() != FileType::Directory
                && !matches!(unlinkat(directory, name, AtFlags::empty()), Err(Errno::ISDIR | Errno::PERM))
            {
                continue;
            }
            if self.remove_directory(directory.as_fd(), name, depth)? == Removal::More {
                left = Removal::More;
            }
        }
        Ok(left)
    }

    fn remove_directory(&mut self, parent: BorrowedFd<'_>, name: &CStr, depth: usize) -> Result<Removal> {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) => return Ok(Removal::Done),
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Err(error) => return Err(error),
        }
        if depth >= MAX_DEPTH {
            return self.lift(parent, name);
        }
        if self.clear(&open_directory(parent, name)?, depth + 1)? == Removal::More {
            return Ok(Removal::More);
        }
        unlinkat(parent, name, AtFlags::REMOVEDIR).map(|()| Removal::Done)
    }

    /// Moves a deep directory to the top under a name that is free.
    fn lift(&mut self, parent: BorrowedFd<'_>, name: &CStr) -> Result<Removal> {
        loop {
            self.lifted += 1;
            match renameat_with(parent, name, self.top, format!("lifted-{}", self.lifted), RenameFlags::NOREPLACE) {
                Ok(()) => return Ok(Removal::More),
                Err(Errno::EXIST) => {}
                Err(error) => return Err(error),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    struct Fixture(PathBuf);

    impl Fixture {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("remove-tree-{name}-{}", std::process::id()));
            fs::create_dir_all(path.join("tree")).expect("temporary directory");
            Self(path)
        }

        fn remove(&self) -> usize {
            let parent = fs::File::open(&self.0).expect("parent");
            (1..10_000)
                .find(|_| remove_tree(parent.as_fd(), "tree").expect("removed") == Removal::Done)
                .expect("an end")
        }
    }

    impl Drop for Fixture {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let fixture = Fixture::new("links");
        fs::create_dir_all(fixture.0.join("outside/inner")).expect("made");
        std::os::unix::fs::symlink("../outside", fixture.0.join("tree/directory")).expect("made");
        std::os::unix::fs::symlink("/", fixture.0.join("tree/root")).expect("made");
        fixture.remove();
        assert!(fixture.0.join("outside/inner").exists());
        assert!(!fixture.0.join("tree").exists());
    }

    #[test]
    fn many_entries_take_several_calls() {
        let fixture = Fixture::new("many");
        for number in 0..BATCH * 2 {
            fs::write(fixture.0.join(format!("tree/{number}")), "").expect("made");
        }
        assert!(fixture.remove() >= 2);
        assert!(!fixture.0.join("tree").exists());
    }

    #[test]
    fn a_tree_deeper_than_any_path_is_removed() {
        let fixture = Fixture::new("deep");
        let mut directory: OwnedFd = fs::File::open(fixture.0.join("tree")).expect("opened").into();
        for _ in 0..MAX_DEPTH * 5 {
            rustix::fs::mkdirat(&directory, "lifted-1", Mode::from_raw_mode(0o700)).expect("made");
            directory = open_directory(directory.as_fd(), c"lifted-1").expect("opened");
        }
        fixture.remove();
        assert!(!fixture.0.join("tree").exists());
    }

    #[test]
    fn what_is_not_there_is_done() {
        let fixture = Fixture::new("absent");
        fs::remove_dir(fixture.0.join("tree")).expect("removed");
        assert_eq!(fixture.remove(), 1);
    }
}
