//! Refusals that are told to whoever feeds the gate: within a budget per sandbox, so that one that knocks at every door cannot drown the others.

use std::collections::VecDeque;
use std::net::SocketAddr;
use std::time::Instant;

use serde_json::{Value, json};

use crate::bounds::{EVENT_BURST, EVENTS_A_SECOND, MAX_PENDING_EVENTS};
use crate::name::HostName;
use crate::refusal::Reason;
use crate::request::SandboxId;

/// How many events a sandbox may still cause.
#[derive(Debug)]
pub struct Budget {
    left: u32,
    filled: Instant,
    missed: u64,
}

impl Budget {
    pub fn new(now: Instant) -> Self {
        Self { left: EVENT_BURST, filled: now, missed: 0 }
    }

    /// Takes one, and says how many were missed since the one before; `None` counts this one as missed.
    pub fn take(&mut self, now: Instant) -> Option<u64> {
        let seconds = now.saturating_duration_since(self.filled).as_secs();
        if seconds > 0 {
            let more = u32::try_from(seconds).unwrap_or(u32::MAX).saturating_mul(EVENTS_A_SECOND);
            self.left = self.left.saturating_add(more).min(EVENT_BURST);
            self.filled = now;
        }
        match self.left.checked_sub(1) {
            Some(left) => {
                self.left = left;
                Some(std::mem::take(&mut self.missed))
            }
            None => {
                self.missed += 1;
                None
            }
        }
    }
}

/// A connection was refused or cut.
#[derive(Clone, Debug)]
pub struct Refused {
    pub id: SandboxId,
    pub reason: Reason,
    pub name: Option<HostName>,
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
    use std::time::Duration;

    use super::*;

    #[test]
    fn what_goes_beyond_the_budget_is_counted() {
        let now = Instant::now();
        let mut budget = Budget::new(now);
        for _ in 0..EVENT_BURST {
            assert_eq!(budget.take(now), Some(0));
        }
        for _ in 0..3 {
            assert_eq!(budget.take(now), None);
        }
        let later = now + Duration::from_secs(1);
        assert_eq!(budget.take(later), Some(3));
        for _ in 1..EVENTS_A_SECOND {
            assert_eq!(budget.take(later), Some(0));
        }
        assert_eq!(budget.take(later), None);
    }

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
