//! What launcher and observer tell each other: a list of orders in each packet, and one thing told in each.

use std::collections::VecDeque;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::request::{MAX_TRIPWIRE_BYTES, MAX_TRIPWIRES};

/// A sandbox with all its tripwires, each byte escaped, or an event with the longest command line.
pub const MAX_BYTES: usize = 2 * MAX_TRIPWIRES * MAX_TRIPWIRE_BYTES + (8 << 10);

/// To the observer.
#[derive(Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub enum Order {
    Watch(Watch),
    Forget { slot: u32 },
}

#[derive(Clone, Debug, Deserialize, PartialEq, Serialize)]
#[serde(rename_all = "camelCase")]
pub struct Watch {
    pub slot: u32,
    pub id: String,
    /// Of its first process, on the host.
    pub pid: u32,
    /// The inode of its pidfd: a number alone could be anybody's by now.
    pub identity: u64,
    pub root_uid: u32,
    pub tripwires: Vec<String>,
    /// What of it may lie under a cover: a file and a directory, which are the same for all that is covered.
    pub covered: Vec<String>,
}

/// As many of the orders as go into a packet, and how many; nothing where there are none.
pub fn pack(orders: &VecDeque<Order>) -> Option<(Vec<u8>, usize)> {
    let (mut packet, mut count) = (vec![b'['], 0);
    for order in orders {
        // Numbers and texts always are JSON.
        let bytes = serde_json::to_vec(order).ok()?;
        if count > 0 && packet.len() + bytes.len() + 2 > MAX_BYTES {
            break;
        }
        if count > 0 {
            packet.push(b',');
        }
        packet.extend(bytes);
        count += 1;
    }
    packet.push(b']');
    (count > 0).then_some((packet, count))
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_go_in_packets_that_are_read_as_a_whole() {
        let path = format!("/{}", "\\".repeat(MAX_TRIPWIRE_BYTES - 1));
        let greatest = |slot| {
            Order::Watch(Watch {
                slot,
                id: "a".repeat(24),
                pid: u32::MAX,
                identity: u64::MAX,
                root_uid: u32::MAX,
                tripwires: vec![path.clone(); MAX_TRIPWIRES],
                covered: vec!["/proc/cmdline".to_owned(); 4],
            })
        };
        let mut orders: VecDeque<Order> = (0..2_000).map(|slot| Order::Forget { slot }).collect();
        orders.extend([greatest(1), greatest(2), Order::Forget { slot: 3 }]);
        let all: Vec<String> = orders.iter().map(|order| format!("{order:?}")).collect();
        let mut read: Vec<String> = Vec::new();
        while let Some((packet, count)) = pack(&orders) {
            assert!(packet.len() <= MAX_BYTES, "{}", packet.len());
            let part: Vec<Order> = serde_json::from_slice(&packet).expect("read");
            assert_eq!(part.len(), count);
            read.extend(part.iter().map(|order| format!("{order:?}")));
            orders.drain(..count);
        }
        assert_eq!(read, all);
    }
}
