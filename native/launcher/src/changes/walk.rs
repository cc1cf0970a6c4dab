//! A writable layer as a pax archive. The tree is hostile, and nothing changes it meanwhile: every name is opened by itself below a directory that is
//! held open, no link is followed, and names, depth, attributes and entries have bounds.
//!
//! The archive is in overlayfs's own words, which no file of a sandbox can imitate: a device 0:0 says that a name is gone, and
//! `trusted.overlay.opaque` of a directory that lower layers do not show in it. Owners are those inside. A socket, which tar does not know, is a
//! fifo with the attribute `dsec.socket`.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use archive::header::{self, BLOCK, Header, Kind};
use archive::pax;
use rustix::fs::{
    AtFlags, Dir, FileType, Mode, OFlags, SeekFrom, Stat, fgetxattr, flistxattr, fstat, openat, readlinkat, seek,
    statat,
};

use super::attributes;
use crate::sys::{Errno, Result};

/// PATH_MAX: no program could name a longer one.
const MAX_PATH: usize = 4_096;
/// Directories open at once.
const MAX_DEPTH: usize = 1_024;
const MAX_ENTRIES: u64 = 4_000_000;
/// Memory for the first names of files that have several; beyond it each name becomes a file of its own.
const MAX_LINK_BYTES: usize = 64 << 20;
/// Attributes of one file together.
const MAX_ATTRIBUTES: usize = 256 << 10;
/// As long as the kernel lets a list of names or a value be (XATTR_LIST_MAX, XATTR_SIZE_MAX).
const LONGEST_ATTRIBUTE: usize = 64 << 10;
/// Runs of data of a sparse file; what is behind the last is taken as one.
const MAX_RUNS: usize = 16_384;
/// Fewer bytes of holes are not worth a map.
const MIN_HOLES: u64 = 64 << 10;
const CHUNK: usize = 256 << 10;
const DISK_SECTOR: u64 = 512;

pub const SOCKET: &str = "SCHILY.xattr.dsec.socket";

/// What was sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    pub entries: u64,
    pub bytes: u64,
}

/// Why the walk could not go on, and where.
#[derive(Debug)]
pub struct Stopped {
    pub errno: Errno,
    pub path: Vec<u8>,
    /// The reader of the archive is at fault, not the tree.
    pub is_sending: bool,
}

/// Takes the bytes of the archive.
pub trait Sink {
    fn send(&mut self, bytes: &[u8]) -> Result<()>;
}

struct Walk<'a, S> {
    sink: &'a mut S,
    root_uid: u32,
    out: Vec<u8>,
    /// For names of attributes and for a value.
    buffers: [Vec<u8>; 2],
    links: BTreeMap<u64, Vec<u8>>,
    link_bytes: usize,
    sent: Sent,
    /// Sending has failed: the error of the walk is not the tree's.
    is_broken: bool,
}

struct Level {
    reader: Dir,
    /// In the archive; empty for the first.
    name: Vec<u8>,
}

/// Sends the directory and all that is below it.
pub fn send<S: Sink>(root: OwnedFd, root_uid: u32, sink: &mut S) -> std::result::Result<Sent, Stopped> {
    let mut walk = Walk {
        sink,
        root_uid,
        out: Vec::with_capacity(2 * CHUNK),
        buffers: [vec![0; LONGEST_ATTRIBUTE], vec![0; LONGEST_ATTRIBUTE]],
        links: BTreeMap::new(),
        link_bytes: 0,
        sent: Sent::default(),
        is_broken: false,
    };
    let mut path = Vec::new();
    match walk.all(root, &mut path) {
        Ok(()) => Ok(walk.sent),
        Err(errno) => Err(Stopped { errno, path, is_sending: walk.is_broken }),
    }
}

const OPEN: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC).union(OFlags::NONBLOCK);

fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_vec() } else { [directory, b"/", name].concat() }
}

