//! `file.write`: into a temporary file beside the target, then renamed over it, so that readers see the old contents or the new
//! and nothing between. Where that cannot be (the target is a mount of its own, or would change its owner), it is written in place.

use std::os::fd::{AsRawFd, OwnedFd};

use serde::Deserialize;
use serde_json::{Value, json};

use super::access::AsUser;
use super::change::check_mode;
use super::entry::{FileEntry, MODE_BITS};
use super::open::{self, absolute, c_path};
use super::target::{self, Target};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::identity::Identity;
use crate::params;
use crate::streams::{After, Stream};
use crate::sys::{self, Errno, check, fd};
use crate::worker::{self, Direction, Push};

const NEW_FILE_MODE: u32 = 0o644;
/// Beyond this a worker writes: the kernel makes those wait who write much.
const INLINE_BYTES: u64 = 4 << 20;
/// Attempts to find a free temporary name.
const MAX_TRIES: u32 = 16;
const CHUNK: usize = 64 << 10;
const TEMPORARY_PREFIX: &str = ".dsec-";

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WriteParams {
    path: String,
    user: Option<String>,
    mode: Option<u32>,
    create_parents: Option<bool>,
    #[serde(default)]
    append: bool,
}

#[derive(Debug)]
pub struct FileWrite {
    file: OwnedFd,
    path: String,
    identity: Identity,
    /// Directory, temporary name and final name; nothing when it is written in place.
    rename: Option<Rename>,
    /// Set in the end.
    mode: Option<u32>,
    written: u64,
    push: Option<Push>,
}

#[derive(Debug)]
struct Rename {
    directory: OwnedFd,
    temporary: Vec<u8>,
    name: Vec<u8>,
}

pub fn write(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: WriteParams = params::parse(text)?;
    check_mode(params.mode)?;
    let path = absolute("path", &params.path)?;
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let failed = |errno| Failure::file(errno, &path);
    let target = target::find(path.as_bytes(), params.create_parents != Some(false)).map_err(failed)?;
    match target.existing.as_ref().map(open::kind) {
        None | Some(libc::S_IFREG) => {}
        Some(libc::S_IFDIR) => return Err(failed(libc::EISDIR)),
        Some(_) => return Err(failed(libc::ENXIO)),
    }
    let (file, rename, mode) = if params.append {
        let mode = params.mode.filter(|_| target.existing.is_none());
        (open_append(&target, mode).map_err(failed)?, None, mode)
    } else {
        prepare(target, params.mode, &identity).map_err(failed)?
    };
    if open::is_on_proc(&file) {
        return Err(failed(libc::EACCES));
    }
    let write =
        FileWrite { file, path: path.clone(), identity: identity.clone(), rename, mode, written: 0, push: None };
    Ok(Reply::Stream(Stream::FileWrite(Box::new(write))))
}

fn open_append(target: &Target, mode: Option<u32>) -> Result<OwnedFd, Errno> {
    let flags = libc::O_WRONLY | libc::O_APPEND | libc::O_CREAT | libc::O_NOFOLLOW;
    open::open(target.directory.as_raw_fd(), &c_path(target.name.as_slice())?, flags, mode.unwrap_or(NEW_FILE_MODE))
}

type Prepared = (OwnedFd, Option<Rename>, Option<u32>);

/// Opens what is written to: a temporary file, or the target itself.
fn prepare(target: Target, mode: Option<u32>, identity: &Identity) -> Result<Prepared, Errno> {
    let Target { directory, name, existing } = target;
    let Some(stat) = existing else {
        let (file, temporary) = make_temporary(&directory)?;
        return Ok((file, Some(Rename { directory, temporary, name }), Some(mode.unwrap_or(NEW_FILE_MODE))));
    };
    // Whoever may not write to the file may not replace it either.
    let c_name = c_path(name.as_slice())?;
    let in_place = open::open(directory.as_raw_fd(), &c_name, libc::O_WRONLY | libc::O_NOFOLLOW, 0)?;
    if !is_mount(&directory, &c_name)
        && let Ok((file, temporary)) = make_temporary(&directory)
    {
        let kept = Rename { directory, temporary, name };
        if keep_owner(&file, &stat) {
            let special = if identity.uid == 0 { 0 } else { libc::S_ISUID | libc::S_ISGID };
            return Ok((file, Some(kept), Some(stat.st_mode & MODE_BITS & !special)));
        }
        kept.discard();
    }
    // SAFETY: plain descriptor call.
    check(unsafe { libc::ftruncate(in_place.as_raw_fd(), 0) })?;
    Ok((in_place, None, None))
}

fn keep_owner(file: &OwnedFd, stat: &libc::stat) -> bool {
    let Ok(fresh) = fd::stat(file) else { return false };
    if (fresh.st_uid, fresh.st_gid) == (stat.st_uid, stat.st_gid) {
        return true;
    }
    // SAFETY: plain descriptor call.
    unsafe { libc::fchown(file.as_raw_fd(), stat.st_uid, stat.st_gid) == 0 }
}

