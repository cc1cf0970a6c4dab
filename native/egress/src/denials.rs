//! What the programs tell of packets that did not pass.

use std::collections::VecDeque;

use serde_json::{Value, json};

use crate::layout::{Denial, REASONS, ip_of};

/// Denials that wait for a client that does not read; older ones are counted and left out.
const MAX_WAITING: usize = 1_024;

/// Reads an entry of the ring.
pub fn parse(bytes: &[u8]) -> Option<Denial> {
    let word = |at: usize| bytes.get(at..at + 4)?.try_into().ok().map(u32::from_ne_bytes);
    Some(Denial {
        slot: word(0)?,
        generation: word(4)?,
        address: bytes.get(8..24)?.try_into().ok()?,
        count: word(24)?,
        port: bytes.get(28..30)?.try_into().ok().map(u16::from_ne_bytes)?,
        protocol: *bytes.get(30)?,
        reason: *bytes.get(31)?,
    })
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

/// The denials of one stream.
#[derive(Default)]
pub struct Waiting {
    denials: VecDeque<Value>,
    lost: u64,
}

impl Waiting {
    pub fn push(&mut self, denial: Value) {
        if self.denials.len() >= MAX_WAITING {
            self.denials.pop_front();
            self.lost += 1;
        }
        self.denials.push_back(denial);
    }

    /// The next message; it waits until it is [`taken`](Self::taken).
    pub fn next(&self) -> Option<Value> {
        let denied = self.denials.front()?;
        Some(if self.lost > 0 { json!({ "denied": denied, "lost": self.lost }) } else { json!({ "denied": denied }) })
    }

    pub fn taken(&mut self) {
        self.denials.pop_front();
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
            waiting.push(json!(n));
        }
        assert_eq!(waiting.next(), Some(json!({ "denied": 2, "lost": 2 })));
        waiting.taken();
        assert_eq!(waiting.next(), Some(json!({ "denied": 3 })));
    }

    #[test]
    fn entries_that_are_short_are_none() {
        assert!(parse(&[0; 31]).is_none());
        assert!(parse(&[0; 32]).is_some());
    }
}
