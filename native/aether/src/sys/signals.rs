//! Signals: all blocked, read from a descriptor.

use std::os::fd::OwnedFd;

use super::fd::{self, owned};
use super::{Errno, check};

const MAX_SIGNAL: i32 = 64;
/// The kernel's own struct: handler, flags, restorer (where there is one), mask. All zeros are the default disposition.
const KERNEL_SIGACTION_WORDS: usize = 4;

/// Blocks every signal and returns a descriptor that reports SIGCHLD, SIGTERM and SIGINT. SIGPIPE is blocked like the rest and
/// ignored, so that it never waits for an unblocked moment.
pub fn take_over() -> Result<OwnedFd, Errno> {
    // SAFETY: sigset_t is plain data that sigfillset and sigemptyset initialize.
    unsafe {
        let mut all: libc::sigset_t = std::mem::zeroed();
        libc::sigfillset(&mut all);
        check(libc::sigprocmask(libc::SIG_SETMASK, &all, std::ptr::null_mut()))?;
        // What is ignored would be inherited by every program. Raw calls: libc keeps two signals to itself.
        let default = [0usize; KERNEL_SIGACTION_WORDS];
        for signal in 1..=MAX_SIGNAL {
            libc::syscall(libc::SYS_rt_sigaction, signal, default.as_ptr(), std::ptr::null::<u8>(), size_of::<u64>());
        }
        libc::signal(libc::SIGPIPE, libc::SIG_IGN);
        let mut wanted: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut wanted);
        for signal in [libc::SIGCHLD, libc::SIGTERM, libc::SIGINT] {
            libc::sigaddset(&mut wanted, signal);
        }
        check(libc::signalfd(-1, &wanted, libc::SFD_CLOEXEC | libc::SFD_NONBLOCK)).map(owned)
    }
}

/// The number of the next signal. Its sender is not told: whoever may send a signal may also forge what it says of that.
pub fn next(signals: &OwnedFd) -> Option<i32> {
    let mut buffer = [0u8; size_of::<libc::signalfd_siginfo>()];
    if fd::read(signals, &mut buffer).ok()? != buffer.len() {
        return None;
    }
    // SAFETY: the kernel has written a whole signalfd_siginfo; it is plain data without invalid values.
    let info: libc::signalfd_siginfo = unsafe { std::ptr::read_unaligned(buffer.as_ptr().cast()) };
    Some(info.ssi_signo as i32)
}

/// Back to what a process usually has, but SIGPIPE stays ignored: a broken pipe is an error number.
///
/// # Safety
/// In a process of its own.
pub unsafe fn reset() {
    // SAFETY: sigset_t is plain data that sigemptyset initializes.
    unsafe {
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, std::ptr::null_mut());
    }
}
