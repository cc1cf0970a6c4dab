//! What launcher and observer tell each other: one JSON object a packet, with descriptors.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::{MAX_TRIPWIRE_BYTES, MAX_TRIPWIRES};

/// A sandbox with all its tripwires, each byte escaped, or an event with the longest command line.
pub const MAX_BYTES: usize = 2 * MAX_TRIPWIRES * MAX_TRIPWIRE_BYTES + (8 << 10);

/// To the observer.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    /// Comes with the pidfd of the sandbox's first process, and with the listener of its filter where there is one.
    Watch(Watch),
    Forget {
        slot: u32,
    },
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    pub slot: u32,
    pub id: String,
    /// Of its first process, on the host.
    pub pid: u32,
    pub root_uid: u32,
    pub tripwires: Vec<String>,
    /// What of it may lie under a cover: a file and a directory, which are the same for all that is covered.
    pub covered: Vec<String>,
}

/// From the observer.
#[derive(Debug, Deserialize, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Told {
    /// Tripwires of the sandbox that are not there, by their places.
    Watched {
        slot: u32,
        pid: u32,
        absent: Vec<usize>,
    },
    /// Openings cannot be watched on this kernel.
    Blind {
        slot: u32,
        pid: u32,
    },
    Event(Value),
}
