//! What a process does to itself on its way into a sandbox.

use std::ffi::CStr;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use super::{Result, check, last_errno};

const SECBIT_NO_SETUID_FIXUP: libc::c_ulong = 1 << 2;
const KEYCTL_JOIN_SESSION_KEYRING: libc::c_ulong = 1;

/// Keeps capabilities across changes of the uids, so that files can be made under another owner without a chown each.
pub fn keep_capabilities_across_uids() -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, SECBIT_NO_SETUID_FIXUP, 0, 0, 0) }.into())?;
    Ok(())
}

/// Usual treatment of capabilities when uids change.
pub fn reset_securebits() -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_SECUREBITS, 0, 0, 0, 0) }.into())?;
    Ok(())
}

/// Leaves namespaces for new ones (`CLONE_NEW*`).
pub fn unshare(namespaces: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed; callers have one thread, and descriptors stay shared with nobody.
    check(unsafe { libc::unshare(namespaces) }.into())?;
    Ok(())
}

/// Enters namespaces: one by its descriptor, or those of a process by its pidfd.
pub fn enter(namespace: BorrowedFd<'_>, kinds: libc::c_int) -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::setns(namespace.as_raw_fd(), kinds) }.into())?;
    Ok(())
}

/// Owner of files that this process makes from here on.
pub fn set_file_owner(uid: u32, gid: u32) {
    // SAFETY: no memory is passed. They return the former value and cannot report failure to a process that has the capabilities.
    unsafe {
        libc::syscall(libc::SYS_setfsuid, uid);
        libc::syscall(libc::SYS_setfsgid, gid);
    }
}

/// Effective uid and gid of this process.
pub fn set_effective_ids(uid: u32, gid: u32) -> Result<()> {
    const KEEP: u32 = u32::MAX;
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_setresgid, KEEP, gid, KEEP) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_setresuid, KEEP, uid, KEEP) })?;
    Ok(())
}

/// Becomes root of the user namespace that this process has entered, without supplementary groups.
pub fn become_namespace_root() -> Result<()> {
    // SAFETY: a list of no groups; the other calls pass no memory.
    check(unsafe { libc::syscall(libc::SYS_setgroups, 0, std::ptr::null::<libc::gid_t>()) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_setresgid, 0, 0, 0) })?;
    // SAFETY: no memory is passed.
    check(unsafe { libc::syscall(libc::SYS_setresuid, 0, 0, 0) })?;
    Ok(())
}

pub const CAP_DAC_READ_SEARCH: u32 = 2;
pub const CAP_SYS_ADMIN: u32 = 21;

/// Gives up all capabilities but these, for good: none is left to get others back by, and nothing is executed any more.
pub fn keep_only_capabilities(kept: &[u32]) -> Result<()> {
    const VERSION_3: u32 = 0x2008_0522;
    let bits = kept.iter().fold(0u64, |bits, capability| bits | 1 << capability);
    let header = [VERSION_3, 0];
    let [low, high] = [bits as u32, (bits >> 32) as u32];
    // Effective, permitted and inheritable, for the low and the high capabilities.
    let data = [low, low, 0, high, high, 0];
    // SAFETY: the kernel reads a header of two words and data of six.
    check(unsafe { libc::syscall(libc::SYS_capset, header.as_ptr(), data.as_ptr()) })?;
    Ok(())
}

/// Has the kernel kill this process when the thread that started it ends. One that ends during this call is noticed, one that has ended before is not.
pub fn die_with_parent() -> Result<()> {
    let parent = rustix::process::getppid();
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL, 0, 0, 0) }.into())?;
    if rustix::process::getppid() == parent { Ok(()) } else { Err(super::Errno::SRCH) }
}

