//! Refusals that are told to whoever feeds the gate.

use std::collections::VecDeque;
use std::net::SocketAddr;

use serde_json::{Value, json};

use crate::bounds::MAX_PENDING_EVENTS;
use crate::name::HostName;
use crate::refusal::Reason;
use crate::request::SandboxId;

/// A connection was refused or cut.
#[derive(Clone, Debug)]
pub struct Refused {
    pub id: SandboxId,
    pub reason: Reason,
    pub name: Option<HostName>,
    /// The port that the sandbox has connected from: it tells egressd which process that was.
    pub from: u16,
    pub destination: SocketAddr,
    /// Refusals of the same sandbox before this one that were not told.
    pub missed: u64,
}

impl Refused {
    pub fn message(&self) -> Value {
        let mut refused = json!({
            "id": self.id.as_str(),
            "reason": self.reason.as_str(),
            "address": self.destination.ip().to_string(),
            "port": self.destination.port(),
            "from": self.from,
            "missed": self.missed,
        });
        if let Some(name) = &self.name {
            refused["name"] = json!(name.as_str());
        }
        json!({ "refused": refused })
    }
}

/// What waits for one who listens.
#[derive(Debug, Default)]
pub struct Pending {
    messages: VecDeque<Value>,
    dropped: u64,
}

impl Pending {
    pub fn push(&mut self, message: Value) {
        if self.messages.len() >= MAX_PENDING_EVENTS {
            self.messages.pop_front();
            self.dropped += 1;
        }
        self.messages.push_back(message);
    }

    /// What is to be sent next: first of all, how many were dropped.
    pub fn next(&self) -> Option<Value> {
        if self.dropped > 0 { Some(json!({ "dropped": self.dropped })) } else { self.messages.front().cloned() }
    }

    /// It was sent.
    pub fn sent(&mut self) {
        if self.dropped > 0 {
            self.dropped = 0;
        } else {
            self.messages.pop_front();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_listener_that_does_not_read_loses_the_oldest() {
        let mut pending = Pending::default();
        for number in 0..MAX_PENDING_EVENTS + 2 {
            pending.push(json!(number));
        }
        assert_eq!(pending.next(), Some(json!({ "dropped": 2 })));
        pending.sent();
        assert_eq!(pending.next(), Some(json!(2)));
    }
}
