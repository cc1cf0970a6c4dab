//! Tells of processes that have caused something: what the kernel has noted, and their arguments if those come in time.

use std::collections::HashMap;
use std::os::fd::{AsFd, BorrowedFd};
use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::arguments::{Arguments, Question};
use crate::layout::MAX_ANCESTORS;
use crate::origins::Known;
use crate::sys::Result;

/// How long what is told may wait for arguments.
const PATIENCE: Duration = Duration::from_secs(1);
/// What waits for them at once; what comes then is told without.
const MAX_WAITING: usize = 256;

/// What is told is of type `T`.
pub struct Processes<T> {
    arguments: Arguments,
    waiting: HashMap<u64, (Instant, Known, T)>,
    last_ticket: u64,
    told: Vec<(T, Option<Value>)>,
}

impl<T> Processes<T> {
    pub fn start() -> Result<Self> {
        let arguments = Arguments::start()?;
        Ok(Self { arguments, waiting: HashMap::new(), last_ticket: 0, told: Vec::new() })
    }

    /// `what` comes out of [`Self::take`] with its process.
    pub fn tell(&mut self, known: Option<Known>, what: T, now: Instant) {
        let Some(known) = known else { return self.told.push((what, None)) };
        self.last_ticket += 1;
        let ticket = self.last_ticket;
        let question = Question { ticket, pid: known.origin.outer_pid, at_ns: known.origin.noted_at };
        if self.waiting.len() < MAX_WAITING && self.arguments.ask(question) {
            self.waiting.insert(ticket, (now + PATIENCE, known, what));
        } else {
            self.told.push((what, Some(describe(&known, Vec::new()))));
        }
    }

    /// What can be told now.
    pub fn take(&mut self, now: Instant) -> Vec<(T, Option<Value>)> {
        for (ticket, arguments) in self.arguments.take() {
            if let Some((_, known, what)) = self.waiting.remove(&ticket) {
                self.told.push((what, Some(describe(&known, arguments))));
            }
        }
        for (_, (_, known, what)) in self.waiting.extract_if(|_, (until, ..)| *until <= now) {
            self.told.push((what, Some(describe(&known, Vec::new()))));
        }
        std::mem::take(&mut self.told)
    }

    /// After [`Self::take`]: how long nothing more comes out by itself.
    pub fn due(&self, now: Instant) -> Option<Duration> {
        self.waiting.values().map(|(until, ..)| until.saturating_duration_since(now)).min()
    }

    /// Readable when there is more to take.
    pub fn signal(&self) -> BorrowedFd<'_> {
        self.arguments.as_fd()
    }
}

/// `process` of wire.md.
fn describe(known: &Known, arguments: Vec<String>) -> Value {
    let origin = &known.origin;
    let count = (origin.ancestor_count as usize).min(MAX_ANCESTORS);
    let name: Vec<u8> = origin.comm.iter().copied().take_while(|byte| *byte != 0).collect();
    json!({
        "pid": origin.pid,
        "ancestors": origin.ancestors[..count],
        "session": origin.session,
        "uid": known.uid,
        "comm": String::from_utf8_lossy(&name),
        "argv": arguments,
    })
}
