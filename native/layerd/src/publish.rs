//! What the edge has fetched of a layer becomes a layer of the node.
//!
//! The edge, which is not root's, leaves metadata, chunk map and record in a directory of its own. They are copied, since what it can still write to must
//! not be mounted, and what is copied is checked: a layer is what its name says, or it is not there.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Dir, Mode, OFlags, accessat, fstat, fsync, ftruncate, mkdirat, openat, renameat, unlinkat};
use rustix::io::{read, write};

use crate::chunk_map::ChunkMap;
use crate::digest::{Digest, Hasher};
use crate::failure::{self, Failure};
use crate::layer::{self, MAX_MAP_BYTES};
use crate::sys::{Errno, Result};

/// Below the data directory. Only the last two are the edge's.
const FETCHED: [&str; 3] = ["state", "edge", "layers"];
/// Where a layer is until it is whole.
const UNFINISHED: &str = ".fetched-";
const METADATA: &str = "rootfs.erofs";
const MAP: &str = "chunks";
const RECORD: &str = "layer.json";
const DATA: &str = "data";
const MAX_METADATA_BYTES: u64 = 4 << 30;
const MAX_RECORD_BYTES: u64 = 1 << 20;
const COPY_BYTES: usize = 1 << 20;
const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

/// Where the edge leaves what it fetches, and the layers of the node.
#[derive(Clone, Copy)]
pub struct Places<'a> {
    /// The data directory.
    pub root: BorrowedFd<'a>,
    pub layers: BorrowedFd<'a>,
}

impl Places<'_> {
    /// Makes the layer, unless it is there. It is durable then.
    pub fn publish(self, digest: &Digest) -> std::result::Result<(), Failure> {
        let file = |name: &'static str| move |errno| failure::file(digest, name, errno);
        if self.is_there(digest).map_err(file(RECORD))? {
            return Ok(());
        }
        let fetched = self.fetched(digest).map_err(file(""))?;
        let unfinished = format!("{UNFINISHED}{}", digest.hex());
        remove(self.layers, &unfinished).map_err(file(""))?;
        let filled = fill(self.layers, &unfinished, &fetched, digest).and_then(|()| {
            let renamed = renameat(self.layers, &unfinished, self.layers, digest.hex());
            renamed.and_then(|()| fsync(self.layers)).map_err(file(""))
        });
        if filled.is_err() {
            // What is left is removed when this layer is next published, or another worker begins.
            let _ = remove(self.layers, &unfinished);
        }
        filled
    }

    /// Removes what a worker has left that was killed.
    pub fn sweep(self) -> Result<()> {
        for entry in Dir::read_from(self.layers)? {
            let entry = entry?;
            match entry.file_name().to_str() {
                Ok(name) if name.starts_with(UNFINISHED) => remove(self.layers, name)?,
                _ => {}
            }
        }
        Ok(())
    }

    fn is_there(self, digest: &Digest) -> Result<bool> {
        let record = format!("{}/{RECORD}", digest.hex());
        match accessat(self.layers, record, rustix::fs::Access::EXISTS, AtFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::NOENT) => Ok(false),
            Err(errno) => Err(errno),
        }
    }

    fn fetched(self, digest: &Digest) -> Result<OwnedFd> {
        let hex = digest.hex();
        let mut directory = openat(self.root, ".", DIRECTORY, Mode::empty())?;
        for name in FETCHED.into_iter().chain([hex.as_str()]) {
            directory = openat(&directory, name, DIRECTORY, Mode::empty())?;
        }
        Ok(directory)
    }
}

fn fill(layers: BorrowedFd<'_>, name: &str, from: &OwnedFd, digest: &Digest) -> std::result::Result<(), Failure> {
    let file = |name: &'static str| move |errno| failure::file(digest, name, errno);
    mkdirat(layers, name, Mode::from_raw_mode(0o755)).map_err(file(""))?;
    let to = openat(layers, name, DIRECTORY, Mode::empty()).map_err(file(""))?;
    let mut hasher = Hasher::default();
    copy(from, &to, METADATA, MAX_METADATA_BYTES, |bytes| hasher.update(bytes)).map_err(file(METADATA))?;
    let mut map = Vec::new();
    copy(from, &to, MAP, MAX_MAP_BYTES, |bytes| map.extend_from_slice(bytes)).map_err(file(MAP))?;
    let map = ChunkMap::parse(&map)
        .map_err(|why| failure::corrupt(digest, format_args!("something {why}: the chunk map")))?;
    if layer::name(&hasher.finish(), &map) != *digest {
        return Err(failure::corrupt(digest, "metadata and chunk map are not those"));
    }
    copy(from, &to, RECORD, MAX_RECORD_BYTES, |_| {}).map_err(file(RECORD))?;
    if map.header.data_bytes > 0 {
        create(&to, DATA, 0o600)
            .and_then(|data| ftruncate(&data, map.header.data_bytes).and_then(|()| fsync(&data)))
            .map_err(file(DATA))?;
    }
    fsync(&to).map_err(file(""))
}

fn create(directory: impl AsFd, name: &str, mode: u32) -> Result<OwnedFd> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(directory, name, flags, Mode::from_raw_mode(mode))
}

/// Copies a regular file of at most so many bytes, durably, and shows them in passing.
fn copy(from: &OwnedFd, to: &OwnedFd, name: &str, most: u64, mut show: impl FnMut(&[u8])) -> Result<()> {
    // What is no file must not make anybody wait.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let source = openat(from, name, flags, Mode::empty())?;
    if rustix::fs::FileType::from_raw_mode(fstat(&source)?.st_mode) != rustix::fs::FileType::RegularFile {
        return Err(Errno::INVAL);
    }
    let target = create(to, name, 0o644)?;
    let mut buffer = vec![0; COPY_BYTES];
    let mut copied = 0;
    loop {
        let length = match read(&source, &mut buffer) {
            Ok(0) => break,
            Ok(length) => length,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno),
        };
        copied += length as u64;
        if copied > most {
            return Err(Errno::FBIG);
        }
        let mut rest = &buffer[..length];
        show(rest);
        while !rest.is_empty() {
            match write(&target, rest) {
                Ok(written) => rest = &rest[written..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    fsync(&target)
}

/// Removes an unfinished layer, if it is there.
fn remove(layers: BorrowedFd<'_>, name: &str) -> Result<()> {
    let directory = match openat(layers, name, DIRECTORY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(()),
        other => other?,
    };
    for name in [METADATA, MAP, RECORD, DATA] {
        match unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(errno),
        }
    }
    unlinkat(layers, name, AtFlags::REMOVEDIR)
}
