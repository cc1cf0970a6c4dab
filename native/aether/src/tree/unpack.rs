//! Unpacking an archive into a directory, as an attack: nothing outside of the directory is touched, whatever the names and links
//! in the archive, or already in the directory, say.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use super::header::Kind;
use super::reader::{Entry, Input, ReadError, Reader};
use crate::errors::{Failure, Outcome, errno_name};
use crate::files::open::{self, BENEATH, c_path};
use crate::files::target::make_all;
use crate::sys::{Errno, check, fd};

/// Directories whose mode and time are set at the end, when nothing more is put into them.
const MAX_DIRECTORIES: usize = 1 << 20;
const NEW_DIRECTORY_MODE: u32 = 0o755;
const CHUNK: usize = 64 << 10;

/// What may be created.
#[derive(Clone, Copy, Debug)]
pub struct Rules {
    /// Symbolic links may point anywhere; nothing is ever written through one that leaves the tree.
    pub any_symlinks: bool,
    /// Mode bits that entries may have.
    pub mode_mask: u32,
}

impl Input for &OwnedFd {
    fn read(&mut self, buffer: &mut [u8]) -> Result<usize, ReadError> {
        fd::read(*self, buffer).map_err(ReadError::Input)
    }
}

struct Unpacker {
    root: OwnedFd,
    /// The directory itself was made here.
    is_new: bool,
    rules: Rules,
    entries: u64,
    /// The parent of the last entry, which is often that of the next.
    last_parent: Option<(Vec<u8>, OwnedFd)>,
    directories: Vec<(Vec<u8>, u32, (i64, u32))>,
}

/// Why an entry was not put in place.
enum Refused {
    Unsafe,
    Errno(Errno),
    Read(ReadError),
    TooMany,
}

impl From<Errno> for Refused {
    fn from(errno: Errno) -> Self {
        match errno {
            // What openat2 says of a way that leaves the tree.
            libc::EXDEV => Self::Unsafe,
            errno => Self::Errno(errno),
        }
    }
}

/// Unpacks into the directory `path`, which is made when it is missing. Returns the number of entries.
pub fn unpack<I: Input>(path: &str, input: I, rules: Rules) -> Outcome<u64> {
    let failed = |errno| Failure::file(errno, path);
    let base = open::open(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY, 0).map_err(failed)?;
    let is_new = open::stat_at(libc::AT_FDCWD, &c_path(path).map_err(failed)?, true).is_err();
    let root = make_all(&base, path.as_bytes(), NEW_DIRECTORY_MODE).map_err(failed)?;
    let mut unpacker = Unpacker { root, is_new, rules, entries: 0, last_parent: None, directories: Vec::new() };
    let mut reader = Reader::new(input);
    loop {
        let entry = match reader.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(error) => return Err(read_failure(error)),
        };
        unpacker.put(&mut reader, &entry).map_err(|refused| refusal(refused, &entry, path))?;
    }
    unpacker.finish_directories().map_err(failed)?;
    reader.drain().map_err(read_failure)?;
    Ok(unpacker.entries)
}

fn read_failure(error: ReadError) -> Failure {
    match error {
        ReadError::Damaged(offset) => {
            Failure::new("archive_invalid", format!("The archive is damaged at byte {offset}.")).with("offset", offset)
        }
        ReadError::Unsupported(offset) => {
            let message = format!("The entry at byte {offset} has a form that is not supported.");
            Failure::new("archive_invalid", message).with("offset", offset)
        }
        ReadError::Input(errno) => {
            Failure::new("internal", format!("The archive could not be read ({}).", errno_name(errno)))
        }
    }
}

fn refusal(refused: Refused, entry: &Entry, path: &str) -> Failure {
    let name = String::from_utf8_lossy(&entry.name).into_owned();
    match refused {
        Refused::Unsafe => {
            let message = format!("The entry {name:?} leaves the directory, or is a device.");
            Failure::new("archive_unsafe", message).with("entry", name)
        }
        Refused::TooMany => Failure::new("archive_invalid", "The archive has more directories than are kept.")
            .with("offset", entry.offset),
        Refused::Read(error) => read_failure(error),
        Refused::Errno(errno) => Failure::file(errno, &format!("{path}/{name}")).with("entry", name),
    }
}

/// The components of a name: neither absolute nor through `..`. Empty for the directory itself.
pub fn components(name: &[u8]) -> Option<Vec<&[u8]>> {
    if name.is_empty() || name.starts_with(b"/") || name.contains(&0) {
        return None;
    }
    let parts: Vec<&[u8]> = name.split(|&byte| byte == b'/').filter(|part| !matches!(*part, b"" | b".")).collect();
    (!parts.contains(&&b".."[..])).then_some(parts)
}

