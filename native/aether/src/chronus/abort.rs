//! Ending a run before its script is through, and keeping the shell where that is possible.
//!
//! What the run started is killed, and the shell is told by a signal to return from the script. A function that the script is in only
//! returns to its caller, so both are repeated, at growing distances, until the run is over; a shell that hangs in a builtin is
//! killed in the end, and its session with it.

use super::shell_loop::ABORT_SIGNAL;
use crate::clock::{self, NANOS_PER_MS};
use crate::doom::Then;
use crate::event_loop::{Aether, Deadline};
use crate::exec::tree::{self, Family};
use crate::proc::Stat;
use crate::slab::Key;

/// Distances between the attempts: all together about a second.
const FIRST_WAIT_MS: u64 = 2;
const LAST_WAIT_MS: u64 = 50;
const MAX_ATTEMPTS: u32 = 30;

impl Aether {
    /// Ends what runs in the session as if by `signal`.
    pub fn abort_run(&mut self, key: Key, signal: i32) {
        let Some(run) = self.sessions.get(key).and_then(|session| session.current.as_ref()) else { return };
        if let Some(exec) = self.execs.get_mut(run.exec) {
            exec.abort_signal = Some(signal);
        }
        self.abort_again(key, run.number);
    }

    /// One attempt; nothing when that run is over.
    pub fn abort_again(&mut self, key: Key, number: u64) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let pid = session.pid;
        let Some(run) = session.current.as_mut().filter(|run| run.number == number) else { return };
        run.aborts += 1;
        if run.aborts > MAX_ATTEMPTS {
            self.kill_session(key, Then::Nothing);
            return;
        }
        let wait = (FIRST_WAIT_MS << run.aborts.min(8)).min(LAST_WAIT_MS);
        let family = self.run_family(key);
        // SAFETY: plain calls; the shell was not waited for. It stands still meanwhile, so that it starts nothing in between.
        unsafe { libc::kill(pid, libc::SIGSTOP) };
        tree::kill(&self.proc, &family);
        // SAFETY: as above.
        unsafe {
            libc::kill(pid, ABORT_SIGNAL);
            libc::kill(pid, libc::SIGCONT);
        }
        self.deadlines.insert((clock::now() + wait * NANOS_PER_MS, Deadline::AbortRun(key, number)));
    }

    /// Sends a signal to what the current run has started; true when it reached somebody.
    pub fn signal_run(&mut self, key: Key, signal: i32) -> bool {
        let family = self.run_family(key);
        tree::signal(&self.proc, &family, signal)
    }

    /// What the run of a session has started: below the shell, and not through a job of an earlier run.
    fn run_family(&self, key: Key) -> Family {
        let Some(session) = self.sessions.get(key) else { return Family::default() };
        let Some(run) = &session.current else { return Family::default() };
        let is_older = |stat: &Stat| stat.pid != session.pid && stat.start < run.started_tick;
        let older = self.proc.scan().into_iter().filter(is_older).map(|stat| stat.pid);
        let excluded = run.jobs.iter().copied().chain(older).collect();
        Family { roots: vec![session.pid], excluded, spare_roots: true }
    }
}
