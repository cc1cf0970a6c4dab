//! Who somebody is, in the words of its sandbox: bounded facts of a process out of /proc. All of it is what a hostile program says of itself.

use std::os::fd::AsFd;

use rustix::fs::{AtFlags, Mode, OFlags, openat, readlinkat, statat};
use serde::Serialize;

use super::bounds::{MAX_ANCESTORS, MAX_ARGUMENTS, MAX_ARGV_BYTES};
use crate::sys::{Errno, Result};

/// A file of /proc is read so far.
const MAX_STATUS: usize = 4_096;
const MAX_COMM: usize = 64;
/// Users of a sandbox.
const UIDS: u32 = 65_536;
/// What the kernel calls users that have no number in a namespace.
const NOBODY: u32 = 65_534;

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Facts {
    pub pid: u32,
    pub ancestors: Vec<u32>,
    pub session: u32,
    pub uid: u32,
    pub comm: String,
    pub argv: Vec<String>,
}

/// What a file `status` says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Status {
    /// The process of the thread, on the host.
    pub process: u32,
    /// Its parent, on the host.
    pub parent: u32,
    /// Real, on the host.
    pub uid: u32,
    /// In the sandbox.
    pub pid: u32,
    /// In the sandbox; 0 where that was begun outside.
    pub session: u32,
}

/// Reads what a file `status` says of somebody in a sandbox: whose second pid namespace is that.
pub fn parse_status(text: &[u8]) -> Option<Status> {
    let number = |value: &[u8]| std::str::from_utf8(value).ok()?.trim().parse::<u32>().ok();
    let nth = |value: &[u8], at: usize| {
        value.split(|byte| byte.is_ascii_whitespace()).filter(|word| !word.is_empty()).nth(at).and_then(number)
    };
    let mut status = Status::default();
    for line in text.split(|byte| *byte == b'\n') {
        let Some(at) = line.iter().position(|byte| *byte == b':') else { continue };
        let value = &line[at + 1..];
        match &line[..at] {
            b"Tgid" => status.process = number(value)?,
            b"PPid" => status.parent = number(value)?,
            b"Uid" => status.uid = nth(value, 0)?,
            b"NSpid" => status.pid = nth(value, 1)?,
            b"NSsid" => status.session = nth(value, 1).unwrap_or(0),
            _ => {}
        }
    }
    (status.process > 0 && status.pid > 0).then_some(status)
}

/// Arguments of a command line, each ended by a zero byte.
pub fn parse_arguments(bytes: &[u8]) -> Vec<String> {
    let bytes = &bytes[..bytes.len().min(MAX_ARGV_BYTES)];
    let bytes = bytes.strip_suffix(b"\0").unwrap_or(bytes);
    if bytes.is_empty() {
        return Vec::new();
    }
    let mut left = MAX_ARGV_BYTES;
    let mut arguments = Vec::new();
    for argument in bytes.split(|byte| *byte == 0).take(MAX_ARGUMENTS) {
        let mut argument = String::from_utf8_lossy(argument).into_owned();
        // What is not UTF-8 is longer now.
        let mut length = argument.len().min(left);
        while !argument.is_char_boundary(length) {
            length -= 1;
        }
        argument.truncate(length);
        left -= length;
        arguments.push(argument);
    }
    arguments
}

/// The slot in a file `cgroup` of somebody in a sandbox, where the launcher's group is called `group`.
pub fn parse_slot(text: &[u8], group: &str) -> Option<u32> {
    let text = std::str::from_utf8(text).ok()?;
    text.lines().find_map(|line| {
        let path = line.splitn(3, ':').nth(2)?;
        let mut parts = path.split('/').skip_while(|part| *part != group);
        parts.next()?;
        crate::node::Node::slot_of_name(parts.next()?)
    })
}

pub fn uid_inside(uid: u32, root_uid: u32) -> u32 {
    uid.checked_sub(root_uid).filter(|uid| *uid < UIDS).unwrap_or(NOBODY)
}

/// Reads a file of /proc that the kernel makes without waiting for anybody.
fn read(proc: impl AsFd, path: &str, most: usize) -> Result<Vec<u8>> {
    let file = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    let mut bytes = vec![0; most];
    let length = rustix::io::read(&file, &mut bytes)?;
    bytes.truncate(length);
    Ok(bytes)
}

pub fn status(proc: impl AsFd, id: u32) -> Result<Status> {
    parse_status(&read(proc, &format!("{id}/status"), MAX_STATUS)?).ok_or(Errno::SRCH)
}

pub fn slot(proc: impl AsFd, id: u32, group: &str) -> Option<u32> {
    parse_slot(&read(proc, &format!("{id}/cgroup"), MAX_STATUS).ok()?, group)
}

