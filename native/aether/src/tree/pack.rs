//! Writing a directory as a pax archive.

use std::collections::BTreeMap;
use std::os::fd::{AsRawFd, OwnedFd};

use super::header::{self, BLOCK, Header, Kind};
use super::pax;
use crate::errors::{Failure, Outcome};
use crate::files::list::join;
use crate::files::open::{self, c_path};
use crate::sys::dir::DirReader;
use crate::sys::{Errno, fd};

/// Files with several names that are remembered, so that the further names become hard links.
const MAX_LINKS: usize = 1 << 20;
/// Directories open at once.
const MAX_DEPTH: usize = 512;
const CHUNK: usize = 256 << 10;

/// Filesystems that the kernel makes up: mounted in a tree they are an empty directory of it.
const PSEUDO_FILESYSTEMS: [libc::__fsword_t; 10] = [
    libc::PROC_SUPER_MAGIC,
    libc::SYSFS_MAGIC,
    libc::CGROUP_SUPER_MAGIC,
    libc::CGROUP2_SUPER_MAGIC,
    libc::DEVPTS_SUPER_MAGIC,
    libc::DEBUGFS_MAGIC,
    libc::TRACEFS_MAGIC,
    libc::SECURITYFS_MAGIC,
    libc::BPF_FS_MAGIC,
    // mqueue has no constant in libc.
    0x1980_0202,
];

struct Packer<'a> {
    pipe: &'a OwnedFd,
    out: Vec<u8>,
    links: BTreeMap<(u64, u64), Vec<u8>>,
    entries: u64,
}

struct Level {
    reader: DirReader,
    /// In the archive; empty for the first.
    name: Vec<u8>,
    device: u64,
}

/// Packs the directory `path`; names in the archive are relative to it. Sockets and devices have no contents and are left out. Returns
/// the number of entries.
pub fn pack(path: &str, pipe: &OwnedFd) -> Outcome<u64> {
    let failed = |errno| Failure::file(errno, path);
    let root = open::open(libc::AT_FDCWD, &c_path(path).map_err(failed)?, libc::O_RDONLY | libc::O_DIRECTORY, 0);
    let root = root.map_err(failed)?;
    let mut packer = Packer { pipe, out: Vec::new(), links: BTreeMap::new(), entries: 0 };
    let stat = fd::stat(&root).map_err(failed)?;
    packer.put_root(&stat).map_err(failed)?;
    let device = stat.st_dev;
    let mut stack = vec![Level { reader: DirReader::new(root), name: Vec::new(), device }];
    while let Some(level) = stack.last_mut() {
        let told = |name: &[u8]| String::from_utf8_lossy(&join(path.as_bytes(), name)).into_owned();
        let entry = match level.reader.next_name() {
            Ok(Some(entry)) => entry.name.to_vec(),
            Ok(None) => {
                stack.pop();
                continue;
            }
            Err(errno) => return Err(Failure::file(errno, &told(&level.name))),
        };
        let name = if level.name.is_empty() { entry.clone() } else { join(&level.name, &entry) };
        match packer.add(level, &entry, &name) {
            Ok(Some(_)) if stack.len() >= MAX_DEPTH => return Err(Failure::file(libc::ENAMETOOLONG, &told(&name))),
            Ok(Some((directory, device))) => {
                stack.push(Level { reader: DirReader::new(directory), name, device });
            }
            Ok(None) => {}
            // It vanished while the directory was read.
            Err(libc::ENOENT) => {}
            Err(errno) => return Err(Failure::file(errno, &told(&name))),
        }
    }
    packer.out.extend_from_slice(&[0; 2 * BLOCK]);
    packer.flush().map_err(failed)?;
    Ok(packer.entries)
}

fn is_pseudo(directory: &OwnedFd) -> bool {
    // SAFETY: a statfs of zeros is valid; the kernel fills it.
    unsafe {
        let mut info: libc::statfs = std::mem::zeroed();
        libc::fstatfs(directory.as_raw_fd(), &mut info) == 0 && PSEUDO_FILESYSTEMS.contains(&info.f_type)
    }
}

