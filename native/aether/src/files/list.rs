//! `file.list`: a directory, to a depth, in bounded pieces.

use std::os::fd::AsRawFd;

use serde::{Deserialize, Serialize};
use serde_json::{json, value::RawValue};
use wire::SendError;

use super::access::AsUser;
use super::entry::FileEntry;
use super::open::{self, absolute, c_path};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::identity::Identity;
use crate::params;
use crate::streams::{After, Stream};
use crate::sys::Errno;
use crate::sys::dir::DirReader;

const MAX_DEPTH: usize = 64;
/// Entries of one answer, unless the caller asks for fewer.
const MAX_ENTRIES: u64 = 1_000_000;
/// Entries looked at in one turn.
const PER_TURN: usize = 128;
/// Bytes of JSON in one message, with room for what surrounds them.
const MESSAGE_BYTES: usize = wire::MAX_DATA - 1_024;
/// No deeper than a path can be named.
const MAX_PATH: usize = libc::PATH_MAX as usize;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ListParams {
    path: String,
    user: Option<String>,
    depth: Option<usize>,
    limit: Option<u64>,
}

#[derive(Debug)]
pub struct FileList {
    identity: Identity,
    /// The open directories from the first to the one that is read.
    stack: Vec<Level>,
    depth: usize,
    limit: u64,
    count: u64,
    truncated: bool,
    batch: Vec<Box<RawValue>>,
    batch_bytes: usize,
}

#[derive(Debug)]
struct Level {
    reader: DirReader,
    path: Vec<u8>,
}

#[derive(Serialize)]
struct Message<'a> {
    entries: &'a [Box<RawValue>],
}

pub fn list(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: ListParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let depth = params.depth.unwrap_or(1);
    if !(1..=MAX_DEPTH).contains(&depth) {
        return Err(Failure::invalid("depth", format!("depth must be 1 to {MAX_DEPTH}")));
    }
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let failed = |errno| Failure::file(errno, &path);
    let flags = libc::O_RDONLY | libc::O_DIRECTORY;
    let directory = open::open(libc::AT_FDCWD, &c_path(path.as_str()).map_err(failed)?, flags, 0).map_err(failed)?;
    aether.queue(at);
    let first = Level { reader: DirReader::new(directory), path: path.into_bytes() };
    Ok(Reply::Stream(Stream::FileList(Box::new(FileList {
        identity: identity.clone(),
        stack: vec![first],
        depth,
        limit: params.limit.unwrap_or(MAX_ENTRIES).min(MAX_ENTRIES),
        count: 0,
        truncated: false,
        batch: Vec::new(),
        batch_bytes: 0,
    }))))
}

/// The path of `name` in a directory.
pub fn join(directory: &[u8], name: &[u8]) -> Vec<u8> {
    let mut path = directory.to_vec();
    if path.last() != Some(&b'/') {
        path.push(b'/');
    }
    path.extend_from_slice(name);
    path
}

impl FileList {
    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if let Ok(_user) = AsUser::enter(&self.identity) {
            for _ in 0..PER_TURN {
                if self.stack.is_empty() || self.batch_bytes >= MESSAGE_BYTES / 2 {
                    break;
                }
                self.step();
            }
        }
        if (self.batch_bytes >= MESSAGE_BYTES / 2 || self.stack.is_empty()) && !self.send(aether, at) {
            // It goes on when the stream is writable.
            return After::Keep;
        }
        if self.stack.is_empty() {
            aether.answer(at, Ok(json!({ "count": self.count, "truncated": self.truncated })));
            return After::Done;
        }
        aether.queue(at);
        After::Keep
    }

    /// False when the client must take something first.
    fn send(&mut self, aether: &mut Aether, at: StreamKey) -> bool {
        let Some(connection) = aether.connections.get_mut(at.connection) else { return false };
        if self.batch.is_empty() {
            return true;
        }
        match connection.server.send_message(at.stream, &Message { entries: &self.batch }) {
            Err(SendError::Blocked) => false,
            _ => {
                self.batch.clear();
                self.batch_bytes = 0;
                true
            }
        }
    }

    /// Takes one name.
    fn step(&mut self) {
        let Some(level) = self.stack.last_mut() else { return };
        let name = match level.reader.next_name() {
            Ok(Some(name)) => name.name.to_vec(),
            // A directory that cannot be read further ends here, like one that vanished.
            _ => {
                self.stack.pop();
                return;
            }
        };
        if self.count >= self.limit {
            self.truncated = true;
            self.stack.clear();
            return;
        }
        let path = join(&level.path, &name);
        let directory = level.reader.fd().as_raw_fd();
        // A name that vanished in the meantime is no entry.
        let Ok((entry, stat)) = FileEntry::at(directory, &name, &path) else { return };
        let Ok(text) = serde_json::value::to_raw_value(&entry) else { return };
        self.count += 1;
        self.batch_bytes += text.get().len() + 1;
        self.batch.push(text);
        let is_directory = open::kind(&stat) == libc::S_IFDIR;
        if is_directory && self.stack.len() < self.depth && path.len() < MAX_PATH {
            self.descend(&name, path);
        }
    }

    fn descend(&mut self, name: &[u8], path: Vec<u8>) {
        let Some(level) = self.stack.last() else { return };
        let opened = c_path(name).and_then(|name| -> Result<_, Errno> {
            let flags = libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW;
            open::open(level.reader.fd().as_raw_fd(), &name, flags, 0)
        });
        // One that the user may not read is listed without its contents.
        if let Ok(directory) = opened {
            self.stack.push(Level { reader: DirReader::new(directory), path });
        }
    }
}
