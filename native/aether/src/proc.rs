//! /proc of the sandbox's pid namespace, through a descriptor that was opened before anything else ran: what is mounted over
//! /proc later does not matter.

use std::ffi::CString;
use std::os::fd::{AsRawFd, OwnedFd};

use crate::sys::{self, Errno, fd};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stat {
    pub pid: i32,
    pub ppid: i32,
    pub pgrp: i32,
    pub session: i32,
    pub state: u8,
    /// Clock ticks since boot.
    pub start: u64,
    pub rss_pages: u64,
}

/// The text of /proc/PID/stat. The name in parentheses may hold anything, also parentheses and newlines.
pub fn parse_stat(text: &[u8]) -> Option<Stat> {
    let open = text.iter().position(|&byte| byte == b'(')?;
    let close = text.iter().rposition(|&byte| byte == b')')?;
    let pid = std::str::from_utf8(&text[..open]).ok()?.trim().parse().ok()?;
    let rest = std::str::from_utf8(text.get(close + 1..)?).ok()?;
    let mut fields = rest.split_ascii_whitespace();
    let state = *fields.next()?.as_bytes().first()?;
    let mut number = |skip: usize| fields.nth(skip)?.parse::<i64>().ok();
    let (ppid, pgrp, session) = (number(0)?, number(0)?, number(0)?);
    // Fields 7 to 21 lie between the session and the start time; 23 is the virtual size.
    let start = number(15)?;
    let rss = number(1)?;
    Some(Stat {
        pid,
        ppid: i32::try_from(ppid).ok()?,
        pgrp: i32::try_from(pgrp).ok()?,
        session: i32::try_from(session).ok()?,
        state,
        start: start.max(0) as u64,
        rss_pages: rss.max(0) as u64,
    })
}

/// Processes that one scan looks at; pid_max of a sandbox is below.
const MAX_PROCESSES: usize = 1 << 16;
/// A stat line is a few hundred bytes.
const STAT_SIZE: usize = 1_024;

#[derive(Debug)]
pub struct Proc {
    root: OwnedFd,
}

impl Proc {
    pub fn open() -> Result<Self, Errno> {
        fd::open_at(libc::AT_FDCWD, c"/proc", libc::O_RDONLY | libc::O_DIRECTORY, 0).map(|root| Self { root })
    }

    pub fn root(&self) -> &OwnedFd {
        &self.root
    }

    /// Opens `path` below /proc for reading.
    pub fn open_file(&self, path: &str) -> Result<OwnedFd, Errno> {
        let path = CString::new(path).map_err(|_| libc::EINVAL)?;
        fd::open_at(self.root.as_raw_fd(), &path, libc::O_RDONLY, 0)
    }

    pub fn stat(&self, pid: i32) -> Option<Stat> {
        let file = self.open_file(&format!("{pid}/stat")).ok()?;
        let mut buffer = [0; STAT_SIZE];
        let n = fd::read(&file, &mut buffer).ok()?;
        parse_stat(&buffer[..n])
    }

    /// The pids that exist now.
    pub fn pids(&self) -> Vec<i32> {
        let mut pids = Vec::new();
        // A description of its own, so that its position is its own too.
        let Ok(directory) = fd::open_at(self.root.as_raw_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0) else {
            return pids;
        };
        let mut reader = sys::dir::DirReader::new(directory);
        while pids.len() < MAX_PROCESSES {
            match reader.next_name() {
                Ok(Some(entry)) => {
                    pids.extend(std::str::from_utf8(entry.name).ok().and_then(|name| name.parse::<i32>().ok()))
                }
                _ => break,
            }
        }
        pids
    }

    /// Every process with its place in the tree.
    pub fn scan(&self) -> Vec<Stat> {
        self.pids().into_iter().filter_map(|pid| self.stat(pid)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_with_parentheses_and_newlines_does_not_shift_the_fields() {
        let text = b"42 (a) R 1 1 (\n) S 7 8 9 0 -1 4194560 1 2 3 4 5 6 7 8 20 0 1 0 12345 999 77 184 1";
        let stat = parse_stat(text).expect("parses");
        assert_eq!((stat.pid, stat.ppid, stat.pgrp, stat.session), (42, 7, 8, 9));
        assert_eq!((stat.state, stat.start, stat.rss_pages), (b'S', 12_345, 77));
        assert_eq!(parse_stat(b"42 (x) S 1"), None);
        assert_eq!(parse_stat(b") ("), None);
        assert_eq!(parse_stat(b""), None);
    }

    #[test]
    fn own_process_is_found_with_its_parent() {
        let proc = Proc::open().expect("/proc");
        let own = std::process::id() as i32;
        let stat = proc.scan().into_iter().find(|stat| stat.pid == own).expect("own process");
        // SAFETY: plain call.
        assert_eq!(stat.ppid, unsafe { libc::getppid() });
        assert!(stat.start <= crate::clock::ticks() && stat.rss_pages > 0);
    }
}
