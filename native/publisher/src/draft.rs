//! A layer or a set until it is whole: a directory that nobody else may write to. It gets its name all at once, durably; what is not finished is removed, by
//! the next publisher when this one is killed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};

use layer_form::digest::Hasher;
use rustix::fs::{AtFlags, Dir, Mode, OFlags, fsync, mkdirat, openat, renameat, unlinkat};
use rustix::io::{pwrite, write};

use crate::handed::{self, Handed};
use crate::record::Part;
use crate::{Errno, Result};

/// How the names of drafts begin.
const UNFINISHED: &str = ".publish-";
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

pub struct Draft<'a> {
    /// The layers, or the sets, of the node.
    parent: BorrowedFd<'a>,
    name: String,
    directory: OwnedFd,
}

impl<'a> Draft<'a> {
    pub fn new(parent: BorrowedFd<'a>) -> Result<Self> {
        let name = unused_name();
        mkdirat(parent, &name, Mode::from_raw_mode(0o755))?;
        let directory = openat(parent, &name, DIRECTORY, Mode::empty())?;
        Ok(Self { parent, name, directory })
    }

    pub fn create(&self, name: &str, mode: u32) -> Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(&self.directory, name, flags, Mode::from_raw_mode(mode))
    }

    /// A whole small file.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let file = self.create(name, 0o644)?;
        append(&file, bytes)?;
        fsync(&file)
    }

    /// Copies a file, durably. What is copied; `EFBIG` when it is longer than `most`.
    pub fn copy(&self, from: &Handed, name: &str, most: u64) -> Result<Part> {
        let (source, target) = (from.file(name)?, self.create(name, 0o644)?);
        let mut hasher = Hasher::default();
        let size_bytes = handed::pieces(&source, most, |piece| {
            hasher.update(piece);
            append(&target, piece)
        })?;
        fsync(&target)?;
        Ok(Part { digest: hasher.finish(), size_bytes })
    }

    /// Gives it its name, in the place of whatever has that now. Its files must be durable already.
    pub fn settle(self, name: &str) -> Result<()> {
        fsync(&self.directory)?;
        match renameat(self.parent, &self.name, self.parent, name) {
            Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {
                let aside = unused_name();
                renameat(self.parent, name, self.parent, &aside)?;
                let renamed = renameat(self.parent, &self.name, self.parent, name);
                remove(self.parent, &aside)?;
                renamed?;
            }
            other => other?,
        }
        fsync(self.parent)
    }
}

impl Drop for Draft<'_> {
    fn drop(&mut self) {
        // After `settle` there is none. What is left here all the same is removed at the next start.
        let _ = remove(self.parent, &self.name);
    }
}

/// Different for each use, so that nobody waits for whoever makes the same.
fn unused_name() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("{UNFINISHED}{}", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Removes what publishers before have left.
pub fn sweep(parent: BorrowedFd<'_>) -> Result<()> {
    for entry in Dir::read_from(parent)? {
        let entry = entry?;
        match entry.file_name().to_str() {
            Ok(name) if name.starts_with(UNFINISHED) => remove(parent, name)?,
            _ => {}
        }
    }
    Ok(())
}

/// Removes a file, or a directory of files, if it is there.
pub fn remove(parent: BorrowedFd<'_>, name: &str) -> Result<()> {
    let directory = match openat(parent, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => return unlinkat(parent, name, AtFlags::empty()),
        other => other?,
    };
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if !matches!(name.to_bytes(), b"." | b"..") {
            unlinkat(&directory, name, AtFlags::empty())?;
        }
    }
    unlinkat(parent, name, AtFlags::REMOVEDIR)
}

pub fn append(file: impl AsFd, mut bytes: &[u8]) -> Result<()> {
    while !bytes.is_empty() {
        match write(&file, bytes) {
            Ok(written) => bytes = &bytes[written..],
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

pub fn write_at(file: impl AsFd, mut bytes: &[u8], mut offset: u64) -> Result<()> {
    while !bytes.is_empty() {
        match pwrite(&file, bytes, offset) {
            Ok(written) => {
                bytes = &bytes[written..];
                offset += written as u64;
            }
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}
