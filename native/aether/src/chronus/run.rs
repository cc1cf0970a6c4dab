//! Running scripts in a session, one after another.

use super::session::{Run, Waiting};
use super::shell_loop;
use crate::clock::{self, NANOS_PER_MS};
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Deadline};
use crate::exec::oom;
use crate::exec::record::{Ending, Exec};
use crate::proc::Proc;
use crate::slab::Key;
use crate::sys::{Errno, fd};

/// Runs that may wait in one session, and the bytes of their scripts.
const MAX_WAITING: usize = 512;
const MAX_WAITING_BYTES: usize = 16 << 20;
/// A status line is far shorter.
const MAX_LINE: usize = 64;

impl Aether {
    /// Puts a run at the end of the session's queue.
    pub fn enqueue_run(&mut self, session: Key, waiting: Waiting) -> Outcome<()> {
        let Some(state) = self.sessions.get_mut(session) else { return Ok(()) };
        let bytes: usize = state.queue.iter().map(|other| other.script.len()).sum();
        if state.queue.len() >= MAX_WAITING || bytes + waiting.script.len() > MAX_WAITING_BYTES {
            let message = "As many commands wait in the session as may.";
            return Err(Failure::new("too_many_requests", message).with("limit", MAX_WAITING));
        }
        state.queue.push_back(waiting);
        Ok(())
    }

    /// Begins the next run when the shell is free.
    pub fn advance_session(&mut self, key: Key) {
        while let Some(session) = self.sessions.get_mut(key) {
            if session.current.is_some() || !session.is_ready {
                return;
            }
            let Some(waiting) = session.queue.pop_front() else { return };
            let exec = waiting.exec;
            if let Err(errno) = self.begin_run(key, waiting) {
                let failure = match errno {
                    libc::EPIPE => Failure::new("session_lost", "The shell of the session has ended."),
                    libc::ENOSPC => Failure::invalid("script", "The script is too large for a session."),
                    _ => Failure::internal(errno, "The run could not be handed to the shell"),
                };
                self.discard_queued(exec, &failure);
            }
        }
    }

    fn begin_run(&mut self, key: Key, waiting: Waiting) -> Result<(), Errno> {
        let Some(session) = self.sessions.get_mut(key) else { return Err(libc::EPIPE) };
        let number = session.next_run;
        session.next_run += 1;
        let jobs = children_of(&self.proc, session.pid);
        let prepared = session
            .room
            .write_script(number, &shell_loop::script_text(session.numbers, session.last_exit, &waiting.script))
            .and_then(|()| Ok((session.room.open_output('o', number)?, session.room.open_output('e', number)?)));
        let line = format!("{number}\n");
        let started_tick = clock::ticks();
        let outputs = prepared.and_then(|outputs| fd::write(&session.control, line.as_bytes()).map(|_| outputs));
        let (stdout, stderr) = outputs.inspect_err(|_| session.room.clear(number))?;
        session.current = Some(Run { exec: waiting.exec, number, jobs, started_tick, aborts: 0 });
        let now = clock::now();
        if let Some(exec) = self.execs.get_mut(waiting.exec) {
            exec.is_queued = false;
            exec.started = now;
            exec.started_at_ms = clock::wall_ms();
            exec.oom_base = oom::kills();
            exec.outputs[0].source = Some(stdout);
            exec.outputs[1].source = Some(stderr);
            exec.deadline = waiting.timeout_ms.map(|ms| now + ms * NANOS_PER_MS);
            if let Some(when) = exec.deadline {
                self.deadlines.insert((when, Deadline::ExecTimeout(waiting.exec)));
            }
        }
        self.resume_outputs(waiting.exec);
        self.pump_readers(waiting.exec);
        Ok(())
    }

    /// The shell has written to its status pipe, or closed it (its end is told by SIGCHLD).
    pub fn on_session_status(&mut self, key: Key) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let mut buffer = [0; 512];
        let n = match fd::read(&session.status, &mut buffer) {
            Ok(0) => {
                self.poll.remove(&session.status);
                return;
            }
            Ok(n) => n,
            Err(_) => return,
        };
        for &byte in &buffer[..n] {
            let Some(session) = self.sessions.get_mut(key) else { return };
            if byte != b'\n' {
                if session.line.len() < MAX_LINE {
                    session.line.push(byte);
                }
                continue;
            }
            let line = std::mem::take(&mut session.line);
            match shell_loop::parse_status(&line) {
                Some((0, _)) => {
                    session.is_ready = true;
                    self.advance_session(key);
                }
                Some((run, exit)) => self.finish_run(key, run, exit),
                None => {}
            }
        }
    }

    fn finish_run(&mut self, key: Key, number: u64, exit: Option<i32>) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(run) = session.current.take_if(|run| run.number == number) else { return };
        session.room.clear(number);
        session.last_exit = exit.unwrap_or(1);
        let exit_code = Some(session.last_exit);
        let ending = match self.execs.get(run.exec).and_then(|exec| exec.abort_signal) {
            Some(signal) => Ending { exit_code: None, signal: Some(signal), at: clock::now() },
            None => Ending { exit_code, signal: None, at: clock::now() },
        };
        self.on_exec_ended(run.exec, ending);
        self.advance_session(key);
    }

    /// A run that never began leaves no record; who waits for it is told why.
    pub fn discard_queued(&mut self, key: Key, failure: &Failure) {
        let Some(exec) = self.execs.remove(key) else { return };
        for reader in exec.readers {
            self.finish(reader.at, Err(failure.clone()));
        }
    }

    /// A run that waits is cancelled by a signal that would end it.
    pub fn cancel_queued(&mut self, key: Key) -> bool {
        let Some(session) = self.execs.get(key).and_then(|exec: &Exec| exec.session) else { return false };
        let Some(session) = self.sessions.get_mut(session) else { return false };
        session.queue.retain(|waiting| waiting.exec != key);
        let failure = Failure::new("cancelled", "The command was cancelled before it began.");
        self.discard_queued(key, &failure);
        true
    }
}

/// The direct children of a process: by the kernel's own list where it is compiled in.
fn children_of(proc: &Proc, pid: i32) -> Vec<i32> {
    const LIMIT: usize = 1 << 16;
    match proc.open_file(&format!("{pid}/task/{pid}/children")) {
        Ok(file) => {
            let text = fd::read_to_limit(&file, LIMIT).unwrap_or_default();
            String::from_utf8_lossy(&text).split_ascii_whitespace().filter_map(|child| child.parse().ok()).collect()
        }
        Err(_) => proc.scan().into_iter().filter(|stat| stat.ppid == pid).map(|stat| stat.pid).collect(),
    }
}
