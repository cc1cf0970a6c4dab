//! Starting a program: clone that shares memory and suspends the parent until the exec, as posix_spawn does. The child reports
//! what went wrong into the shared memory, so there is no error pipe. It makes system calls only.

use std::cell::UnsafeCell;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::os::fd::RawFd;
use std::ptr;

use super::oom::ProgramScore;
use crate::outside::{STARTING, Watched};
use crate::sys::{Errno, errno};

/// Descriptors of the new process. `-1` for a standard descriptor is not possible: every program gets all three.
#[derive(Clone, Copy, Debug)]
pub struct Stdio {
    pub stdin: RawFd,
    pub stdout: RawFd,
    pub stderr: RawFd,
    /// Makes stdin the controlling terminal.
    pub terminal: bool,
}

/// Everything that the child needs, prepared by the parent.
#[derive(Debug)]
pub struct Launch<'a> {
    /// Files to try in order, as execvp does.
    pub candidates: &'a [CString],
    pub argv: &'a [CString],
    pub env: &'a [CString],
    pub cwd: &'a CStr,
    /// `cwd` is only a preference: `/` where it cannot be entered.
    pub cwd_or_root: bool,
    pub uid: u32,
    pub gid: u32,
    pub groups: &'a [u32],
    pub stdio: Stdio,
    /// (descriptor here, number there) of at most `MAX_PASSED` further descriptors, by rising number below `MOVED_FROM`.
    pub pass: &'a [(RawFd, RawFd)],
    /// Soft limit of open files to go back to.
    pub open_files: Option<libc::rlimit>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    Clone,
    Descriptors,
    Terminal,
    Identity,
    Cwd,
    Exec,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SpawnError {
    pub stage: Stage,
    pub errno: Errno,
}

/// The shell for files without a `#!` line.
const SCRIPT_SHELL: &CStr = c"/bin/sh";
const CHILD_UMASK: libc::mode_t = 0o022;
const STACK: usize = 32 << 10;
/// Lowest number for descriptors that are moved out of the way of the passed ones.
const MOVED_FROM: RawFd = 200;
const MAX_PASSED: usize = 4;

#[repr(align(64))]
struct Stack(UnsafeCell<[u8; STACK]>);

// SAFETY: one thread of aether starts programs, and it is suspended while the child uses the stack; tests that spawn from several
// threads hold a lock.
unsafe impl Sync for Stack {}

static CHILD_STACK: Stack = Stack(UnsafeCell::new([0; STACK]));

struct Plan<'a> {
    launch: &'a Launch<'a>,
    candidates: Vec<*const c_char>,
    argv: Vec<*const c_char>,
    /// `/bin/sh FILE ARGS...`; slot 1 is filled with the candidate.
    script_argv: Vec<*const c_char>,
    env: Vec<*const c_char>,
    score: ProgramScore,
    stage: Stage,
    errno: Errno,
}

fn pointers(strings: &[CString]) -> Vec<*const c_char> {
    strings.iter().map(|string| string.as_ptr()).chain([ptr::null()]).collect()
}

/// Starts the program and returns its pid once it really runs.
pub fn spawn(launch: &Launch<'_>) -> Result<i32, SpawnError> {
    let mut script_argv = vec![SCRIPT_SHELL.as_ptr(), ptr::null()];
    script_argv.extend(launch.argv.iter().skip(1).map(|argument| argument.as_ptr()));
    script_argv.push(ptr::null());
    let mut plan = Plan {
        launch,
        candidates: launch.candidates.iter().map(|candidate| candidate.as_ptr()).collect(),
        argv: pointers(launch.argv),
        script_argv,
        env: pointers(launch.env),
        score: ProgramScore::take(),
        stage: Stage::Clone,
        errno: 0,
    };
    let ids = libc::CLONE_PARENT_SETTID | libc::CLONE_CHILD_CLEARTID;
    let flags = libc::CLONE_VM | libc::CLONE_VFORK | ids | libc::SIGCHLD;
    let watched = Watched::begin();
    // SAFETY: the stack is large enough for the shallow calls of `child` and nobody else uses it, as the parent is suspended
    // until the child has its own memory or is gone; `plan` outlives that.
    let pid = unsafe {
        let top = CHILD_STACK.0.get().cast::<u8>().add(STACK).cast::<c_void>();
        let (argument, no_tls) = (ptr::from_mut(&mut plan).cast(), ptr::null_mut::<c_void>());
        libc::clone(child, top, flags, argument, STARTING.as_ptr(), no_tls, STARTING.as_ptr())
    };
    let failure = errno();
    drop(watched);
    plan.score.give_back();
    if pid < 0 {
        return Err(SpawnError { stage: Stage::Clone, errno: failure });
    }
    if launch.uid != 0 {
        // A change of user in the child has set the shared memory's mark by the rules of /proc/sys/fs/suid_dumpable.
        // SAFETY: plain call.
        unsafe { libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) };
    }
    if plan.errno != 0 {
        let mut status = 0;
        // SAFETY: the child has exited; nobody else waits for it by its pid.
        unsafe { libc::waitpid(pid, &mut status, 0) };
        return Err(SpawnError { stage: plan.stage, errno: plan.errno });
    }
    Ok(pid)
}

