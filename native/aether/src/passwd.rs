//! /etc/passwd and /etc/group of the sandbox: files that the sandbox may have filled with anything. Parsed forms are cached by
//! what identifies a version of the file.

use std::os::fd::AsRawFd;

use crate::sys::{self, fd};

/// A file beyond this is read only so far.
const MAX_FILE: usize = 1 << 20;
/// Entries that are kept of a file.
const MAX_ENTRIES: usize = 8_192;
/// Supplementary groups that the kernel takes at most is 65,536; nobody real has more than this.
pub const MAX_GROUPS: usize = 256;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct User {
    pub name: String,
    pub uid: u32,
    pub gid: u32,
    pub home: String,
    pub shell: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    pub name: String,
    pub gid: u32,
    pub members: Vec<String>,
}

/// The lines that are valid UTF-8, without comments.
fn lines(bytes: &[u8]) -> impl Iterator<Item = &str> {
    bytes
        .split(|&byte| byte == b'\n')
        .filter_map(|line| std::str::from_utf8(line).ok())
        .filter(|line| !line.starts_with('#'))
}

pub fn parse_passwd(bytes: &[u8]) -> Vec<User> {
    lines(bytes)
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let (uid, gid) = (fields.nth(1)?.parse().ok()?, fields.next()?.parse().ok()?);
            let (home, shell) = (fields.nth(1)?, fields.next().unwrap_or(""));
            let is_clean = !line.contains('\0');
            is_clean.then(|| User { name: name.into(), uid, gid, home: home.into(), shell: shell.trim_end().into() })
        })
        .take(MAX_ENTRIES)
        .collect()
}

pub fn parse_group(bytes: &[u8]) -> Vec<Group> {
    lines(bytes)
        .filter_map(|line| {
            let mut fields = line.split(':');
            let name = fields.next().filter(|name| !name.is_empty())?;
            let gid = fields.nth(1)?.parse().ok()?;
            let members = fields.next().unwrap_or("");
            let members = members.trim_end().split(',').filter(|name| !name.is_empty()).map(String::from).collect();
            Some(Group { name: name.into(), gid, members })
        })
        .take(MAX_ENTRIES)
        .collect()
}

/// What tells one version of a file from another.
type Version = (u64, u64, i64, i64, i64, i64, i64);

#[derive(Debug)]
struct Cached<T> {
    path: &'static std::ffi::CStr,
    parse: fn(&[u8]) -> Vec<T>,
    version: Option<Version>,
    entries: Vec<T>,
}

impl<T> Cached<T> {
    fn get(&mut self) -> &[T] {
        let version = version(self.path);
        if version != self.version || version.is_none() {
            self.entries = match version {
                Some(_) => read_regular(self.path).map(|bytes| (self.parse)(&bytes)).unwrap_or_default(),
                None => Vec::new(),
            };
            self.version = version;
        }
        &self.entries
    }
}

fn version(path: &std::ffi::CStr) -> Option<Version> {
    // SAFETY: a stat of zeros is valid; `path` ends with NUL.
    let stat = unsafe {
        let mut stat: libc::stat = std::mem::zeroed();
        sys::check(libc::stat(path.as_ptr(), &mut stat)).ok()?;
        stat
    };
    Some((stat.st_dev, stat.st_ino, stat.st_mtime, stat.st_mtime_nsec, stat.st_ctime, stat.st_ctime_nsec, stat.st_size))
}

fn read_regular(path: &std::ffi::CStr) -> Option<Vec<u8>> {
    let file = fd::open_at(libc::AT_FDCWD, path, libc::O_RDONLY | libc::O_NONBLOCK, 0).ok()?;
    let stat = fd::stat(&file).ok()?;
    debug_assert!(file.as_raw_fd() >= 0);
    (stat.st_mode & libc::S_IFMT == libc::S_IFREG).then(|| fd::read_to_limit(&file, MAX_FILE).ok()).flatten()
}

#[derive(Debug)]
pub struct Accounts {
    users: Cached<User>,
    groups: Cached<Group>,
}

impl Default for Accounts {
    fn default() -> Self {
        Self {
            users: Cached { path: c"/etc/passwd", parse: parse_passwd, version: None, entries: Vec::new() },
            groups: Cached { path: c"/etc/group", parse: parse_group, version: None, entries: Vec::new() },
        }
    }
}

impl Accounts {
    pub fn by_name(&mut self, name: &str) -> Option<&User> {
        self.users.get().iter().find(|user| user.name == name)
    }

    pub fn by_uid(&mut self, uid: u32) -> Option<&User> {
        self.users.get().iter().find(|user| user.uid == uid)
    }

    pub fn group_id(&mut self, name: &str) -> Option<u32> {
        self.groups.get().iter().find(|group| group.name == name).map(|group| group.gid)
    }

    /// The groups that list `name`, and `gid` itself.
    pub fn groups_of(&mut self, name: &str, gid: u32) -> Vec<u32> {
        let listed = self.groups.get().iter().filter(|group| group.members.iter().any(|member| member == name));
        let mut groups: Vec<u32> = std::iter::once(gid).chain(listed.map(|group| group.gid)).take(MAX_GROUPS).collect();
        groups.sort_unstable();
        groups.dedup();
        groups
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn odd_lines_are_passed_over_and_good_ones_kept() {
        let text = b"root:x:0:0:root:/root:/bin/bash\n# no\n\n:x:1:1::/:\nbad\nx:x:-1:0::/:\nbig:x:99999999999:0::/:\n\xff:x:1:1::/:\nu:x:1000:1000:,,,:/home/u\n";
        let users = parse_passwd(text);
        assert_eq!(users.iter().map(|user| user.name.as_str()).collect::<Vec<_>>(), ["root", "u"]);
        assert_eq!(
            (users[0].shell.as_str(), users[1].shell.as_str(), users[1].home.as_str()),
            ("/bin/bash", "", "/home/u")
        );
        let groups = parse_group(b"root:x:0:\nsudo:x:27:u,v\nbad:x:\nw:x:9:,,u\n");
        assert_eq!(
            groups.iter().map(|group| (group.gid, group.members.len())).collect::<Vec<_>>(),
            [(0, 0), (27, 2), (9, 1)]
        );
    }
}
