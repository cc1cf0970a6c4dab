//! One sandbox as the launcher sees it.
//!
//! ```text
//!   Starting --ready--> Live --its first process ends--> Exited
//!      |                 |                                  |
//!      +---- failed -----+------------- destroy ------------+--> Ending --nothing left--> gone
//! ```

use std::os::fd::OwnedFd;
use std::time::Instant;

use crate::failure::Failure;
use crate::profile::Profile;
use crate::record::Exit;
use crate::request::{Lower, SandboxId};
use crate::sys::clone::Process;

/// Who waits for an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Caller {
    pub connection: u32,
    pub stream: u32,
}

pub struct Sandbox {
    /// `None`: a blank, nobody's yet.
    pub id: Option<SandboxId>,
    pub slot: u32,
    pub pid: u32,
    pub pid_identity: u64,
    /// The inode of its network namespace, once that is made.
    pub net_identity: Option<u64>,
    /// `None` once the process is gone.
    pub process: Option<Process>,
    pub lower: Lower,
    pub profile: Profile,
    /// Files whose opening is an event, as they were named, and which of them are not there.
    pub tripwires: Vec<String>,
    pub absent_tripwires: Vec<String>,
    /// An earlier launcher made it.
    pub is_adopted: bool,
    pub created_at_ms: u64,
    pub phase: Phase,
}

pub enum Phase {
    Starting(Starting),
    /// Everything but a root filesystem, and nobody's yet.
    Blank,
    Live,
    Exited(Exit),
    Ending(Ending),
}

impl Phase {
    pub fn is_live(&self) -> bool {
        matches!(self, Self::Live)
    }
}

pub struct Starting {
    pub channel: OwnedFd,
    /// Whom it is for; `None` for a blank.
    pub caller: Option<Caller>,
    pub is_ready: bool,
}

/// Removal, step by step, again and again until nothing is left.
pub struct Ending {
    pub callers: Vec<(Caller, Instant)>,
    /// The create that failed and is answered when its remains are gone.
    pub failed: Option<(Caller, Failure)>,
    pub attempts: u32,
    pub next_try: Instant,
}

impl Ending {
    pub fn new(now: Instant) -> Self {
        Self { callers: Vec::new(), failed: None, attempts: 0, next_try: now }
    }
}

impl Sandbox {
    pub fn socket_name(&self) -> String {
        match &self.id {
            Some(id) => socket_name_of(id),
            None => blank_socket_name(self.slot),
        }
    }
}

pub fn socket_name_of(id: &SandboxId) -> String {
    format!("{id}.sock")
}

/// The hyphen keeps it apart from every id.
pub fn blank_socket_name(slot: u32) -> String {
    format!("blank-{slot}.sock")
}
