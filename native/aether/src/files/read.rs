//! `file.read`.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use serde::Deserialize;
use serde_json::{Value, json};
use wire::SendError;

use super::access::AsUser;
use super::entry::FileEntry;
use super::open::{self, absolute};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::params;
use crate::streams::{After, Stream};
use crate::sys::fd;
use crate::worker::{self, Direction, Pull};

/// A file beyond this is read by a worker: its pages may have to come from far.
const INLINE_BYTES: u64 = 1 << 20;
/// Sent of one file before the others have their turn.
const CHUNK: usize = wire::MAX_DATA;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ReadParams {
    path: String,
    user: Option<String>,
    #[serde(default)]
    offset: u64,
    length: Option<u64>,
}

/// A small file, read in-process.
#[derive(Debug)]
pub struct FileRead {
    file: OwnedFd,
    path: String,
    offset: u64,
    left: u64,
    sent: u64,
    /// The message that comes first.
    entry: Option<Value>,
}

pub fn read(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: ReadParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let c_path = CString::new(path.as_str()).map_err(|_| Failure::invalid("path", "path contains a NUL byte"))?;
    let failed = |errno| Failure::file(errno, &path);
    let identity = aether.file_user(params.user.as_deref())?;
    let user = AsUser::enter(&identity)?;
    let file = open::open(libc::AT_FDCWD, &c_path, libc::O_RDONLY, 0).map_err(failed)?;
    drop(user);
    let stat = fd::stat(&file).map_err(failed)?;
    match open::kind(&stat) {
        libc::S_IFREG => {}
        libc::S_IFDIR => return Err(failed(libc::EISDIR)),
        _ => return Err(failed(libc::ENXIO)),
    }
    let left = params.length.unwrap_or(u64::MAX);
    let entry = json!({ "entry": FileEntry::new(path.as_bytes(), &stat, None) });
    let remaining = (stat.st_size.max(0) as u64).saturating_sub(params.offset).min(left);
    let is_proc = open::is_on_proc(&file);
    if is_proc || remaining > INLINE_BYTES {
        let keep = [file.as_raw_fd()];
        let offset = params.offset;
        let started = worker::start(aether, at, Direction::FromWorker, &keep, |pipe| {
            let file = if is_proc {
                worker::become_user(&identity)?;
                // Opened anew: by this process, which is nobody special.
                open::open(libc::AT_FDCWD, &c_path, libc::O_RDONLY, 0).map_err(failed)?
            } else {
                file.try_clone().map_err(|_| failed(libc::EMFILE))?
            };
            // SAFETY: plain descriptor call.
            unsafe { libc::lseek(file.as_raw_fd(), offset.min(i64::MAX as u64) as i64, libc::SEEK_SET) };
            let bytes = worker::copy_to_pipe(&file, pipe, left).map_err(failed)?;
            Ok(json!({ "bytes": bytes }))
        });
        match started {
            Ok(worker) => return Ok(Reply::Stream(Stream::Pull(Box::new(Pull::new(worker, Some(entry)))))),
            // No process can be had: slower for the others, but read all the same.
            Err(failure) if failure.code == "pids_exhausted" && !is_proc => {}
            Err(failure) => return Err(failure),
        }
    }
    aether.queue(at);
    Ok(Reply::Stream(Stream::FileRead(Box::new(FileRead {
        file,
        path,
        offset: params.offset,
        left,
        sent: 0,
        entry: Some(entry),
    }))))
}

impl FileRead {
    pub fn on_turn(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        let Some(connection) = aether.connections.get_mut(at.connection) else { return After::Done };
        connection.is_dirty = true;
        if let Some(entry) = &self.entry {
            if connection.server.send_message(at.stream, entry) == Err(SendError::Blocked) {
                return After::Keep;
            }
            self.entry = None;
        }
        let want = (CHUNK as u64).min(self.left) as usize;
        let n = match fd::pread(&self.file, &mut aether.scratch[..want], self.offset) {
            Ok(0) => {
                connection.server.close_ok(at.stream, &json!({ "bytes": self.sent }));
                return After::Done;
            }
            Ok(n) => n,
            Err(errno) => {
                aether.answer(at, Err(Failure::file(errno, &self.path)));
                return After::Done;
            }
        };
        let sent = connection.server.send_data(at.stream, 0, &aether.scratch[..n]);
        self.offset += sent as u64;
        self.left -= sent as u64;
        self.sent += sent as u64;
        if sent == n {
            aether.queue(at);
        }
        // Otherwise the stream is told when it may go on.
        After::Keep
    }
}
