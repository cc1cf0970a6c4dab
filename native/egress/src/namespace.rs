//! Finds the network namespace of a sandbox by what the launcher has written down of it.

use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;

use launcher::record::Record;
use launcher::request::SandboxId;
use launcher::sys::clone;
use rustix::fs::{CWD, Mode, OFlags, fstat, openat};
use rustix::process::Pid;

use crate::sys::Errno;
use daemon::failure::{Failure, errno_name};

pub struct Namespace {
    pub fd: OwnedFd,
    pub inode: u64,
    /// Nothing where /proc does not tell.
    pub people: Option<People>,
}

/// In which numbers and users a sandbox knows its processes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct People {
    /// Of its pid namespace.
    pub pid_inode: u32,
    /// What is user 0 inside.
    pub first_user: u32,
}

fn people_of(pid: u32) -> Option<People> {
    let space = openat(CWD, format!("/proc/{pid}/ns/pid"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).ok()?;
    let pid_inode = u32::try_from(fstat(&space).ok()?.st_ino).ok()?;
    let users = std::fs::read_to_string(format!("/proc/{pid}/uid_map")).ok()?;
    Some(People { pid_inode, first_user: first_user(&users)? })
}

/// What is user 0 in a `uid_map` (user_namespaces(7)).
fn first_user(map: &str) -> Option<u32> {
    map.lines().find_map(|line| {
        let mut numbers = line.split_ascii_whitespace().map(str::parse::<u32>);
        let (inside, outside) = (numbers.next()?.ok()?, numbers.next()?.ok()?);
        (inside == 0).then_some(outside)
    })
}

fn not_ready(id: &SandboxId, why: &str) -> Failure {
    Failure::new("sandbox_not_ready", format!("the sandbox {id} {why}"))
}

/// Opens it. The process must be the very one of the record, and its namespace the one that the launcher made: what a sandbox makes inside itself is no
/// place for a device.
pub fn open(records: &Path, boot: &str, id: &SandboxId) -> Result<Namespace, Failure> {
    let name = format!("{id}.json");
    let unknown = || Failure::new("sandbox_not_found", format!("there is no sandbox {id}"));
    let text = std::fs::read(records.join(&name)).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound => unknown(),
        _ => Failure::internal(format!("the record of the sandbox {id} cannot be read: {error}")),
    })?;
    let record = Record::parse(&name, &text).filter(|record| record.boot == boot).ok_or_else(unknown)?;
    let Some(wanted) = record.net_identity else {
        return Err(not_ready(id, "was made by a launcher that did not write down its network; create it again"));
    };
    let gone = |errno: Errno| match errno {
        Errno::SRCH | Errno::NOENT => not_ready(id, "has ended"),
        _ => Failure::internal(format!("the sandbox {id}: {}", errno_name(errno))),
    };
    let pid = i32::try_from(record.pid).ok().and_then(Pid::from_raw).ok_or_else(unknown)?;
    let process = clone::open_process(pid).map_err(gone)?;
    if clone::identity(&process).map_err(gone)? != record.pid_identity {
        return Err(not_ready(id, "has ended"));
    }
    let path = format!("/proc/{}/ns/net", record.pid);
    let fd = openat(CWD, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty()).map_err(gone)?;
    let people = people_of(record.pid);
    // As long as it lives nobody else can have its number.
    if clone::reap(process.as_fd()) != clone::Reaped::Alive {
        return Err(not_ready(id, "has ended"));
    }
    let inode = fstat(&fd).map_err(gone)?.st_ino;
    if inode != wanted {
        return Err(not_ready(id, "is in another network than the launcher made for it"));
    }
    Ok(Namespace { fd, inode, people })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_0_is_read() {
        assert_eq!(first_user("         0     100000      65536\n"), Some(100_000));
        assert_eq!(first_user("1 5 1\n0 7 1\n"), Some(7));
        assert_eq!(first_user("0 0 4294967295\n"), Some(0));
        assert_eq!(first_user("x"), None);
    }
}
