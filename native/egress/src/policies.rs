//! Sets of rules in the kernel. Policies with the same rules share one, since most sandboxes of a node have the same policy.
//!
//! Invariants:
//! 1. A set is written whole before a policy names it, and is never changed.
//! 2. It is taken away only when no policy has named it for [`RETIRE_AFTER`].

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use crate::layout::{RULESETS, Rule, RuleKey};
use crate::rules::{Entry, Ranges, RuleSet};
use crate::sys::{Errno, Result, bpf, process};

/// No program looks at a packet for so long.
pub const RETIRE_AFTER: Duration = Duration::from_secs(1);
/// Entries that are taken away before others have their turn.
const SWEEP_BATCH: usize = 1_024;
/// Entries of the map: `max_entries` of `rules`.
pub const MAX_ENTRIES: usize = 262_144;

struct Present {
    rules: RuleSet,
    users: u32,
}

pub struct Policies {
    map: OwnedFd,
    present: HashMap<u32, Present>,
    by_rules: HashMap<RuleSet, u32>,
    last: u32,
    entries: usize,
    retired: VecDeque<(Instant, u32)>,
    /// Entries of sets that are gone.
    sweeping: Vec<RuleKey>,
}

impl Policies {
    /// Takes over what is in the map: sets that nobody names are taken away.
    pub fn adopt(map: OwnedFd, used: &[u32]) -> Result<Self> {
        let mut sets: HashMap<u32, Vec<Entry>> = HashMap::new();
        let mut strays = Vec::new();
        for key in bpf::keys::<RuleKey>(map.as_fd())? {
            match bpf::lookup::<RuleKey, Rule>(map.as_fd(), &key)? {
                Some(rule) if used.contains(&key.ruleset()) => {
                    let bits = key.prefix_bits.saturating_sub(32);
                    let entry = Entry { address: key.address, bits, rule: Ranges::of(&rule) };
                    sets.entry(key.ruleset()).or_default().push(entry);
                }
                _ => strays.push(key),
            }
        }
        for key in strays {
            bpf::delete(map.as_fd(), &key)?;
        }
        let mut policies = Self {
            map,
            present: HashMap::new(),
            by_rules: HashMap::new(),
            last: sets.keys().copied().max().unwrap_or(0),
            entries: sets.values().map(Vec::len).sum(),
            retired: VecDeque::new(),
            sweeping: Vec::new(),
        };
        for (number, entries) in sets {
            let rules = RuleSet::new(entries);
            let users = used.iter().filter(|other| **other == number).count() as u32;
            policies.by_rules.insert(rules.clone(), number);
            policies.present.insert(number, Present { rules, users });
        }
        Ok(policies)
    }

    /// The number of a set with these rules, written if need be. `NOSPC`: the map has no room for it, and nothing was written.
    pub fn acquire(&mut self, rules: &RuleSet) -> Result<u32> {
        if rules.entries().is_empty() {
            return Ok(0);
        }
        if let Some(number) = self.by_rules.get(rules)
            && let Some(present) = self.present.get_mut(number)
        {
            present.users += 1;
            return Ok(*number);
        }
        if self.entries + rules.entries().len() > MAX_ENTRIES {
            return Err(Errno::NOSPC);
        }
        let number = self.free_number()?;
        for (done, entry) in rules.entries().iter().enumerate() {
            let key = RuleKey::new(number, entry.address, entry.bits);
            if let Err(errno) = bpf::update(self.map.as_fd(), &key, &entry.rule.layout()) {
                for entry in &rules.entries()[..done] {
                    // What is left of it nobody names.
                    let _ = bpf::delete(self.map.as_fd(), &RuleKey::new(number, entry.address, entry.bits));
                }
                return Err(errno);
            }
        }
        self.entries += rules.entries().len();
        self.by_rules.insert(rules.clone(), number);
        self.present.insert(number, Present { rules: rules.clone(), users: 1 });
        Ok(number)
    }

    fn free_number(&mut self) -> Result<u32> {
        for _ in 0..RULESETS {
            self.last = if self.last + 1 < RULESETS { self.last + 1 } else { 1 };
            if !self.present.contains_key(&self.last) && !self.sweeping.iter().any(|key| key.ruleset() == self.last) {
                return Ok(self.last);
            }
        }
        Err(Errno::NOSPC)
    }

    /// A policy names it no longer.
    pub fn release(&mut self, number: u32, now: Instant) {
        if let Some(present) = self.present.get_mut(&number) {
            present.users = present.users.saturating_sub(1);
            if present.users == 0 {
                self.retired.push_back((now + RETIRE_AFTER, number));
            }
        }
    }

    /// Takes away what nobody has named for long enough. When there may be more to do.
    pub fn sweep(&mut self, now: Instant) -> Option<Instant> {
        let mut is_first = true;
        while let Some((due, number)) = self.retired.front().copied()
            && due <= now
            && self.sweeping.len() < SWEEP_BATCH
        {
            self.retired.pop_front();
            if self.present.get(&number).is_none_or(|present| present.users > 0) {
                continue;
            }
            if std::mem::take(&mut is_first) {
                // Without it the time that has passed must do.
                let _ = process::wait_for_readers();
            }
            if let Some(Present { rules, .. }) = self.present.remove(&number) {
                self.by_rules.remove(&rules);
                let keys = rules.entries().iter().map(|entry| RuleKey::new(number, entry.address, entry.bits));
                self.sweeping.extend(keys);
            }
        }
        for _ in 0..SWEEP_BATCH.min(self.sweeping.len()) {
            let Some(key) = self.sweeping.pop() else { break };
            // An entry that stays is named by nobody; the next egressd removes it.
            let _ = bpf::delete(self.map.as_fd(), &key);
            self.entries -= 1;
        }
        if self.sweeping.is_empty() { self.retired.front().map(|(due, _)| *due) } else { Some(now) }
    }

    /// Sets and entries that the kernel holds.
    pub fn size(&self) -> (usize, usize) {
        (self.present.len(), self.entries)
    }
}