impl<S: Sink> Walk<'_, S> {
    /// `at` is where it is, for whoever has to hear of an error.
    fn all(&mut self, root: OwnedFd, at: &mut Vec<u8>) -> Result<()> {
        let stat = fstat(&root)?;
        let records = self.attributes(root.as_fd())?;
        self.entry(&stat, b"./", Kind::Directory, &[], 0, records)?;
        let mut stack = vec![Level { reader: Dir::new(root)?, name: Vec::new() }];
        while let Some(level) = stack.last_mut() {
            let Some(entry) = level.reader.read().transpose()? else {
                stack.pop();
                continue;
            };
            let name: CString = entry.file_name().to_owned();
            if matches!(name.as_bytes(), b"." | b"..") {
                continue;
            }
            *at = joined(&level.name, name.as_bytes());
            if at.len() > MAX_PATH {
                return Err(Errno::NAMETOOLONG);
            }
            if self.sent.entries >= MAX_ENTRIES {
                return Err(Errno::TOOBIG);
            }
            if let Some(directory) = self.add(level.reader.fd()?, &name, at)? {
                if stack.len() >= MAX_DEPTH {
                    return Err(Errno::NAMETOOLONG);
                }
                stack.push(Level { reader: Dir::new(directory)?, name: at.clone() });
            }
        }
        self.out.extend_from_slice(&[0; 2 * BLOCK]);
        self.flush()
    }

    /// Writes one entry. A directory is returned for its contents to follow.
    fn add(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &[u8]) -> Result<Option<OwnedFd>> {
        let stat = statat(parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => {
                let directory = openat(parent, name, OPEN | OFlags::DIRECTORY, Mode::empty())?;
                let records = self.attributes(directory.as_fd())?;
                self.entry(&stat, &[path, b"/"].concat(), Kind::Directory, &[], 0, records)?;
                return Ok(Some(directory));
            }
            FileType::RegularFile => self.file(parent, name, path, &stat)?,
            FileType::Symlink => {
                let target = readlinkat(parent, name, Vec::new())?;
                self.entry(&stat, path, Kind::Symlink, target.as_bytes(), 0, Vec::new())?;
            }
            FileType::CharacterDevice if stat.st_rdev == 0 => {
                self.entry(&stat, path, Kind::Device, &[], 0, Vec::new())?;
            }
            FileType::Fifo => self.entry(&stat, path, Kind::Fifo, &[], 0, Vec::new())?,
            FileType::Socket => {
                let mut records = Vec::new();
                pax::append(&mut records, SOCKET, b"");
                self.entry(&stat, path, Kind::Fifo, &[], 0, records)?;
            }
            // A user namespace has no way to make one.
            _ => return Err(Errno::NODEV),
        }
        Ok(None)
    }

    fn file(&mut self, parent: BorrowedFd<'_>, name: &CStr, path: &[u8], stat: &Stat) -> Result<()> {
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&stat.st_ino).cloned() {
                return self.entry(stat, path, Kind::HardLink, &first, 0, Vec::new());
            }
            if self.link_bytes + path.len() <= MAX_LINK_BYTES {
                self.link_bytes += path.len();
                self.links.insert(stat.st_ino, path.to_vec());
            }
        }
        let file = openat(parent, name, OPEN, Mode::empty())?;
        let mut records = self.attributes(file.as_fd())?;
        let size = stat.st_size.max(0) as u64;
        if size.saturating_sub(stat.st_blocks as u64 * DISK_SECTOR) < MIN_HOLES {
            self.entry(stat, path, Kind::File, &[], size, records)?;
            self.bytes(&file, size)?;
        } else {
            let runs = runs_of(&file, size)?;
            let map = map_of(&runs);
            let stored: u64 = runs.iter().map(|(_, length)| length).sum();
            for (key, value) in [("major", "1"), ("minor", "0"), ("realsize", &size.to_string())] {
                pax::append(&mut records, format!("GNU.sparse.{key}"), value.as_bytes());
            }
            self.entry(stat, path, Kind::File, &[], map.len() as u64 + stored, records)?;
            self.out.extend_from_slice(&map);
            for (offset, length) in runs {
                seek(&file, SeekFrom::Start(offset))?;
                self.bytes(&file, length)?;
            }
        }
        let padded = self.out.len().next_multiple_of(BLOCK);
        self.out.resize(padded, 0);
        Ok(())
    }

    /// Exactly so many bytes from where the file is.
    fn bytes(&mut self, file: &OwnedFd, length: u64) -> Result<()> {
        let mut left = length;
        while left > 0 {
            let start = self.out.len();
            self.out.resize(start + left.min(CHUNK as u64) as usize, 0);
            let read = rustix::io::read(file, &mut self.out[start..])?;
            if read == 0 {
                return Err(Errno::IO);
            }
            self.out.truncate(start + read);
            left -= read as u64;
            // Whole blocks only: where the padding of this body begins is told by the length.
            self.flush_blocks()?;
        }
        Ok(())
    }

    /// The records of an open file's attributes.
    fn attributes(&mut self, file: BorrowedFd<'_>) -> Result<Vec<u8>> {
        let [names, buffer] = &mut self.buffers;
        let length = flistxattr(file, &mut names[..])?;
        let names = &names[..length];
        let mut records = Vec::new();
        for name in names.split_inclusive(|byte| *byte == 0) {
            let name = CStr::from_bytes_with_nul(name).map_err(|_| Errno::IO)?;
            let length = fgetxattr(file, name, &mut buffer[..])?;
            let value = buffer[..length].to_vec();
            if let Some(value) = attributes::inside(name.to_bytes(), value, self.root_uid)? {
                pax::append(&mut records, [b"SCHILY.xattr.", name.to_bytes()].concat(), &value);
            }
            if records.len() > MAX_ATTRIBUTES {
                return Err(Errno::TOOBIG);
            }
        }
        Ok(records)
    }

    fn entry(
        &mut self,
        stat: &Stat,
        name: &[u8],
        kind: Kind,
        link: &[u8],
        size: u64,
        mut records: Vec<u8>,
    ) -> Result<()> {
        self.sent.entries += 1;
        let owner = [stat.st_uid, stat.st_gid].map(|id| attributes::id_inside(id, self.root_uid));
        let header = Header {
            name: name.to_vec(),
            link: link.to_vec(),
            kind,
            mode: stat.st_mode & 0o7777,
            size,
            mtime: stat.st_mtime,
        };
        let (block, overflow) = header::build(&header, owner[0], owner[1]);
        if overflow.name {
            pax::append(&mut records, "path", name);
        }
        if overflow.link {
            pax::append(&mut records, "linkpath", link);
        }
        if overflow.size {
            pax::append(&mut records, "size", size.to_string().as_bytes());
        }
        let nanos = stat.st_mtime_nsec as u32;
        if nanos != 0 || overflow.mtime {
            pax::append(&mut records, "mtime", pax::time_text(header.mtime, nanos).as_bytes());
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            let extended =
                Header { name: b"pax".to_vec(), link: Vec::new(), kind: Kind::PaxNext, mode: 0o644, size, mtime: 0 };
            self.out.extend_from_slice(&header::build(&extended, 0, 0).0);
            self.out.extend_from_slice(&records);
            let padded = self.out.len().next_multiple_of(BLOCK);
            self.out.resize(padded, 0);
        }
        self.out.extend_from_slice(&block);
        self.flush_blocks()
    }

    /// Sends what is whole blocks, once it is much.
    fn flush_blocks(&mut self) -> Result<()> {
        if self.out.len() < CHUNK {
            return Ok(());
        }
        let whole = self.out.len() / BLOCK * BLOCK;
        self.deliver(whole)
    }

    fn flush(&mut self) -> Result<()> {
        self.deliver(self.out.len())
    }

    fn deliver(&mut self, length: usize) -> Result<()> {
        self.sink.send(&self.out[..length]).inspect_err(|_| self.is_broken = true)?;
        self.sent.bytes += length as u64;
        self.out.drain(..length);
        Ok(())
    }
}

/// Where a sparse file has data.
fn runs_of(file: &OwnedFd, size: u64) -> Result<Vec<(u64, u64)>> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < size {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            // Nothing but a hole is left.
            Err(Errno::NXIO) => break,
            Err(errno) => return Err(errno),
        };
        let end = if runs.len() + 1 == MAX_RUNS { size } else { seek(file, SeekFrom::Hole(start))?.min(size) };
        if start >= size || end <= start {
            break;
        }
        runs.push((start, end - start));
        at = end;
    }
    seek(file, SeekFrom::Start(0))?;
    Ok(runs)
}

/// The map of a sparse file in GNU's form 1.0, in whole blocks.
fn map_of(runs: &[(u64, u64)]) -> Vec<u8> {
    let mut map = format!("{}\n", runs.len()).into_bytes();
    for (offset, length) in runs {
        map.extend_from_slice(format!("{offset}\n{length}\n").as_bytes());
    }
    let padded = map.len().next_multiple_of(BLOCK);
    map.resize(padded, 0);
    map
}
