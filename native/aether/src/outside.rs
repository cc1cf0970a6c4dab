//! The thread that stays outside of the domain. aether's own thread has entered it ([`crate::confine`]), so that every program that it starts, without any
//! detour, shares it; this one thread has not, and forks the workers and ends them. So no program, whatever its user, can stop or end a worker, and with
//! it the request that the worker serves. As a thread of PID 1 it is as safe from signals as that is.
//!
//! It also watches over the start of a program. Until that executes it shares aether's memory, and aether waits for it; other programs can stop it, and would
//! stop aether with it.
//!
//! For orders the two threads never run at once: aether's waits from the giving of one until it is done.

use std::os::fd::{IntoRawFd, RawFd};
use std::ptr;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicU32, Ordering};

use crate::confine;
use crate::sys::fd::owned;
use crate::sys::{Errno, check, errno};

/// A worker goes on where this thread was. Only what is used of it is memory.
const STACK: usize = 8 << 20;

/// A start that takes so long is looked at, and again after as long.
const LOOK_NANOS: libc::c_long = 100_000_000;

/// What is to be done, and what came of it.
enum Order<'a> {
    Fork { work: &'a mut dyn FnMut(), outcome: Result<i32, Errno> },
    Kill(i32),
}

/// A slot on the stack of whoever waits, or null.
static ORDER: AtomicPtr<Order<'static>> = AtomicPtr::new(ptr::null_mut());
/// Odd while an order is being carried out.
static TURN: AtomicU32 = AtomicU32::new(0);
/// Wakes the thread for an order (an eventfd); open as long as the process.
static BELL: AtomicI32 = AtomicI32::new(-1);
/// Runs out when a start takes long (a timerfd); open as long as the process.
static WATCH: AtomicI32 = AtomicI32::new(-1);
/// The child that shares aether's memory, from its making until the kernel clears it (CLONE_PARENT_SETTID, CLONE_CHILD_CLEARTID).
pub static STARTING: AtomicI32 = AtomicI32::new(0);

fn wait_while(value: u32) {
    while TURN.load(Ordering::SeqCst) == value {
        // SAFETY: the word is a static, and there is no timeout.
        unsafe {
            let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, TURN.as_ptr(), flags, value, ptr::null::<libc::timespec>());
        }
    }
}

fn done() {
    TURN.fetch_add(1, Ordering::SeqCst);
    // SAFETY: the word is a static.
    unsafe { libc::syscall(libc::SYS_futex, TURN.as_ptr(), libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG, 1) };
}

/// Starts the thread; then the caller enters the domain, where the kernel has one. Once in a process, with all signals blocked.
pub fn start() -> Result<(), Errno> {
    let domain = confine::prepare()?;
    // One heap, also for what is forked from the other thread.
    // SAFETY: plain call.
    unsafe { libc::mallopt(libc::M_ARENA_MAX, 1) };
    // SAFETY: plain calls, which make descriptors.
    let (bell, watch) = unsafe {
        let bell = owned(check(libc::eventfd(0, libc::EFD_CLOEXEC))?);
        let flags = libc::TFD_CLOEXEC | libc::TFD_NONBLOCK;
        (bell, owned(check(libc::timerfd_create(libc::CLOCK_MONOTONIC, flags))?))
    };
    BELL.store(bell.into_raw_fd(), Ordering::SeqCst);
    WATCH.store(watch.into_raw_fd(), Ordering::SeqCst);
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(serve);
    thread.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    domain.as_ref().map_or(Ok(()), confine::enter)
}

fn serve() {
    let (bell, watch) = (BELL.load(Ordering::SeqCst), WATCH.load(Ordering::SeqCst));
    loop {
        let mut ready = [bell, watch].map(|fd| libc::pollfd { fd, events: libc::POLLIN, revents: 0 });
        // SAFETY: `ready` has as many entries as are told.
        unsafe { libc::poll(ready.as_mut_ptr(), ready.len() as libc::nfds_t, -1) };
        if ready[1].revents != 0 && take(watch) {
            end_if_stopped(STARTING.load(Ordering::SeqCst));
        }
        if ready[0].revents != 0 && take(bell) {
            // SAFETY: `carry_out` has put it there and waits.
            unsafe { obey(&mut *ORDER.load(Ordering::SeqCst)) };
            done();
        }
    }
}

/// Reads the counter of an eventfd or timerfd.
fn take(counter: RawFd) -> bool {
    let mut count = 0u64;
    // SAFETY: both give eight bytes.
    unsafe { libc::read(counter, (&raw mut count).cast(), size_of::<u64>()) == size_of::<u64>() as isize }
}

/// Ends a child that was stopped before it executed. What a program does to itself afterwards is its own affair.
fn end_if_stopped(pid: i32) {
    if pid <= 0 {
        return;
    }
    // SAFETY: a siginfo of zeros is valid; the kernel fills it. While it shares the memory nobody has waited for it, so the pid is its own.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WSTOPPED | libc::WNOHANG | libc::WNOWAIT;
        let is_stopped = libc::waitid(libc::P_PID, pid as libc::id_t, &mut info, flags) == 0 && info.si_pid() == pid;
        if is_stopped && STARTING.load(Ordering::SeqCst) == pid {
            libc::kill(pid, libc::SIGKILL);
        }
    }
}

/// Has the start of a program watched over while it lives.
pub struct Watched;

impl Watched {
    pub fn begin() -> Self {
        set_watch(LOOK_NANOS);
        Self
    }
}

impl Drop for Watched {
    fn drop(&mut self) {
        set_watch(0);
    }
}

/// 0: none.
fn set_watch(nanos: libc::c_long) {
    let every = libc::timespec { tv_sec: 0, tv_nsec: nanos };
    let setting = libc::itimerspec { it_interval: every, it_value: every };
    // SAFETY: the setting outlives the call; without a timer the number is that of no descriptor.
    unsafe { libc::timerfd_settime(WATCH.load(Ordering::Relaxed), 0, &setting, ptr::null_mut()) };
}

fn obey(order: &mut Order<'_>) {
    // SAFETY: a child has a copy of the memory, in which nobody else runs; the other call is plain.
    unsafe {
        match order {
            Order::Fork { work, outcome } => match libc::fork() {
                0 => {
                    work();
                    libc::_exit(0)
                }
                pid => *outcome = if pid < 0 { Err(errno()) } else { Ok(pid) },
            },
            Order::Kill(pid) => {
                libc::kill(*pid, libc::SIGKILL);
            }
        }
    }
}

fn carry_out(order: &mut Order<'_>) {
    ORDER.store(ptr::from_mut(order).cast(), Ordering::SeqCst);
    let turn = TURN.fetch_add(1, Ordering::SeqCst).wrapping_add(1);
    let one = 1u64;
    // SAFETY: an eventfd takes eight bytes.
    unsafe { libc::write(BELL.load(Ordering::SeqCst), (&raw const one).cast(), size_of::<u64>()) };
    wait_while(turn);
}

/// Does `work` in a process of its own, a child of this one, which then ends; returns its pid.
pub fn fork(work: &mut dyn FnMut()) -> Result<i32, Errno> {
    let mut order = Order::Fork { work, outcome: Err(libc::EAGAIN) };
    carry_out(&mut order);
    match order {
        Order::Fork { outcome, .. } => outcome,
        Order::Kill(_) => Err(libc::EINVAL),
    }
}

/// Ends a worker that was not waited for.
pub fn kill(pid: i32) {
    carry_out(&mut Order::Kill(pid));
}
