//! SIGCHLD: every process that ends is waited for, as PID 1 must; those that aether started itself are told to their owner.

use crate::event_loop::Aether;
use crate::exec::record::Ending;
use crate::slab::Key;
use crate::sys::signals;

/// A process that aether started.
#[derive(Clone, Copy, Debug)]
pub enum Child {
    Exec(Key),
    Session(Key),
    Worker,
}

/// Reaped before the loop looks at its descriptors again.
const BATCH: usize = 256;

impl Aether {
    pub fn on_signals(&mut self) {
        // Coalesced signals say nothing of how many have ended.
        while let Some(signal) = signals::next(&self.signals) {
            // PID 1 is ended from outside, by SIGKILL, and by nothing else: a signal that seems to come from there may be a queued one
            // (rt_sigqueueinfo), one of a descriptor (F_SETSIG), or one that lost its sender to a full queue.
            if signal != libc::SIGCHLD && std::process::id() != 1 {
                // SAFETY: plain call.
                unsafe { libc::_exit(0) };
            }
        }
        self.reap();
    }

    pub fn reap(&mut self) {
        for _ in 0..BATCH {
            let Some(pid) = ended_child() else { return };
            // While it is not waited for its pid cannot be reused, so its owner may still look for its family.
            let owner = self.children.remove(&pid);
            if let Some(Child::Session(key)) = owner {
                self.on_session_shell_dead(key, pid);
            }
            let mut status = 0;
            // SAFETY: plain call; the child has ended, so it does not block.
            unsafe { libc::waitpid(pid, &mut status, libc::WNOHANG) };
            let ending = Ending::from_status(status);
            match owner {
                Some(Child::Exec(key)) => self.on_exec_ended(key, ending),
                Some(Child::Session(key)) => self.on_session_ended(key, ending),
                Some(Child::Worker) | None => {}
            }
            self.on_reaped(pid);
        }
        self.reap_later();
    }

    /// There are more: another signal to itself brings the loop back here after everybody else had a turn.
    fn reap_later(&self) {
        // SAFETY: plain call.
        unsafe { libc::kill(std::process::id() as i32, libc::SIGCHLD) };
    }
}

/// A child that has ended and was not waited for.
fn ended_child() -> Option<i32> {
    // SAFETY: a siginfo of zeros is valid; the kernel fills it.
    unsafe {
        let mut info: libc::siginfo_t = std::mem::zeroed();
        let flags = libc::WEXITED | libc::WNOHANG | libc::WNOWAIT;
        if libc::waitid(libc::P_ALL, 0, &mut info, flags) != 0 {
            return None;
        }
        Some(info.si_pid()).filter(|&pid| pid != 0)
    }
}
