//! What is told of a file.

use std::os::fd::RawFd;

use serde::Serialize;

use super::open::{self, c_path};
use crate::base64;
use crate::sys::Errno;

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct FileEntry {
    name: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    name_base64: Option<String>,
    path: String,
    kind: &'static str,
    size_bytes: u64,
    mode: u32,
    uid: u32,
    gid: u32,
    mtime_ms: i64,
    #[serde(skip_serializing_if = "Option::is_none")]
    target: Option<String>,
}

pub const MODE_BITS: u32 = 0o7777;

fn kind_name(stat: &libc::stat) -> &'static str {
    match open::kind(stat) {
        libc::S_IFDIR => "directory",
        libc::S_IFLNK => "symlink",
        libc::S_IFIFO => "fifo",
        libc::S_IFSOCK => "socket",
        libc::S_IFBLK => "block",
        libc::S_IFCHR => "char",
        _ => "file",
    }
}

/// The last component; `/` for the root.
pub fn base_name(path: &[u8]) -> &[u8] {
    let end = path.iter().rposition(|&byte| byte != b'/').map_or(0, |at| at + 1);
    let start = path[..end].iter().rposition(|&byte| byte == b'/').map_or(0, |at| at + 1);
    if end == 0 { b"/" } else { &path[start..end] }
}

impl FileEntry {
    /// `target` is what a symbolic link says.
    pub fn new(path: &[u8], stat: &libc::stat, target: Option<&[u8]>) -> Self {
        let name = base_name(path);
        Self {
            name: String::from_utf8_lossy(name).into_owned(),
            name_base64: std::str::from_utf8(name).is_err().then(|| base64::encode(name)),
            path: String::from_utf8_lossy(path).into_owned(),
            kind: kind_name(stat),
            size_bytes: stat.st_size.max(0) as u64,
            mode: stat.st_mode & MODE_BITS,
            uid: stat.st_uid,
            gid: stat.st_gid,
            mtime_ms: stat.st_mtime * 1_000 + stat.st_mtime_nsec / 1_000_000,
            target: target.map(|target| String::from_utf8_lossy(target).into_owned()),
        }
    }

    /// Of what is at `name` in a directory, told as `path`. Links are not followed.
    pub fn at(directory: RawFd, name: &[u8], path: &[u8]) -> Result<(Self, libc::stat), Errno> {
        let name = c_path(name)?;
        let stat = open::stat_at(directory, &name, false)?;
        let target = match open::kind(&stat) {
            libc::S_IFLNK => open::read_link(directory, &name).ok(),
            _ => None,
        };
        Ok((Self::new(path, &stat, target.as_deref()), stat))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn f03_names_of_all_kinds_are_cut_from_paths() {
        for (path, name) in [("/a/b", "b"), ("/a/b//", "b"), ("/", "/"), ("//", "/"), ("/a", "a"), ("/a/\n", "\n")] {
            assert_eq!(base_name(path.as_bytes()), name.as_bytes(), "{path:?}");
        }
    }
}
