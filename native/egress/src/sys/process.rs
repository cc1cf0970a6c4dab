//! What a process or thread does to itself.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Errno, Result, check};

pub const CAP_SETGID: u32 = 6;
pub const CAP_SETUID: u32 = 7;
pub const CAP_NET_ADMIN: u32 = 12;
pub const CAP_SYS_PTRACE: u32 = 19;
pub const CAP_SYS_ADMIN: u32 = 21;
pub const CAP_PERFMON: u32 = 38;
pub const CAP_BPF: u32 = 39;
/// Kernels know fewer.
const LAST_CAPABILITY: u32 = 63;

/// The network namespace of the calling thread.
pub fn own_network() -> Result<OwnedFd> {
    openat(CWD, "/proc/thread-self/ns/net", OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Moves the calling thread into a network namespace.
pub fn enter_network(namespace: BorrowedFd<'_>) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), libc::CLONE_NEWNET) }.into())?;
    Ok(())
}

/// Opens something in another network namespace than `home`, which the calling thread is in.
pub fn within_network<T>(
    home: BorrowedFd<'_>,
    namespace: BorrowedFd<'_>,
    open: impl FnOnce() -> Result<T>,
) -> Result<T> {
    enter_network(namespace)?;
    let opened = open();
    if enter_network(home).is_err() {
        // What this thread would do from here on it would do to a sandbox.
        std::process::abort();
    }
    opened
}

/// Gives up all capabilities of this thread, and of those that it will start, but these.
pub fn keep_only_capabilities(kept: &[u32]) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    for capability in (0..=LAST_CAPABILITY).filter(|capability| !kept.contains(capability)) {
        // SAFETY: no memory is passed. What a kernel does not know cannot be had either.
        unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) };
    }
    let bits = kept.iter().fold(0u64, |bits, capability| bits | 1 << capability);
    let header = [VERSION_3, 0];
    let [low, high] = [bits as u32, (bits >> 32) as u32];
    // Effective, permitted and inheritable, for the low and the high capabilities.
    let data = [low, low, 0, high, high, 0];
    // SAFETY: the kernel reads a header of two words and data of six.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    Ok(())
}

/// Waits until every processor has left what it was running in the kernel: then no program of a packet sees what was taken from it before.
pub fn wait_for_readers() -> Result<()> {
    const GLOBAL: libc::c_int = 1;
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_membarrier, GLOBAL, 0, 0) })?;
    Ok(())
}

/// What a program that is started so begins with: standard input from nowhere, what this process says as what it says, and these descriptors from 3 on.
const FIRST_GIVEN: RawFd = 3;
/// Above all that are given.
const ASIDE: RawFd = 16;
/// How long an end may take that was forced.
const END_WITHIN: Duration = Duration::from_secs(5);

/// A program to be started later, by a process that may not go the way to it any more.
pub fn open_program(path: &Path) -> Result<OwnedFd> {
    let file = openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?;
    rustix::io::fcntl_dupfd_cloexec(&file, ASIDE)
}

/// Starts a program, known by its path, that becomes a user by itself, with descriptors in their order.
pub fn start_with(
    (path, file): (&Path, &OwnedFd),
    user: (u32, u32),
    given: [Option<OwnedFd>; 3],
) -> std::io::Result<Child> {
    // At numbers that are nobody's place.
    let aside = given
        .iter()
        .map(|fd| fd.as_ref().map(|fd| rustix::io::fcntl_dupfd_cloexec(fd, ASIDE)).transpose())
        .collect::<Result<Vec<_>>>()?;
    let mut command = Command::new(format!("/proc/self/fd/{}", file.as_raw_fd()));
    command.arg0(path);
    command.args(["--uid", &user.0.to_string(), "--gid", &user.1.to_string()]);
    command.env_clear().stdin(Stdio::null()).stdout(Stdio::null());
    // SAFETY: system calls only, between fork and exec, in a process that has these numbers for itself.
    unsafe {
        command.pre_exec(move || {
            for (at, fd) in (FIRST_GIVEN..).zip(&aside) {
                match fd {
                    Some(fd) => check(libc::dup2(fd.as_raw_fd(), at).into()).map(drop)?,
                    None => drop(libc::close(at)),
                }
            }
            Ok(())
        });
    }
    command.spawn()
}

/// Waits for the end of a child in a thread of its own, so that nothing of it stays.
pub fn wait_aside(mut child: Child) {
    let thread = std::thread::Builder::new().name("child".to_owned());
    // Without one it stays a zombie until this process ends.
    let _ = thread.spawn(move || child.wait());
}

/// Waits until a process has ended.
pub fn wait_for_end(process: BorrowedFd<'_>) {
    let until = Instant::now() + END_WITHIN;
    while let Some(left) = until.checked_duration_since(Instant::now()) {
        let left = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        if !matches!(poll(&mut [PollFd::from_borrowed_fd(process, PollFlags::IN)], Some(&left)), Err(Errno::INTR)) {
            return;
        }
    }
}
