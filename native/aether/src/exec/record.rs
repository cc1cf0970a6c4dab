//! What is known of one command.

use std::os::fd::OwnedFd;

use serde::Serialize;

use super::attach::Reader;
use super::ring::Ring;
use super::stdin::Stdin;
use crate::clock::{self, NANOS_PER_MS};
use crate::slab::Key;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    Running,
    Exited,
}

#[derive(Debug, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct ExecStatus<'a> {
    exec_id: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    tag: Option<&'a str>,
    state: State,
    pid: i32,
    pty: bool,
    started_at_ms: u64,
    #[serde(skip_serializing_if = "Option::is_none")]
    duration_ms: Option<u64>,
    #[serde(skip_serializing_if = "Option::is_none")]
    exit_code: Option<i32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    signal: Option<i32>,
    timed_out: bool,
    oom_killed: bool,
    stdout_bytes: u64,
    stderr_bytes: u64,
    stdout_dropped: u64,
    stderr_dropped: u64,
}

/// How the first process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ending {
    pub exit_code: Option<i32>,
    pub signal: Option<i32>,
    pub at: u64,
}

impl Ending {
    /// From a wait status.
    pub fn from_status(status: i32) -> Self {
        let at = clock::now();
        if libc::WIFSIGNALED(status) {
            Self { exit_code: None, signal: Some(libc::WTERMSIG(status)), at }
        } else {
            Self { exit_code: Some(libc::WEXITSTATUS(status)), signal: None, at }
        }
    }

    /// Died of SIGKILL, or is a shell that says so of its child.
    pub fn looks_killed(&self) -> bool {
        self.signal == Some(libc::SIGKILL) || self.exit_code == Some(128 + libc::SIGKILL)
    }
}

/// One output stream: where it is read from and what is kept of it.
#[derive(Debug)]
pub struct Output {
    pub source: Option<OwnedFd>,
    pub ring: Ring,
    /// Registered for reading; not while readers hold it back.
    pub is_watched: bool,
    /// The offset up to which the command itself wrote, once it has ended.
    pub end: Option<u64>,
}

impl Output {
    pub fn new(source: Option<OwnedFd>, limit: usize) -> Self {
        Self { source, ring: Ring::new(limit), is_watched: false, end: None }
    }
}

#[derive(Debug)]
pub struct Exec {
    pub id: String,
    pub tag: Option<String>,
    pub fingerprint: Option<String>,
    pub pid: i32,
    pub pty: bool,
    pub started_at_ms: u64,
    pub started: u64,
    pub ending: Option<Ending>,
    pub timed_out: bool,
    pub oom_killed: bool,
    /// OOM kills of the sandbox when the command started.
    pub oom_base: Option<u64>,
    pub deadline: Option<u64>,
    /// stdout (or the pty), stderr.
    pub outputs: [Output; 2],
    pub stdin: Stdin,
    pub readers: Vec<Reader>,
    /// (rows, columns) that counts while no attached client has a size of its own.
    pub base_size: (u16, u16),
    /// The session in whose shell it runs.
    pub session: Option<Key>,
    /// Waits for its turn in the session.
    pub is_queued: bool,
    /// A run of a session that is ended before its time counts as ended by this.
    pub abort_signal: Option<i32>,
    /// Its tree was killed, and its end is told when all of that is gone.
    pub is_doomed: bool,
    pub held_ending: Option<Ending>,
    /// Its record was given up; only its pipes are still emptied.
    pub is_forgotten: bool,
}

impl Exec {
    pub fn status(&self) -> ExecStatus<'_> {
        let [stdout, stderr] = &self.outputs;
        ExecStatus {
            exec_id: &self.id,
            tag: self.tag.as_deref(),
            state: if self.ending.is_some() { State::Exited } else { State::Running },
            pid: self.pid,
            pty: self.pty,
            started_at_ms: self.started_at_ms,
            duration_ms: self.ending.map(|ending| (ending.at - self.started) / NANOS_PER_MS),
            exit_code: self.ending.and_then(|ending| ending.exit_code),
            signal: self.ending.and_then(|ending| ending.signal),
            timed_out: self.timed_out,
            oom_killed: self.oom_killed,
            stdout_bytes: stdout.ring.total(),
            stderr_bytes: stderr.ring.total(),
            stdout_dropped: stdout.ring.dropped(),
            stderr_dropped: stderr.ring.dropped(),
        }
    }

    pub fn has_sources(&self) -> bool {
        self.outputs.iter().any(|output| output.source.is_some())
    }

    pub fn held_bytes(&self) -> usize {
        self.outputs.iter().map(|output| output.ring.held_bytes()).sum()
    }
}
