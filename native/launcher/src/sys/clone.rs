//! clone3, and processes held by a pidfd.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags, Signal};

use super::{Errno, Result, check};

/// `struct clone_args` of linux/sched.h, version 2.
#[repr(C)]
#[derive(Default)]
struct CloneArgs {
    flags: u64,
    pidfd: u64,
    child_tid: u64,
    parent_tid: u64,
    exit_signal: u64,
    stack: u64,
    stack_size: u64,
    tls: u64,
    set_tid: u64,
    set_tid_size: u64,
    cgroup: u64,
}

const CLONE_PIDFD: u64 = 0x1000;
const CLONE_INTO_CGROUP: u64 = 0x2_0000_0000;
pub const CLONE_NEWNS: u64 = 0x2_0000;
pub const CLONE_NEWCGROUP: u64 = 0x200_0000;
pub const CLONE_NEWUTS: u64 = 0x400_0000;
pub const CLONE_NEWIPC: u64 = 0x800_0000;
pub const CLONE_NEWUSER: u64 = 0x1000_0000;
pub const CLONE_NEWPID: u64 = 0x2000_0000;

pub struct Process {
    /// In the pid namespace of the caller.
    pub pid: Pid,
    pub pidfd: OwnedFd,
}

pub enum Fork {
    Parent(Process),
    Child,
}

/// Forks into new namespaces; with `cgroup` (v2), born in that group.
///
/// # Safety
/// The caller must be single-threaded: the child is a copy of the calling thread alone, and locks that others hold would stay
/// locked in it for ever.
pub unsafe fn fork(namespaces: u64, cgroup: Option<BorrowedFd<'_>>) -> Result<Fork> {
    let mut pidfd: i32 = -1;
    let mut args = CloneArgs {
        flags: namespaces | CLONE_PIDFD,
        pidfd: (&raw mut pidfd) as u64,
        exit_signal: libc::SIGCHLD as u64,
        ..CloneArgs::default()
    };
    if let Some(group) = cgroup {
        args.flags |= CLONE_INTO_CGROUP;
        args.cgroup = group.as_raw_fd() as u64;
    }
    // SAFETY: the arguments are a valid structure of this size; without CLONE_VM the child has its own memory.
    let pid = check(unsafe { libc::syscall(libc::SYS_clone3, &raw mut args, size_of::<CloneArgs>()) })?;
    match Pid::from_raw(pid as i32) {
        None => Ok(Fork::Child),
        // SAFETY: the kernel has put a new descriptor there, which nobody else owns.
        Some(pid) => Ok(Fork::Parent(Process { pid, pidfd: unsafe { OwnedFd::from_raw_fd(pidfd) } })),
    }
}

/// A process of no program that only holds a new user namespace alive until it is dropped. It shares the memory of the caller, so making it copies no
/// page table; it does nothing but wait for its end.
pub struct Holder {
    pub pid: Pid,
    _stack: Box<[u128; HOLDER_STACK]>,
}

const HOLDER_STACK: usize = 256;

extern "C" fn hold(_: *mut libc::c_void) -> libc::c_int {
    loop {
        // SAFETY: pause has no arguments and touches no memory.
        unsafe { libc::syscall(libc::SYS_ppoll, 0, 0, 0, 0, 0) };
    }
}

impl Holder {
    /// Its namespace belongs to the caller's present effective uid.
    pub fn in_new_user_namespace() -> Result<Self> {
        let mut stack = Box::new([0u128; HOLDER_STACK]);
        // SAFETY: the stack outlives the process (see `drop`), grows down from its 16-byte aligned end, and `hold` uses little of it.
        let pid = unsafe {
            let top = stack.as_mut_ptr().add(HOLDER_STACK).cast();
            libc::clone(hold, top, libc::CLONE_VM | CLONE_NEWUSER as i32 | libc::SIGCHLD, std::ptr::null_mut())
        };
        match Pid::from_raw(pid.max(0)) {
            Some(pid) => Ok(Self { pid, _stack: stack }),
            None => Err(super::last_errno()),
        }
    }
}

