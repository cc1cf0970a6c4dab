//! What others hand over, and can still write to: nothing in it is believed, no link is followed, and only files of whoever asks are read.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{FileType, Mode, OFlags, ResolveFlags, fstat, openat, openat2};
use rustix::io::read;

use crate::{Errno, Result};

const COPY_BYTES: usize = 1 << 20;

/// A directory that was handed over.
pub struct Handed {
    directory: OwnedFd,
    /// Whose files it may have; root's asks for those of anybody.
    owner: u32,
}

impl Handed {
    /// `path` is below the data directory.
    pub fn open(root: BorrowedFd<'_>, path: &str, owner: u32) -> Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        Ok(Self { directory: openat2(root, path, flags, Mode::empty(), resolve)?, owner })
    }

    /// One of the node's own.
    pub fn own(directory: OwnedFd) -> Self {
        Self { directory, owner: 0 }
    }

    pub fn file(&self, name: &str) -> Result<OwnedFd> {
        // What is no file must not make anybody wait.
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
        let file = openat(&self.directory, name, flags, Mode::empty())?;
        let stat = fstat(&file)?;
        if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
            return Err(Errno::INVAL);
        }
        // A hard link to what whoever asks may not read.
        if self.owner != 0 && stat.st_uid != self.owner {
            return Err(Errno::PERM);
        }
        Ok(file)
    }

    /// All of a small file.
    pub fn bytes(&self, name: &str, most: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        pieces(&self.file(name)?, most, |piece| {
            bytes.extend_from_slice(piece);
            Ok(())
        })?;
        Ok(bytes)
    }
}

impl AsFd for Handed {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.directory.as_fd()
    }
}

/// Shows a file of at most so many bytes, piece by piece. Each is as long as there can be, but for the last. Returns its length.
pub fn pieces(file: impl AsFd, most: u64, mut show: impl FnMut(&[u8]) -> Result<()>) -> Result<u64> {
    let mut buffer = vec![0; COPY_BYTES];
    let mut length = 0;
    loop {
        let filled = fill(&file, &mut buffer)?;
        length += filled as u64;
        if length > most {
            return Err(Errno::FBIG);
        }
        if filled > 0 {
            show(&buffer[..filled])?;
        }
        if filled < buffer.len() {
            return Ok(length);
        }
    }
}

/// Reads until the buffer is full or the file ends.
fn fill(file: impl AsFd, buffer: &mut [u8]) -> Result<usize> {
    let mut filled = 0;
    while filled < buffer.len() {
        match read(&file, &mut buffer[filled..]) {
            Ok(0) => break,
            Ok(length) => filled += length,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(filled)
}
