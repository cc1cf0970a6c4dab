//! Rules by address, as one policy has them.

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::cidr::Cidr;
use crate::layout::{Address, MAX_RANGES, Range, Rule, address_of, mapped_bits};
use crate::request::WireRange;

/// A prefix of a mapped address, and what holds for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Entry {
    pub address: Address,
    pub bits: u32,
    pub rule: Ranges,
}

/// At most [`MAX_RANGES`]; the rest is zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Ranges {
    count: u16,
    words: [(u16, u16, u8, u8); MAX_RANGES],
}

/// Of what is used alone: sets of thousands are looked for at each change.
impl Hash for Ranges {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u16(self.count);
        for (low, high, protocol, allow) in self.words.iter().take(self.count.into()) {
            let ports = u64::from(*low) << 32 | u64::from(*high) << 16;
            state.write_u64(ports | u64::from(*protocol) << 8 | u64::from(*allow));
        }
    }
}

impl Ranges {
    pub fn layout(&self) -> Rule {
        let range = |(low, high, protocol, allow)| Range { low, high, protocol, allow };
        Rule { count: self.count, ranges: self.words.map(range) }
    }

    pub fn of(rule: &Rule) -> Self {
        let word = |range: Range| (range.low, range.high, range.protocol, range.allow);
        Self { count: rule.count.min(MAX_RANGES as u16), words: rule.ranges.map(word) }
    }
}

/// Reads one as clients write it: at most [`MAX_RANGES`].
pub fn entry(cidr: &Cidr, ranges: &[WireRange]) -> Entry {
    let mut words = [(0, 0, 0, 0); MAX_RANGES];
    for (word, range) in words.iter_mut().zip(ranges) {
        let Range { low, high, protocol, allow } = range.layout();
        *word = (low, high, protocol, allow);
    }
    let count = ranges.len().min(MAX_RANGES) as u16;
    Entry {
        address: address_of(cidr.address),
        bits: mapped_bits(cidr.address, cidr.bits),
        rule: Ranges { count, words },
    }
}

/// All of a policy; equal ones are one, whatever their order.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RuleSet(Arc<[Entry]>);

impl RuleSet {
    pub fn new(mut entries: Vec<Entry>) -> Self {
        entries.sort_unstable();
        Self(entries.into())
    }

    pub fn entries(&self) -> &[Entry] {
        &self.0
    }
}