/// Whether a process is one of aether's own: its first one, a worker, or what it has made and not executed yet.
pub fn is_platform(proc: impl AsFd, id: u32, program: (u64, u64)) -> bool {
    statat(proc, format!("{id}/exe"), AtFlags::empty()).is_ok_and(|found| (found.st_dev, found.st_ino) == program)
}

/// What a descriptor of this process leads to.
pub fn name_of_descriptor(proc: impl AsFd, descriptor: i32) -> Vec<u8> {
    readlinkat(proc, format!("self/fd/{descriptor}"), Vec::new()).map(std::ffi::CString::into_bytes).unwrap_or_default()
}

/// All but the arguments. `first` is the sandbox's first process: what is above it is not of the sandbox.
pub fn of(proc: impl AsFd, id: u32, first: u32, root_uid: u32) -> Result<(u32, Facts)> {
    let proc = proc.as_fd();
    let own = status(proc, id)?;
    let mut comm = read(proc, &format!("{}/comm", own.process), MAX_COMM)?;
    comm.pop_if(|last| *last == b'\n');
    let mut ancestors = Vec::new();
    let mut parent = if own.process == first { 0 } else { own.parent };
    while parent != 0 && ancestors.len() < MAX_ANCESTORS {
        // One that has gone meanwhile has left its children to another: what is known stays true.
        let Ok(above) = status(proc, parent) else { break };
        ancestors.push(above.pid);
        parent = if parent == first { 0 } else { above.parent };
    }
    let facts = Facts {
        pid: own.pid,
        ancestors,
        session: own.session,
        uid: uid_inside(own.uid, root_uid),
        comm: String::from_utf8_lossy(&comm).into_owned(),
        argv: Vec::new(),
    };
    Ok((own.process, facts))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_read_as_the_kernel_writes_it() {
        let text = b"Name:\tevil\\nTgid:\t1\nUmask:\t0022\nState:\tR (running)\nTgid:\t812\nNgid:\t0\nPid:\t813\nPPid:\t700\nTracerPid:\t0\n\
            Uid:\t200003\t200000\t200000\t200000\nGid:\t0\t0\t0\t0\nNStgid:\t812\t9\nNSpid:\t813\t10\t2\nNSpgid:\t812\t9\nNSsid:\t700\t8\n";
        let status = parse_status(text).expect("read");
        assert_eq!(status, Status { process: 812, parent: 700, uid: 200_003, pid: 10, session: 8 });
        for (from, to) in [("NSpid:\t813\t10\t2", "NSpid:\t813"), ("NSpid", "NSpie"), ("812\n", "x\n")] {
            let other = String::from_utf8_lossy(text).replacen(from, to, 1);
            assert_eq!(parse_status(other.as_bytes()), None, "{to}");
        }
    }

    #[test]
    fn arguments_are_bounded_in_number_and_length() {
        assert_eq!(parse_arguments(b""), Vec::<String>::new());
        assert_eq!(parse_arguments(b"\0"), Vec::<String>::new());
        assert_eq!(parse_arguments(b"sh\0-c\0\0"), ["sh", "-c", ""]);
        assert_eq!(parse_arguments(b"cut of"), ["cut of"]);
        assert_eq!(parse_arguments(b"\xFF\0x\0"), ["\u{FFFD}", "x"]);
        assert_eq!(parse_arguments(&b"a\0".repeat(9_999)).len(), MAX_ARGUMENTS);
        let long = parse_arguments(&[0xFF; 9_999]);
        assert!(long[0].len() <= MAX_ARGV_BYTES && long[0].len() > MAX_ARGV_BYTES - 3);
    }

    #[test]
    fn a_slot_is_below_the_launchers_own_group() {
        assert_eq!(parse_slot(b"0::/dsec-1/s7\n", "dsec-1"), Some(7));
        assert_eq!(parse_slot(b"9:name=a:b:/\n4:cpu,cpuacct:/top/dsec-1/s12/inner\n", "dsec-1"), Some(12));
        for other in ["0::/dsec-2/s7\n", "0::/dsec-1\n", "0::/dsec-1/x7\n", "", "0::", "dsec-1/s7"] {
            assert_eq!(parse_slot(other.as_bytes(), "dsec-1"), None, "{other}");
        }
    }

    #[test]
    fn users_are_counted_from_the_sandboxs_root() {
        assert_eq!(
            [100_000, 100_007, 165_535, 165_536, 99_999, 0].map(|uid| uid_inside(uid, 100_000)),
            [0, 7, 65_535, NOBODY, NOBODY, NOBODY]
        );
    }
}