/// True when a link at `parts` that says `target` stays in the tree, by its words.
pub fn stays_inside(parts: &[&[u8]], target: &[u8]) -> bool {
    if target.starts_with(b"/") || target.contains(&0) {
        return false;
    }
    let mut depth = parts.len() as i64 - 1;
    for part in target.split(|&byte| byte == b'/') {
        match part {
            b"" | b"." => {}
            b".." => depth -= 1,
            _ => depth += 1,
        }
        if depth < 0 {
            return false;
        }
    }
    true
}

impl Unpacker {
    fn put<I: Input>(&mut self, reader: &mut Reader<I>, entry: &Entry) -> Result<(), Refused> {
        let parts = components(&entry.name).ok_or(Refused::Unsafe)?;
        let mode = entry.mode & self.rules.mode_mask;
        self.entries += 1;
        let Some((last, parents)) = parts.split_last() else {
            // `./`: the directory itself. One that was there before stays as it is.
            return match entry.kind {
                Kind::Directory if self.is_new => self.remember(b".".to_vec(), mode, entry.mtime),
                Kind::Directory => Ok(()),
                _ => Err(Refused::Unsafe),
            };
        };
        if entry.kind == Kind::Device {
            return Err(Refused::Unsafe);
        }
        let name = c_path(*last)?;
        self.enter(parents)?;
        let Some((_, parent)) = &self.last_parent else { return Err(Refused::Errno(libc::ENOENT)) };
        let at = parent.as_raw_fd();
        match entry.kind {
            Kind::Directory => {
                make_directory(at, &name)?;
                self.remember(parts.join(&b'/'), mode, entry.mtime)
            }
            Kind::File => {
                replace(at, &name)?;
                let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
                let file = open::open_resolved(at, &name, flags, 0o600, BENEATH)?;
                copy_body(reader, &file)?;
                // SAFETY: plain descriptor call.
                check(unsafe { libc::fchmod(file.as_raw_fd(), mode) })?;
                set_time(at, &name, entry.mtime)?;
                Ok(())
            }
            Kind::Symlink => {
                if !self.rules.any_symlinks && !stays_inside(&parts, &entry.link) {
                    return Err(Refused::Unsafe);
                }
                let target = c_path(entry.link.as_slice())?;
                replace(at, &name)?;
                // SAFETY: both end with NUL.
                check(unsafe { libc::symlinkat(target.as_ptr(), at, name.as_ptr()) })?;
                set_time(at, &name, entry.mtime)?;
                Ok(())
            }
            Kind::HardLink => self.put_hard_link(entry, at, &name),
            Kind::Fifo => {
                replace(at, &name)?;
                // SAFETY: the name ends with NUL.
                check(unsafe { libc::mkfifoat(at, name.as_ptr(), mode) })?;
                set_time(at, &name, entry.mtime)?;
                Ok(())
            }
            _ => Err(Refused::Read(ReadError::Unsupported(entry.offset))),
        }
    }

    fn put_hard_link(&self, entry: &Entry, at: i32, name: &CString) -> Result<(), Refused> {
        let parts = components(&entry.link).ok_or(Refused::Unsafe)?;
        let (last, parents) = parts.split_last().ok_or(Refused::Unsafe)?;
        let directory = match parents {
            [] => None,
            _ => Some(open_directory(&self.root, &parents.join(&b'/'))?),
        };
        let from = directory.as_ref().unwrap_or(&self.root).as_raw_fd();
        let target = c_path(*last)?;
        let existing = open::stat_at(from, &target, false)?;
        if let Ok(there) = open::stat_at(at, name, false)
            && (there.st_dev, there.st_ino) == (existing.st_dev, existing.st_ino)
        {
            return Ok(());
        }
        replace(at, name)?;
        // SAFETY: both names end with NUL. Without AT_SYMLINK_FOLLOW a link is linked itself.
        check(unsafe { libc::linkat(from, target.as_ptr(), at, name.as_ptr(), 0) })?;
        Ok(())
    }

