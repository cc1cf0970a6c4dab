//! Methods that are one system call or few: stat, mkdir, move, chmod, chown, symlink.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use serde::Deserialize;
use serde_json::json;

use super::access::AsUser;
use super::entry::{FileEntry, MODE_BITS};
use super::open::{self, absolute};
use super::target;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::identity;
use crate::params;
use crate::sys::{Errno, check};

const NEW_DIRECTORY_MODE: u32 = 0o755;

fn c_string(field: &str, text: &str) -> Outcome<CString> {
    CString::new(text).map_err(|_| Failure::invalid(field, format!("{field} contains a NUL byte")))
}

pub fn check_mode(mode: Option<u32>) -> Outcome<()> {
    match mode {
        Some(mode) if mode > MODE_BITS => Err(Failure::invalid("mode", "mode must be 0 to 07777 (4095)")),
        _ => Ok(()),
    }
}

/// The entry at a path, without following a link at its end.
fn entry_reply(path: &str) -> Outcome<Reply> {
    let (entry, _) =
        FileEntry::at(libc::AT_FDCWD, path.as_bytes(), path.as_bytes()).map_err(|errno| Failure::file(errno, path))?;
    Ok(Reply::Value(json!(entry)))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StatParams {
    path: String,
    user: Option<String>,
    follow_links: Option<bool>,
}

pub fn stat(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: StatParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    if params.follow_links == Some(false) {
        return entry_reply(&path);
    }
    let stat =
        open::stat_at(libc::AT_FDCWD, &c_string("path", &path)?, true).map_err(|errno| Failure::file(errno, &path))?;
    Ok(Reply::Value(json!(FileEntry::new(path.as_bytes(), &stat, None))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MkdirParams {
    path: String,
    user: Option<String>,
    mode: Option<u32>,
    #[serde(default)]
    parents: bool,
}

pub fn mkdir(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: MkdirParams = params::parse(text)?;
    check_mode(params.mode)?;
    let path = absolute("path", &params.path)?;
    let mode = params.mode.unwrap_or(NEW_DIRECTORY_MODE);
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let failed = |errno| Failure::file(errno, &path);
    if params.parents {
        let root = open::open(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY, 0).map_err(failed)?;
        let trimmed = path.trim_end_matches('/');
        if let Some((parents, name)) = trimmed.rsplit_once('/') {
            let at = target::make_all(&root, parents.as_bytes(), NEW_DIRECTORY_MODE).map_err(failed)?;
            // What stands in the way above is no directory; at the path itself it is something else that exists.
            let exists = |errno| failed(if errno == libc::ENOTDIR { libc::EEXIST } else { errno });
            target::make_all(&at, name.as_bytes(), mode).map_err(exists)?;
        }
    } else {
        // SAFETY: the path ends with NUL.
        check(unsafe { libc::mkdir(c_string("path", &path)?.as_ptr(), mode) }).map_err(failed)?;
    }
    let stat = open::stat_at(libc::AT_FDCWD, &c_string("path", &path)?, true).map_err(failed)?;
    Ok(Reply::Value(json!(FileEntry::new(path.as_bytes(), &stat, None))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct MoveParams {
    from: String,
    to: String,
    user: Option<String>,
    #[serde(default)]
    overwrite: bool,
}

/// Atomic, hence within one filesystem.
pub fn rename(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: MoveParams = params::parse(text)?;
    let (from, to) = (absolute("from", &params.from)?, absolute("to", &params.to)?);
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let (c_from, c_to) = (c_string("from", &from)?, c_string("to", &to)?);
    let flags = if params.overwrite { 0 } else { libc::RENAME_NOREPLACE };
    // SAFETY: the paths end with NUL.
    let moved =
        check(unsafe { libc::renameat2(libc::AT_FDCWD, c_from.as_ptr(), libc::AT_FDCWD, c_to.as_ptr(), flags) });
    moved.map_err(|errno| {
        let is_about_target = matches!(errno, libc::EEXIST | libc::ENOTEMPTY | libc::EISDIR | libc::ENOTDIR)
            || open::stat_at(libc::AT_FDCWD, &c_from, false).is_ok();
        Failure::file(errno, if is_about_target { &to } else { &from })
    })?;
    entry_reply(&to)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ChmodParams {
    path: String,
    mode: u32,
    user: Option<String>,
}

pub fn chmod(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: ChmodParams = params::parse(text)?;
    check_mode(Some(params.mode))?;
    let path = absolute("path", &params.path)?;
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let failed = |errno| Failure::file(errno, &path);
    check_reachable(&c_string("path", &path)?).map_err(failed)?;
    // SAFETY: the path ends with NUL.
    check(unsafe { libc::chmod(c_string("path", &path)?.as_ptr(), params.mode) }).map_err(failed)?;
    let stat = open::stat_at(libc::AT_FDCWD, &c_string("path", &path)?, true).map_err(failed)?;
    Ok(Reply::Value(json!(FileEntry::new(path.as_bytes(), &stat, None))))
}

/// Refuses paths through the links of /proc, which in these hands lead to aether's own files.
fn check_reachable(path: &CString) -> Result<OwnedFd, Errno> {
    open::open(libc::AT_FDCWD, path, libc::O_PATH, 0)
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ChownParams {
    path: String,
    owner: String,
    user: Option<String>,
}

pub fn chown(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: ChownParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    let owner = identity::resolve(&mut aether.accounts, &params.owner)?;
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let failed = |errno| Failure::file(errno, &path);
    let file = open::open(libc::AT_FDCWD, &c_string("path", &path)?, libc::O_PATH, 0).map_err(failed)?;
    let flags = libc::AT_EMPTY_PATH;
    // SAFETY: the empty path names the descriptor itself.
    check(unsafe { libc::fchownat(file.as_raw_fd(), c"".as_ptr(), owner.uid, owner.gid, flags) }).map_err(failed)?;
    let stat = open::stat_at(libc::AT_FDCWD, &c_string("path", &path)?, true).map_err(failed)?;
    Ok(Reply::Value(json!(FileEntry::new(path.as_bytes(), &stat, None))))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SymlinkParams {
    path: String,
    target: String,
    user: Option<String>,
}

pub fn symlink(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: SymlinkParams = params::parse(text)?;
    let path = absolute("path", &params.path)?;
    if params.target.is_empty() {
        return Err(Failure::invalid("target", "target is empty"));
    }
    let identity = aether.file_user(params.user.as_deref())?;
    let _user = AsUser::enter(&identity)?;
    let (link, target) = (c_string("path", &path)?, c_string("target", &params.target)?);
    // SAFETY: both end with NUL.
    check(unsafe { libc::symlink(target.as_ptr(), link.as_ptr()) }).map_err(|errno| Failure::file(errno, &path))?;
    entry_reply(&path)
}