impl Packer<'_> {
    fn flush(&mut self) -> Result<(), Errno> {
        fd::write_all(self.pipe, &self.out)?;
        self.out.clear();
        Ok(())
    }

    /// `./`: mode and time of the directory itself.
    fn put_root(&mut self, stat: &libc::stat) -> Result<(), Errno> {
        let mode = stat.st_mode & 0o7777;
        let (name, link) = (b"./".to_vec(), Vec::new());
        self.put_header(&Header { name, link, kind: Kind::Directory, mode, size: 0, mtime: stat.st_mtime }, stat)
    }

    /// Writes one entry. A directory is returned for its contents to follow.
    fn add(&mut self, level: &Level, entry: &[u8], name: &[u8]) -> Result<Option<(OwnedFd, u64)>, Errno> {
        let at = level.reader.fd().as_raw_fd();
        let c_name = c_path(entry)?;
        let stat = open::stat_at(at, &c_name, false)?;
        let mut header = Header {
            name: name.to_vec(),
            link: Vec::new(),
            kind: Kind::File,
            mode: stat.st_mode & 0o7777,
            size: 0,
            mtime: stat.st_mtime,
        };
        match open::kind(&stat) {
            libc::S_IFDIR => {
                header.kind = Kind::Directory;
                header.name.push(b'/');
                let directory = open::open(at, &c_name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
                self.put_header(&header, &stat)?;
                let is_foreign = stat.st_dev != level.device && is_pseudo(&directory);
                return Ok((!is_foreign).then_some((directory, stat.st_dev)));
            }
            libc::S_IFLNK => {
                header.kind = Kind::Symlink;
                header.link = open::read_link(at, &c_name)?;
                self.put_header(&header, &stat)?;
            }
            libc::S_IFIFO => {
                header.kind = Kind::Fifo;
                self.put_header(&header, &stat)?;
            }
            libc::S_IFREG => self.put_file(at, &c_name, header, &stat)?,
            _ => {}
        }
        Ok(None)
    }

    fn put_file(&mut self, at: i32, name: &std::ffi::CStr, mut header: Header, stat: &libc::stat) -> Result<(), Errno> {
        let identity = (stat.st_dev, stat.st_ino);
        if stat.st_nlink > 1 {
            if let Some(first) = self.links.get(&identity) {
                header.kind = Kind::HardLink;
                header.link = first.clone();
                return self.put_header(&header, stat);
            }
            if self.links.len() < MAX_LINKS {
                self.links.insert(identity, header.name.clone());
            }
        }
        let file = open::open(at, name, libc::O_RDONLY | libc::O_NOFOLLOW, 0)?;
        let stat = fd::stat(&file)?;
        if open::kind(&stat) != libc::S_IFREG {
            return Err(libc::ENOENT);
        }
        header.size = stat.st_size.max(0) as u64;
        self.put_header(&header, &stat)?;
        self.put_body(&file, header.size)
    }

    /// Exactly `size` bytes: a file that shrinks meanwhile is filled up, one that grows is cut.
    fn put_body(&mut self, file: &OwnedFd, size: u64) -> Result<(), Errno> {
        let mut left = size;
        while left > 0 {
            let start = self.out.len();
            let want = left.min(CHUNK as u64) as usize;
            self.out.resize(start + want, 0);
            let n = fd::read(file, &mut self.out[start..])?;
            let n = if n == 0 { want } else { n };
            self.out.truncate(start + n);
            left -= n as u64;
            if self.out.len() >= CHUNK {
                self.flush()?;
            }
        }
        let padded = self.out.len() + header::padding(size) as usize;
        self.out.resize(padded, 0);
        Ok(())
    }

    fn put_header(&mut self, header: &Header, stat: &libc::stat) -> Result<(), Errno> {
        self.entries += 1;
        let (block, overflow) = header::build(header, stat.st_uid, stat.st_gid);
        let mut records = Vec::new();
        if overflow.name {
            pax::append(&mut records, "path", &header.name);
        }
        if overflow.link {
            pax::append(&mut records, "linkpath", &header.link);
        }
        if overflow.size {
            pax::append(&mut records, "size", header.size.to_string().as_bytes());
        }
        let nanos = stat.st_mtime_nsec as u32;
        if nanos != 0 || overflow.mtime {
            pax::append(&mut records, "mtime", pax::time_text(stat.st_mtime, nanos).as_bytes());
        }
        if !records.is_empty() {
            let size = records.len() as u64;
            let pax_header =
                Header { name: b"pax".to_vec(), link: Vec::new(), kind: Kind::PaxNext, mode: 0o644, size, mtime: 0 };
            self.out.extend_from_slice(&header::build(&pax_header, 0, 0).0);
            self.out.extend_from_slice(&records);
            let padded = self.out.len() + header::padding(size) as usize;
            self.out.resize(padded, 0);
        }
        self.out.extend_from_slice(&block);
        if self.out.len() >= CHUNK {
            self.flush()?;
        }
        Ok(())
    }
}
