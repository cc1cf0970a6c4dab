//! `file.remove`: one file, an empty directory, or a whole tree in bounded pieces.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde::Deserialize;
use serde_json::json;

use super::access::AsUser;
use super::entry::base_name;
use super::list::join;
use super::open::{self, absolute, c_path};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::identity::Identity;
use crate::params;
use crate::streams::{After, Stream};
use crate::sys::dir::DirReader;
use crate::sys::{Errno, check};

/// Names removed in one turn.
const PER_TURN: usize = 64;
/// Directories open at once. What lies deeper is first moved up to where the removal began.
const MAX_OPEN: usize = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct RemoveParams {
    path: String,
    user: Option<String>,
    #[serde(default)]
    recursive: bool,
}

#[derive(Debug)]
pub struct FileRemove {
    identity: Identity,
    /// The directory that the tree is in.
    parent: OwnedFd,
    name: CString,
    stack: Vec<Level>,
    /// Deep directories that were moved up, ever.
    moved: u64,
    /// Some of them may be left when the first directory has been read to its end.
    has_moved: bool,
}

#[derive(Debug)]
struct Level {
    reader: DirReader,
    /// In the level before.
    name: CString,
    path: Vec<u8>,
}

fn open_directory(at: RawFd, name: &CString) -> Result<OwnedFd, Errno> {
    open::open(at, name, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)
}

fn unlink(at: RawFd, name: &CString, is_directory: bool) -> Result<(), Errno> {
    let flags = if is_directory { libc::AT_REMOVEDIR } else { 0 };
    // SAFETY: the name ends with NUL.
    check(unsafe { libc::unlinkat(at, name.as_ptr(), flags) })?;
    Ok(())
}

pub fn remove(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: RemoveParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let trimmed = path.trim_end_matches('/');
    let failed = |errno| Failure::file(errno, &path);
    let name = base_name(trimmed.as_bytes());
    if trimmed.is_empty() || matches!(name, b"." | b"..") {
        return Err(Failure::invalid("path", "path does not name what could be removed"));
    }
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let directory = &trimmed[..trimmed.len() - name.len()];
    let c_directory = c_path(if directory.is_empty() { "/" } else { directory }).map_err(failed)?;
    let parent = open::open(libc::AT_FDCWD, &c_directory, libc::O_PATH | libc::O_DIRECTORY, 0).map_err(failed)?;
    let name = c_path(name).map_err(failed)?;
    let stat = open::stat_at(parent.as_raw_fd(), &name, false).map_err(failed)?;
    let is_directory = open::kind(&stat) == libc::S_IFDIR;
    if !is_directory || !params.recursive {
        unlink(parent.as_raw_fd(), &name, is_directory).map_err(failed)?;
        return Ok(Reply::Value(json!({})));
    }
    let first = open_directory(parent.as_raw_fd(), &name).map_err(failed)?;
    let stack = vec![Level { reader: DirReader::new(first), name: name.clone(), path: path.into_bytes() }];
    aether.queue(at);
    let removal = FileRemove { identity: identity.clone(), parent, name, stack, moved: 0, has_moved: false };
    Ok(Reply::Stream(Stream::FileRemove(Box::new(removal))))
}

/// An error and the path that it concerns.
type Failed = (Errno, Vec<u8>);

impl FileRemove {
    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        let outcome = match AsUser::enter(&self.identity) {
            Ok(_user) => self.steps(),
            Err(failure) => {
                aether.answer(at, Err(failure));
                return After::Done;
            }
        };
        match outcome {
            Ok(()) if self.stack.is_empty() => {
                aether.answer(at, Ok(json!({})));
                After::Done
            }
            Ok(()) => {
                aether.queue(at);
                After::Keep
            }
            Err((errno, path)) => {
                aether.answer(at, Err(Failure::file(errno, &String::from_utf8_lossy(&path))));
                After::Done
            }
        }
    }

    fn steps(&mut self) -> Result<(), Failed> {
        for _ in 0..PER_TURN {
            if self.stack.is_empty() {
                break;
            }
            self.step()?;
        }
        Ok(())
    }

    fn step(&mut self) -> Result<(), Failed> {
        let Some(level) = self.stack.last_mut() else { return Ok(()) };
        let here = level.reader.fd().as_raw_fd();
        let (name, kind) = match level.reader.next_name() {
            Ok(Some(entry)) => (entry.name.to_vec(), entry.kind),
            Ok(None) => return self.leave(),
            Err(errno) => return Err((errno, level.path.clone())),
        };
        let path = join(&level.path, &name);
        let failed = |errno| (errno, path.clone());
        let c_name = c_path(name).map_err(failed)?;
        if kind != libc::DT_DIR {
            match unlink(here, &c_name, false) {
                Ok(()) | Err(libc::ENOENT) => return Ok(()),
                Err(libc::EISDIR) => {}
                Err(libc::EPERM) if kind == libc::DT_UNKNOWN => {}
                Err(errno) => return Err(failed(errno)),
            }
        }
        match unlink(here, &c_name, true) {
            Ok(()) | Err(libc::ENOENT) => return Ok(()),
            Err(libc::ENOTEMPTY | libc::EEXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
        if self.stack.len() >= MAX_OPEN {
            return self.move_up(here, &c_name).map_err(failed);
        }
        let directory = open_directory(here, &c_name).map_err(failed)?;
        self.stack.push(Level { reader: DirReader::new(directory), name: c_name, path });
        Ok(())
    }

    /// A directory that has been read to its end is empty, unless something was moved into it or made in it meanwhile.
    fn leave(&mut self) -> Result<(), Failed> {
        let Some(level) = self.stack.pop() else { return Ok(()) };
        let (at, name) = match self.stack.last() {
            Some(above) => (above.reader.fd().as_raw_fd(), &level.name),
            None => (self.parent.as_raw_fd(), &self.name),
        };
        match unlink(at, name, true) {
            Ok(()) | Err(libc::ENOENT) => Ok(()),
            Err(libc::ENOTEMPTY | libc::EEXIST) if self.has_moved && self.stack.is_empty() => {
                // What was moved up is next.
                self.has_moved = false;
                let failed = |errno| (errno, level.path.clone());
                let directory = open_directory(at, name).map_err(failed)?;
                self.stack.push(Level { reader: DirReader::new(directory), name: level.name, path: level.path });
                Ok(())
            }
            Err(errno) => Err((errno, level.path)),
        }
    }

    fn move_up(&mut self, at: RawFd, name: &CString) -> Result<(), Errno> {
        let Some(top) = self.stack.first() else { return Ok(()) };
        self.moved += 1;
        self.has_moved = true;
        let fresh = c_path(format!(".dsec-removed-{}-{}", std::process::id(), self.moved))?;
        let top = top.reader.fd().as_raw_fd();
        // SAFETY: both names end with NUL.
        check(unsafe { libc::renameat2(at, name.as_ptr(), top, fresh.as_ptr(), libc::RENAME_NOREPLACE) })?;
        Ok(())
    }
}