impl Holder {
    /// Ends it; dropping it later need not wait then.
    pub fn end(&self) {
        // Gone already is what is wanted.
        let _ = rustix::process::kill_process(self.pid, Signal::KILL);
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        self.end();
        while let Err(Errno::INTR) = rustix::process::waitpid(Some(self.pid), rustix::process::WaitOptions::empty()) {}
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ending {
    Code(i32),
    Signal(i32),
    /// It ended, and the kernel or another parent has kept how.
    Unknown,
}

impl Ending {
    fn from_wait_status(status: i32) -> Self {
        if libc::WIFEXITED(status) {
            Self::Code(libc::WEXITSTATUS(status))
        } else if libc::WIFSIGNALED(status) {
            Self::Signal(libc::WTERMSIG(status))
        } else {
            Self::Unknown
        }
    }
}

/// `struct pidfd_info` of linux/pidfd.h up to the exit code (PIDFD_INFO_SIZE_VER0).
#[repr(C)]
#[derive(Default)]
struct PidfdInfo {
    mask: u64,
    cgroup_id: u64,
    pids: [u32; 3],
    credentials: [u32; 8],
    exit_code: i32,
}

const PIDFD_INFO_EXIT: u64 = 1 << 3;
const PIDFD_GET_INFO: u64 = 0xC040_FF0B;

const PIDFD_GET_USER_NAMESPACE: u64 = 0xFF09;

/// The user namespace that a process is in.
pub fn user_namespace_of(pidfd: impl AsFd) -> Result<OwnedFd> {
    // SAFETY: the request takes no argument and returns a new descriptor, which nobody else owns.
    unsafe {
        let fd = check(libc::ioctl(pidfd.as_fd().as_raw_fd(), PIDFD_GET_USER_NAMESPACE, 0).into())?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

pub fn open_process(pid: Pid) -> Result<OwnedFd> {
    rustix::process::pidfd_open(pid, PidfdFlags::empty())
}

/// A copy of a descriptor that a process has open. Needs CAP_SYS_PTRACE where the process is somebody else's.
pub fn copy_descriptor(pidfd: impl AsFd, number: i32) -> Result<OwnedFd> {
    // SAFETY: no memory is passed; the new descriptor is nobody else's.
    unsafe {
        let pidfd = pidfd.as_fd().as_raw_fd();
        let fd = check(libc::syscall(libc::SYS_pidfd_getfd, pidfd, number, 0))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// A number that no other process of this boot has had or will have: the inode of its pidfd.
pub fn identity(pidfd: impl AsFd) -> Result<u64> {
    Ok(rustix::fs::fstat(pidfd)?.st_ino)
}

/// Kills a child and waits for its end.
pub fn end(process: &Process) {
    // Gone already is what is wanted.
    let _ = rustix::process::pidfd_send_signal(&process.pidfd, Signal::KILL);
    while let Err(Errno::INTR) = rustix::process::waitpid(Some(process.pid), rustix::process::WaitOptions::empty()) {}
}

/// What [`reap`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaped {
    Alive,
    /// It ended, and its parent, somebody else, has not waited for it yet: ask again.
    Zombie,
    Ended(Ending),
}

/// Reaps a child, or asks the kernel how the child of somebody else ended.
pub fn reap(pidfd: BorrowedFd<'_>) -> Reaped {
    let mut info = std::mem::MaybeUninit::<libc::siginfo_t>::zeroed();
    // SAFETY: waitid fills the structure; the descriptor is open.
    let waited = unsafe {
        libc::waitid(libc::P_PIDFD, pidfd.as_raw_fd() as u32, info.as_mut_ptr(), libc::WEXITED | libc::WNOHANG)
    };
    if waited != 0 {
        return adopted_ending(pidfd);
    }
    // SAFETY: zeroed, and filled when a child was waited for; these fields are valid for a SIGCHLD structure and for zeroes.
    let (code, status, pid) = unsafe {
        let info = info.assume_init();
        (info.si_code, info.si_status(), info.si_pid())
    };
    match (pid, code) {
        (0, _) => Reaped::Alive,
        (_, libc::CLD_EXITED) => Reaped::Ended(Ending::Code(status)),
        _ => Reaped::Ended(Ending::Signal(status)),
    }
}

/// Waits for the end of a child of this process, and reaps it.
pub fn wait(pidfd: BorrowedFd<'_>) -> Ending {
    loop {
        // Where a signal cuts it short, it is still alive.
        let _ = rustix::event::poll(&mut [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)], None);
        if let Reaped::Ended(ending) = reap(pidfd) {
            return ending;
        }
    }
}

fn adopted_ending(pidfd: BorrowedFd<'_>) -> Reaped {
    let mut poll = [PollFd::from_borrowed_fd(pidfd, PollFlags::IN)];
    if matches!(rustix::event::poll(&mut poll, Some(&Timespec { tv_sec: 0, tv_nsec: 0 })), Ok(0)) {
        return Reaped::Alive;
    }
    let mut info = PidfdInfo { mask: PIDFD_INFO_EXIT, ..PidfdInfo::default() };
    // SAFETY: the request carries the size of the structure, which the kernel fills at most.
    let got = unsafe { libc::ioctl(pidfd.as_raw_fd(), PIDFD_GET_INFO, &raw mut info) };
    match (got, info.mask & PIDFD_INFO_EXIT) {
        (0, 0) => Reaped::Zombie,
        (0, _) => Reaped::Ended(Ending::from_wait_status(info.exit_code)),
        _ => Reaped::Ended(Ending::Unknown),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{CWD, Mode, OFlags, openat};

    const UNIFIED: [&str; 2] = ["/sys/fs/cgroup/unified", "/sys/fs/cgroup"];

    /// In a child of a program with threads only system calls are safe.
    fn is_root_of_its_group() -> bool {
        let Ok(file) = openat(CWD, c"/proc/self/cgroup", OFlags::RDONLY, Mode::empty()) else { return false };
        let mut text = [0; 4_096];
        let length = rustix::io::read(&file, &mut text).unwrap_or(0);
        text[..length].split(|byte| *byte == b'\n').any(|line| line == b"0::/")
    }

    #[test]
    fn a_process_is_born_into_a_group_of_version_2() {
        let Some(root) = UNIFIED.iter().find(|path| std::path::Path::new(path).join("cgroup.controllers").exists())
        else {
            panic!("no cgroup version 2 is mounted");
        };
        let path = std::path::Path::new(root).join(format!("dsec-clone-test-{}", std::process::id()));
        std::fs::create_dir(&path).expect("a group");
        let group = std::fs::File::open(&path).expect("opened");
        // SAFETY: the child makes system calls only.
        let process = match unsafe { fork(CLONE_NEWCGROUP, Some(group.as_fd())) }.expect("forked") {
            Fork::Child => crate::sys::process::exit_now(if is_root_of_its_group() { 0 } else { 1 }),
            Fork::Parent(process) => process,
        };
        let ending = wait(process.pidfd.as_fd());
        std::fs::remove_dir(&path).expect("removed");
        assert_eq!(ending, Ending::Code(0));
    }
}