/// Takes all other capabilities from everything that this process will ever execute in its user namespace.
pub fn limit_bounding(is_kept: impl Fn(u32) -> bool) -> Result<()> {
    const MAX_CAPABILITIES: u32 = 64;
    for capability in (0..MAX_CAPABILITIES).filter(|capability| !is_kept(*capability)) {
        // SAFETY: no memory is passed.
        match check(unsafe { libc::prctl(libc::PR_CAPBSET_DROP, libc::c_ulong::from(capability), 0, 0, 0) }.into()) {
            Ok(_) => {}
            // One that this kernel does not know.
            Err(super::Errno::INVAL) => break,
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// From here on nothing that is executed gains by setuid or by capabilities of files.
pub fn forbid_new_privileges() -> Result<()> {
    // SAFETY: no memory is passed.
    check(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }.into())?;
    Ok(())
}

/// A keyring of its own, so that no key of the host is within reach.
pub fn join_new_session_keyring() -> Result<()> {
    // SAFETY: the name is absent.
    check(unsafe { libc::syscall(libc::SYS_keyctl, KEYCTL_JOIN_SESSION_KEYRING, std::ptr::null::<libc::c_char>()) })?;
    Ok(())
}

/// Puts a descriptor at a fixed number, with or without close-on-exec.
pub fn place_fd(fd: RawFd, at: RawFd, close_on_exec: bool) -> Result<()> {
    let flags = if close_on_exec { libc::O_CLOEXEC } else { 0 };
    // SAFETY: no memory is passed; the caller owns both numbers.
    check(unsafe { libc::syscall(libc::SYS_dup3, fd, at, flags) })?;
    Ok(())
}

/// Closes every descriptor from `first` on.
pub fn close_from(first: RawFd) -> Result<()> {
    // SAFETY: no memory is passed; the caller, which is about to execute another program, uses none of them again.
    check(unsafe { libc::syscall(libc::SYS_close_range, first, libc::c_uint::MAX, 0) })?;
    Ok(())
}

/// Default disposition of all signals, none blocked: execution would hand on what this program ignores.
pub fn reset_signals() {
    // SAFETY: the structures are zeroed, which is an empty mask and the default action; signals that cannot be changed fail harmlessly.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = libc::SIG_DFL;
        for signal in 1..=31 {
            libc::sigaction(signal, &raw const action, std::ptr::null_mut());
        }
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&raw mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &raw const none, std::ptr::null_mut());
    }
}

/// Sets soft and hard limit; a hard limit that is lower already stays.
pub fn limit_resource(resource: u32, soft: u64, hard: u64) -> Result<()> {
    let mut present = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: the kernel fills the structure.
    check(unsafe { libc::prlimit(0, resource as _, std::ptr::null(), &raw mut present) }.into())?;
    let hard = hard.min(present.rlim_max);
    let wanted = libc::rlimit { rlim_cur: soft.min(hard), rlim_max: hard };
    // SAFETY: the kernel reads the structure.
    check(unsafe { libc::prlimit(0, resource as _, &raw const wanted, std::ptr::null_mut()) }.into())?;
    Ok(())
}

/// Executes the program behind the descriptor with an empty environment. Returns only on failure.
pub fn execute(program: BorrowedFd<'_>, name: &CStr) -> rustix::io::Errno {
    let argv = [name.as_ptr(), std::ptr::null()];
    let environment = [std::ptr::null::<libc::c_char>()];
    // SAFETY: both arrays end with a null pointer and outlive the call.
    unsafe {
        libc::syscall(
            libc::SYS_execveat,
            program.as_raw_fd(),
            c"".as_ptr(),
            argv.as_ptr(),
            environment.as_ptr(),
            libc::AT_EMPTY_PATH,
        );
    }
    last_errno()
}

/// Copies a descriptor to a number above those that [`place_fd`] fills.
pub fn above_fixed(fd: RawFd) -> Result<RawFd> {
    const FIRST: libc::c_int = 64;
    // SAFETY: no memory is passed; the copy is closed by `close_from`.
    check(unsafe { libc::fcntl(fd, libc::F_DUPFD_CLOEXEC, FIRST) }.into()).map(|fd| fd as RawFd)
}

/// A descriptor by its number, for a process that has put something there and is about to execute another program.
pub fn borrow_fixed(fd: RawFd) -> BorrowedFd<'static> {
    // SAFETY: callers name numbers that stay open until the process executes or exits.
    unsafe { BorrowedFd::borrow_raw(fd) }
}

/// Ends this process without running anything of the program that it is a copy of.
pub fn exit_now(code: i32) -> ! {
    // SAFETY: never returns.
    unsafe { libc::_exit(code) }
}
