//! What processes of layerd do to themselves and to each other.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd, RawFd};
use std::sync::atomic::{AtomicBool, Ordering};

use super::{Result, check};

/// Puts a descriptor at a fixed number, where programs that are executed find it too.
pub fn place_fd(fd: impl AsFd, at: RawFd) -> Result<()> {
    // SAFETY: no memory is passed; callers own the numbers that they name, or know them to be free.
    check(unsafe { libc::dup3(fd.as_fd().as_raw_fd(), at, 0) })?;
    Ok(())
}

/// A copy of a descriptor with a number above those with a meaning.
pub fn above(fd: &OwnedFd, first: RawFd) -> Result<OwnedFd> {
    rustix::io::fcntl_dupfd_cloexec(fd, first)
}

/// A descriptor by the number that it was placed at.
pub fn fixed(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: these numbers are filled before the program begins and stay open until it ends.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Whether there is such a descriptor.
pub fn is_open(fd: RawFd) -> bool {
    // SAFETY: no memory is passed.
    check(unsafe { libc::fcntl(fd, libc::F_GETFD) }).is_ok()
}

/// Closes the descriptor of an event, or what keeps its number.
pub fn close(fd: RawFd) {
    // SAFETY: callers own the number: the kernel gave it with an event, or they placed it.
    let _ = unsafe { libc::close(fd) };
}

/// The name that `ps` and `pkill` know; at most 15 bytes.
pub fn set_name(name: &std::ffi::CStr) {
    // SAFETY: a C string; a longer one is cut.
    let _ = unsafe { libc::prctl(libc::PR_SET_NAME, name.as_ptr()) };
}

static IS_TOLD_TO_END: AtomicBool = AtomicBool::new(false);

extern "C" fn note_end(_: libc::c_int) {
    IS_TOLD_TO_END.store(true, Ordering::Relaxed);
}

/// From here on SIGTERM is noted instead of ending the process.
pub fn note_termination() {
    let handler: extern "C" fn(libc::c_int) = note_end;
    // SAFETY: the handler does nothing but store to an atomic.
    unsafe { libc::signal(libc::SIGTERM, handler as libc::sighandler_t) };
}

pub fn is_told_to_end() -> bool {
    IS_TOLD_TO_END.load(Ordering::Relaxed)
}

/// Signals that are meant for whoever started the program: what else keeps the group alive lives on without it.
pub fn ignore_signals(signals: &[libc::c_int]) {
    for signal in signals {
        // SAFETY: ignoring runs no code.
        unsafe { libc::signal(*signal, libc::SIG_IGN) };
    }
}

/// Raises the soft limit of open files to the hard one: each waiting event is a descriptor.
pub fn raise_file_limit() {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills one structure and reads it back. Where it refuses, the limit stays.
    unsafe {
        if libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) == 0 {
            limit.rlim_cur = limit.rlim_max;
            libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit);
        }
    }
}

pub fn is_named(pid: rustix::process::Pid, name: &str) -> bool {
    std::fs::read_to_string(format!("/proc/{}/comm", pid.as_raw_nonzero())).is_ok_and(|text| text.trim_end() == name)
}

/// Whether every thread of a process stands still.
pub fn is_stopped(pid: rustix::process::Pid) -> bool {
    let Ok(threads) = std::fs::read_dir(format!("/proc/{}/task", pid.as_raw_nonzero())) else { return true };
    threads.flatten().all(|thread| {
        let stat = std::fs::read_to_string(thread.path().join("stat")).unwrap_or_default();
        // The state follows the name, which stands in parentheses and may hold anything.
        stat.rsplit_once(')')
            .is_none_or(|(_, rest)| matches!(rest.trim_start().as_bytes().first(), Some(b'T' | b't' | b'Z' | b'X')))
    })
}

/// The thread that calls.
pub fn thread_id() -> u32 {
    rustix::thread::gettid().as_raw_nonzero().get() as u32
}
