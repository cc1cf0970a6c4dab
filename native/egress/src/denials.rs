//! What the programs tell of packets that did not pass.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::layout::{Denial, Plain, REASONS, ip_of};

/// Denials that wait for a client that does not read; older ones are counted and left out.
const MAX_WAITING: usize = 1_024;

/// Reads an entry of the ring.
pub fn parse(bytes: &[u8]) -> Option<Denial> {
    Denial::read(bytes)
}

pub fn describe(id: &str, denial: &Denial) -> Value {
    let protocol = match denial.protocol {
        1 => json!("icmp"),
        6 => json!("tcp"),
        17 => json!("udp"),
        0 => Value::Null,
        other => json!(other.to_string()),
    };
    let is_addressed = denial.address != [0; 16];
    json!({
        "id": id,
        "reason": REASONS.get(usize::from(denial.reason)),
        "protocol": protocol,
        "address": is_addressed.then(|| ip_of(denial.address).to_string()),
        "port": denial.port,
        "count": denial.count,
    })
}

/// What one stream is to be told.
#[derive(Default)]
pub struct Waiting {
    messages: VecDeque<Value>,
    lost: u64,
}

impl Waiting {
    pub fn push(&mut self, message: Value) {
        if self.messages.len() >= MAX_WAITING {
            self.messages.pop_front();
            self.lost += 1;
        }
        self.messages.push_back(message);
    }

    /// The next message; it waits until it is [`taken`](Self::taken).
    pub fn next(&self) -> Option<Value> {
        let mut message = self.messages.front()?.clone();
        if self.lost > 0 {
            message["lost"] = json!(self.lost);
        }
        Some(message)
    }

    pub fn taken(&mut self) {
        self.messages.pop_front();
        self.lost = 0;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_does_not_read_loses_the_oldest() {
        let mut waiting = Waiting::default();
        for n in 0..MAX_WAITING + 2 {
            waiting.push(json!({ "denied": n }));
        }
        assert_eq!(waiting.next(), Some(json!({ "denied": 2, "lost": 2 })));
        waiting.taken();
        assert_eq!(waiting.next(), Some(json!({ "denied": 3 })));
    }

    #[test]
    fn entries_that_are_short_are_none() {
        assert!(parse(&[0; size_of::<Denial>() - 1]).is_none());
        let mut entry = [0; size_of::<Denial>()];
        entry[28..32].copy_from_slice(&[187, 1, 6, 11]);
        let denial = parse(&entry).expect("whole");
        assert_eq!((denial.port, denial.protocol, denial.reason), (u16::from_ne_bytes([187, 1]), 6, 11));
    }
}
