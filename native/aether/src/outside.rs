//! The thread that stays outside of the domain. aether's own thread has entered it ([`crate::confine`]), so that every program that it starts, without any
//! detour, shares it; this one thread has not, and forks the workers and ends them. So no program, whatever its user, can stop or end a worker, and with
//! it the request that the worker serves. As a thread of PID 1 it is as safe from signals as that is.
//!
//! The two threads never run at once: aether's waits from the giving of an order until it is done.

use std::ptr;
use std::sync::atomic::{AtomicPtr, AtomicU32, Ordering};

use crate::confine;
use crate::sys::{Errno, errno};

/// A worker goes on where this thread was. Only what is used of it is memory.
const STACK: usize = 8 << 20;

/// What is to be done, and what came of it.
enum Order<'a> {
    Fork { work: &'a mut dyn FnMut(), outcome: Result<i32, Errno> },
    Kill(i32),
}

/// A slot on the stack of whoever waits, or null.
static ORDER: AtomicPtr<Order<'static>> = AtomicPtr::new(ptr::null_mut());
/// Odd while an order is being carried out.
static TURN: AtomicU32 = AtomicU32::new(0);

fn wait_while(value: u32) {
    while TURN.load(Ordering::SeqCst) == value {
        // SAFETY: the word is a static, and there is no timeout.
        unsafe {
            let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
            libc::syscall(libc::SYS_futex, TURN.as_ptr(), flags, value, ptr::null::<libc::timespec>());
        }
    }
}

fn pass_on() {
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
    let thread = std::thread::Builder::new().stack_size(STACK).spawn(serve);
    thread.map_err(|error| error.raw_os_error().unwrap_or(libc::EAGAIN))?;
    domain.as_ref().map_or(Ok(()), confine::enter)
}

fn serve() {
    let mut turn = 0u32;
    loop {
        wait_while(turn);
        // SAFETY: `carry_out` has put it there and waits.
        unsafe { obey(&mut *ORDER.load(Ordering::SeqCst)) };
        pass_on();
        turn = turn.wrapping_add(2);
    }
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
    let turn = TURN.load(Ordering::SeqCst).wrapping_add(1);
    pass_on();
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