    /// Opens the directory of an entry; directories that the archive left out are made.
    fn enter(&mut self, parents: &[&[u8]]) -> Result<(), Refused> {
        let path = parents.join(&b'/');
        if self.last_parent.as_ref().is_some_and(|(last, _)| *last == path) {
            return Ok(());
        }
        let directory = if path.is_empty() {
            open_directory(&self.root, b".")?
        } else {
            match open_directory(&self.root, &path) {
                Err(libc::ENOENT) => {
                    let mut at = open_directory(&self.root, b".")?;
                    for end in 1..=parents.len() {
                        let so_far = parents[..end].join(&b'/');
                        at = match open_directory(&self.root, &so_far) {
                            Err(libc::ENOENT) => {
                                make_directory(at.as_raw_fd(), &c_path(parents[end - 1])?)?;
                                open_directory(&self.root, &so_far)?
                            }
                            other => other?,
                        };
                    }
                    at
                }
                other => other?,
            }
        };
        self.last_parent = Some((path, directory));
        Ok(())
    }

    fn remember(&mut self, path: Vec<u8>, mode: u32, mtime: (i64, u32)) -> Result<(), Refused> {
        if self.directories.len() >= MAX_DIRECTORIES {
            return Err(Refused::TooMany);
        }
        self.directories.push((path, mode, mtime));
        Ok(())
    }

    /// Deepest last made, first set: setting one changes the time of none above.
    fn finish_directories(&mut self) -> Result<(), Errno> {
        for (path, mode, mtime) in self.directories.drain(..).rev() {
            // One that a later entry replaced is no concern.
            let flags = libc::O_RDONLY | libc::O_DIRECTORY;
            let Ok(directory) = open::open_resolved(self.root.as_raw_fd(), &c_path(path)?, flags, 0, BENEATH) else {
                continue;
            };
            // SAFETY: plain descriptor call.
            check(unsafe { libc::fchmod(directory.as_raw_fd(), mode) })?;
            set_time(directory.as_raw_fd(), c".", mtime)?;
        }
        Ok(())
    }
}

fn open_directory(root: &OwnedFd, path: &[u8]) -> Result<OwnedFd, Errno> {
    open::open_resolved(root.as_raw_fd(), &c_path(path)?, libc::O_PATH | libc::O_DIRECTORY, 0, BENEATH)
}

/// A directory that is there stays; a link to one too, if it stays in the tree.
fn make_directory(at: i32, name: &CString) -> Result<(), Errno> {
    // SAFETY: the name ends with NUL.
    match check(unsafe { libc::mkdirat(at, name.as_ptr(), NEW_DIRECTORY_MODE) }) {
        Err(libc::EEXIST) => open::open_resolved(at, name, libc::O_PATH | libc::O_DIRECTORY, 0, BENEATH).map(drop),
        other => other.map(drop),
    }
}

/// Makes room for an entry: a file or link of its name goes, a directory does not.
fn replace(at: i32, name: &CString) -> Result<(), Errno> {
    // SAFETY: the name ends with NUL.
    match check(unsafe { libc::unlinkat(at, name.as_ptr(), 0) }) {
        Ok(_) | Err(libc::ENOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

fn copy_body<I: Input>(reader: &mut Reader<I>, file: &OwnedFd) -> Result<(), Refused> {
    let mut buffer = vec![0; CHUNK];
    loop {
        match reader.read_body(&mut buffer) {
            Ok(0) => return Ok(()),
            Ok(n) => fd::write_all(file, &buffer[..n])?,
            Err(error) => return Err(Refused::Read(error)),
        }
    }
}

fn set_time(at: i32, name: &std::ffi::CStr, (seconds, nanos): (i64, u32)) -> Result<(), Errno> {
    let time = libc::timespec { tv_sec: seconds, tv_nsec: i64::from(nanos) };
    // SAFETY: two timespecs; the name ends with NUL.
    check(unsafe { libc::utimensat(at, name.as_ptr(), [time, time].as_ptr(), libc::AT_SYMLINK_NOFOLLOW) })?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_leave_the_tree_are_refused() {
        for bad in [&b"/etc/passwd"[..], b"..", b"a/../../b", b"../x", b"", b"a\0b"] {
            assert_eq!(components(bad), None, "{bad:?}");
        }
        assert_eq!(components(b"./a//b/"), Some(vec![&b"a"[..], b"b"]));
        assert_eq!(components(b"./"), Some(vec![]));
        assert_eq!(components(b"..a/b.."), Some(vec![&b"..a"[..], b"b.."]));
    }

    #[test]
    fn links_are_judged_from_where_they_are() {
        let at: [&[u8]; 3] = [b"a", b"b", b"link"];
        for (target, inside) in
            [(&b"../../c"[..], true), (b"../../../c", false), (b"/c", false), (b"x/../../../..", false), (b"x", true)]
        {
            assert_eq!(stays_inside(&at, target), inside, "{target:?}");
        }
    }
}
