//! Where a path that is to be written leads: the directory and the name in it, with the links at its end followed, also ones that
//! lead to nothing yet.

use std::os::fd::{AsRawFd, OwnedFd};

use super::entry::base_name;
use super::open::{self, c_path};
use crate::sys::Errno;

/// As many links as the kernel follows.
const MAX_LINKS: usize = 40;
const NEW_DIRECTORY_MODE: u32 = 0o755;

#[derive(Debug)]
pub struct Target {
    pub directory: OwnedFd,
    pub name: Vec<u8>,
    /// What is there now.
    pub existing: Option<libc::stat>,
}

/// The directory that a path's last component is in, as a path.
fn parent(path: &[u8]) -> &[u8] {
    let name = base_name(path);
    if name == b"/" {
        return b"/";
    }
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    match &path[..end - name.len()] {
        b"" => b".",
        parent => parent,
    }
}

pub fn find(path: &[u8], create_parents: bool) -> Result<Target, Errno> {
    let mut base = open::open(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY, 0)?;
    let mut path = path.to_vec();
    for _ in 0..MAX_LINKS {
        let directory = open_parent(&base, parent(&path), create_parents)?;
        let name = base_name(&path).to_vec();
        if matches!(name.as_slice(), b"." | b".." | b"/") || path.ends_with(b"/") {
            return Err(libc::EISDIR);
        }
        let c_name = c_path(name.as_slice())?;
        match open::stat_at(directory.as_raw_fd(), &c_name, false) {
            Ok(stat) if open::kind(&stat) == libc::S_IFLNK => {
                path = open::read_link(directory.as_raw_fd(), &c_name)?;
                if path.is_empty() {
                    return Err(libc::ENOENT);
                }
                base = if path.starts_with(b"/") {
                    open::open(libc::AT_FDCWD, c"/", libc::O_PATH | libc::O_DIRECTORY, 0)?
                } else {
                    directory
                };
            }
            Ok(stat) => return Ok(Target { directory, name, existing: Some(stat) }),
            Err(libc::ENOENT) => return Ok(Target { directory, name, existing: None }),
            Err(errno) => return Err(errno),
        }
    }
    Err(libc::ELOOP)
}

fn open_parent(base: &OwnedFd, path: &[u8], create: bool) -> Result<OwnedFd, Errno> {
    match open::open(base.as_raw_fd(), &c_path(path)?, libc::O_PATH | libc::O_DIRECTORY, 0) {
        Err(libc::ENOENT) if create => make_all(base, path, NEW_DIRECTORY_MODE),
        other => other,
    }
}

/// Opens a directory and makes what is missing on the way, as the user who acts.
pub fn make_all(base: &OwnedFd, path: &[u8], mode: u32) -> Result<OwnedFd, Errno> {
    let start = if path.starts_with(b"/") { c"/" } else { c"." };
    let mut at = open::open(base.as_raw_fd(), start, libc::O_PATH | libc::O_DIRECTORY, 0)?;
    for name in path.split(|&byte| byte == b'/').filter(|name| !name.is_empty()) {
        let name = c_path(name)?;
        let open_it = |at: &OwnedFd| open::open(at.as_raw_fd(), &name, libc::O_PATH | libc::O_DIRECTORY, 0);
        at = match open_it(&at) {
            Err(libc::ENOENT) => {
                make_directory(&at, &name, mode)?;
                open_it(&at)?
            }
            other => other?,
        };
    }
    Ok(at)
}

/// Makes one directory with exactly this mode; one that somebody else made in the meantime is as good.
fn make_directory(at: &OwnedFd, name: &std::ffi::CStr, mode: u32) -> Result<(), Errno> {
    // SAFETY: the name ends with NUL. aether's umask is 0, so the mode is the mode.
    match crate::sys::check(unsafe { libc::mkdirat(at.as_raw_fd(), name.as_ptr(), mode) }) {
        Err(libc::EEXIST) | Ok(_) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_of_paths() {
        for (path, expected) in [("/a/b", "/a/"), ("/a", "/"), ("a", "."), ("a/b/", "a/"), ("../x", "../")] {
            assert_eq!(parent(path.as_bytes()), expected.as_bytes(), "{path}");
        }
    }
}