extern "C" fn child(argument: *mut c_void) -> c_int {
    // SAFETY: `spawn` passes its plan, which lives until this process has called exec or exited; the parent does not run meanwhile.
    unsafe {
        let plan = &mut *argument.cast::<Plan<'_>>();
        let failure = become_program(plan);
        plan.errno = failure;
        libc::_exit(127)
    }
}

/// A raw call, because glibc's own functions for ids act on all threads of the process they believe to be in.
macro_rules! call {
    ($name:ident $(, $argument:expr)*) => { libc::syscall(libc::$name $(, $argument)*) };
}

/// Returns the error number with `plan.stage` set, or does not return.
///
/// # Safety
/// Runs in the child on shared memory: no allocation, no locks, no panics.
unsafe fn become_program(plan: &mut Plan<'_>) -> Errno {
    let launch = plan.launch;
    // SAFETY: system calls with pointers into the plan.
    unsafe {
        plan.score.give_back();
        plan.stage = Stage::Descriptors;
        libc::setsid();
        if let Err(errno) = place_descriptors(launch) {
            return errno;
        }
        if launch.stdio.terminal {
            plan.stage = Stage::Terminal;
            if libc::ioctl(0, libc::TIOCSCTTY, 0) < 0 {
                return errno();
            }
        }
        if let Some(limit) = &launch.open_files {
            libc::setrlimit(libc::RLIMIT_NOFILE, limit);
        }
        plan.stage = Stage::Identity;
        if call!(SYS_setgroups, launch.groups.len(), launch.groups.as_ptr()) < 0
            || call!(SYS_setresgid, launch.gid, launch.gid, launch.gid) < 0
            || call!(SYS_setresuid, launch.uid, launch.uid, launch.uid) < 0
        {
            return errno();
        }
        plan.stage = Stage::Cwd;
        if libc::chdir(launch.cwd.as_ptr()) < 0 {
            let failure = errno();
            if !launch.cwd_or_root || libc::chdir(c"/".as_ptr()) < 0 {
                return failure;
            }
        }
        libc::umask(CHILD_UMASK);
        reset_signals();
        plan.stage = Stage::Exec;
        exec(plan)
    }
}

/// # Safety
/// As `become_program`.
unsafe fn place_descriptors(launch: &Launch<'_>) -> Result<(), Errno> {
    let Stdio { stdin, stdout, stderr, .. } = launch.stdio;
    // SAFETY: descriptor calls. The sources are all above 2, so that none is overwritten before its turn.
    unsafe {
        for (from, to) in [(stdin, 0), (stdout, 1), (stderr, 2)] {
            if libc::dup2(from, to) < 0 {
                return Err(errno());
            }
        }
        let mut moved = [-1; MAX_PASSED];
        for (slot, &(from, _)) in moved.iter_mut().zip(launch.pass) {
            // First out of the way, so that a passed one does not overwrite the source of the next.
            *slot = libc::fcntl(from, libc::F_DUPFD_CLOEXEC, MOVED_FROM);
            if *slot < 0 {
                return Err(errno());
            }
        }
        let mut others = 3;
        for (&from, &(_, to)) in moved.iter().zip(launch.pass) {
            if libc::dup2(from, to) < 0 {
                return Err(errno());
            }
            others = to + 1;
        }
        // Everything else is close-on-exec; this holds should one ever not be.
        call!(SYS_close_range, others as u32, u32::MAX, libc::CLOSE_RANGE_CLOEXEC);
    }
    Ok(())
}

/// Only what is ignored survives an exec: aether ignores SIGPIPE alone.
///
/// # Safety
/// As `become_program`. The table of handlers is the child's own (no CLONE_SIGHAND).
unsafe fn reset_signals() {
    // SAFETY: plain data and calls.
    unsafe {
        libc::signal(libc::SIGPIPE, libc::SIG_DFL);
        let mut none: libc::sigset_t = std::mem::zeroed();
        libc::sigemptyset(&mut none);
        libc::sigprocmask(libc::SIG_SETMASK, &none, ptr::null_mut());
    }
}

/// Tries the candidates as execvp does and returns the error that says most.
///
/// # Safety
/// As `become_program`.
unsafe fn exec(plan: &mut Plan<'_>) -> Errno {
    let mut worst = libc::ENOENT;
    for i in 0..plan.candidates.len() {
        let file = plan.candidates[i];
        // SAFETY: the vectors end with a null pointer and live in the plan.
        let mut failure = unsafe {
            libc::execve(file, plan.argv.as_ptr(), plan.env.as_ptr());
            errno()
        };
        if failure == libc::ENOEXEC {
            plan.script_argv[1] = file;
            // SAFETY: as above.
            failure = unsafe {
                libc::execve(SCRIPT_SHELL.as_ptr(), plan.script_argv.as_ptr(), plan.env.as_ptr());
                if errno() == libc::ENOENT { libc::ENOEXEC } else { errno() }
            };
        }
        match failure {
            libc::ENOENT | libc::ENOTDIR | libc::ESTALE | libc::ENODEV | libc::ETIMEDOUT => {}
            libc::EACCES => worst = libc::EACCES,
            other => return other,
        }
    }
    worst
}