/// True for a file that something is mounted on: it cannot be renamed over.
fn is_mount(directory: &OwnedFd, name: &std::ffi::CStr) -> bool {
    // SAFETY: a statx of zeros is valid; the name ends with NUL.
    unsafe {
        let mut info: libc::statx = std::mem::zeroed();
        let flags = libc::AT_SYMLINK_NOFOLLOW | libc::AT_NO_AUTOMOUNT;
        libc::statx(directory.as_raw_fd(), name.as_ptr(), flags, 0, &mut info) == 0
            && info.stx_attributes & libc::STATX_ATTR_MOUNT_ROOT as u64 != 0
    }
}

/// True for the names that `file.write` gives to what is not complete.
pub fn is_temporary(name: &[u8]) -> bool {
    let digits = name.strip_prefix(TEMPORARY_PREFIX.as_bytes()).unwrap_or_default();
    digits.len() == 16 && digits.iter().all(u8::is_ascii_hexdigit)
}

fn make_temporary(directory: &OwnedFd) -> Result<(OwnedFd, Vec<u8>), Errno> {
    for _ in 0..MAX_TRIES {
        let mut random = [0u8; 8];
        // SAFETY: the buffer is valid for its length.
        unsafe { libc::getrandom(random.as_mut_ptr().cast(), random.len(), libc::GRND_NONBLOCK) };
        let name = format!("{TEMPORARY_PREFIX}{:016x}", u64::from_ne_bytes(random)).into_bytes();
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        match open::open(directory.as_raw_fd(), &c_path(name.as_slice())?, flags, 0o600) {
            Err(libc::EEXIST) => {}
            other => return other.map(|file| (file, name)),
        }
    }
    Err(libc::EEXIST)
}

impl Rename {
    fn discard(&self) {
        if let Ok(name) = c_path(self.temporary.as_slice()) {
            // SAFETY: the name ends with NUL.
            unsafe { libc::unlinkat(self.directory.as_raw_fd(), name.as_ptr(), 0) };
        }
    }

    fn commit(&self) -> Result<(), Errno> {
        let (from, to) = (c_path(self.temporary.as_slice())?, c_path(self.name.as_slice())?);
        let at = self.directory.as_raw_fd();
        // SAFETY: the names end with NUL.
        check(unsafe { libc::renameat(at, from.as_ptr(), at, to.as_ptr()) })?;
        Ok(())
    }
}

impl FileWrite {
    pub fn on_data(&mut self, aether: &mut Aether, at: StreamKey, bytes: &[u8]) -> After {
        self.written += bytes.len() as u64;
        if self.push.is_none() && self.written > INLINE_BYTES {
            // Without a worker (no process can be had) it goes on as it began.
            self.push = self.hand_over(aether, at).ok().map(Push::new);
        }
        if let Some(push) = &mut self.push {
            push.on_data(aether, at, bytes);
            return After::Keep;
        }
        let outcome = fd::write_all(&self.file, bytes);
        if let Some(connection) = aether.connections.get_mut(at.connection) {
            connection.server.consumed(at.stream, bytes.len());
        }
        match outcome {
            Ok(()) => After::Keep,
            Err(errno) => self.fail(aether, at, Failure::file(errno, &self.path)),
        }
    }

    fn hand_over(&self, aether: &mut Aether, at: StreamKey) -> Outcome<worker::Worker> {
        let (file, path) = (&self.file, &self.path);
        worker::start(aether, at, Direction::ToWorker, &[file.as_raw_fd()], |pipe| {
            let mut buffer = vec![0; CHUNK];
            loop {
                match fd::read(pipe, &mut buffer) {
                    Ok(0) => return Ok(json!({})),
                    Ok(n) => fd::write_all(file, &buffer[..n]).map_err(|errno| Failure::file(errno, path))?,
                    Err(errno) => return Err(Failure::file(errno, path)),
                }
            }
        })
    }

    pub fn on_end(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        match &mut self.push {
            Some(push) => {
                push.on_end(aether, at);
                After::Keep
            }
            None => self.complete(aether, at),
        }
    }

    /// The worker is ready for more, or has ended.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        let Some(push) = &mut self.push else { return After::Keep };
        match push.on_ready(aether, at) {
            None => After::Keep,
            Some(Ok(_)) => self.complete(aether, at),
            Some(Err(failure)) => self.fail(aether, at, failure),
        }
    }

    fn fail(&mut self, aether: &mut Aether, at: StreamKey, failure: Failure) -> After {
        aether.answer(at, Err(failure));
        After::Done
    }

    fn complete(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        let outcome = AsUser::enter(&self.identity)
            .and_then(|_user| self.put_in_place().map_err(|errno| Failure::file(errno, &self.path)));
        aether.answer(at, outcome);
        After::Done
    }

    fn put_in_place(&mut self) -> Result<Value, Errno> {
        if let Some(mode) = self.mode {
            // SAFETY: plain descriptor call.
            sys::check(unsafe { libc::fchmod(self.file.as_raw_fd(), mode) })?;
        }
        if let Some(rename) = self.rename.take() {
            rename.commit().inspect_err(|_| rename.discard())?;
        }
        let stat = fd::stat(&self.file)?;
        Ok(json!(FileEntry::new(self.path.as_bytes(), &stat, None)))
    }

    /// Nothing of it stays when it was not completed.
    pub fn release(self, aether: &mut Aether) {
        if let Some(rename) = &self.rename
            && let Ok(_user) = AsUser::enter(&self.identity)
        {
            rename.discard();
        }
        if let Some(push) = self.push {
            push.worker.release(aether);
        }
    }
}
