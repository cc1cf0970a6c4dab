//! All commands: those that run, and the newest of those that have ended.

use std::collections::{BTreeMap, VecDeque};

use super::record::Exec;
use crate::event_loop::Aether;
use crate::slab::{Key, Slab};

/// Ended commands that are kept.
const MAX_ENDED: usize = 256;
/// Memory that the rings of ended commands may hold together.
const MAX_ENDED_BYTES: usize = 32 << 20;
/// Memory that all rings may hold together; beyond it they grow no more.
pub const MAX_RING_BYTES: usize = 128 << 20;
/// Commands that run at once: each holds descriptors of aether.
pub const MAX_RUNNING: usize = 4_096;

#[derive(Debug, Default)]
pub struct Execs {
    all: Slab<Exec>,
    by_id: BTreeMap<String, Key>,
    /// Oldest first.
    ended: VecDeque<Key>,
    /// Memory of all rings.
    pub ring_bytes: usize,
}

impl Execs {
    pub fn get(&self, key: Key) -> Option<&Exec> {
        self.all.get(key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut Exec> {
        self.all.get_mut(key)
    }

    pub fn find(&self, id: &str) -> Option<Key> {
        self.by_id.get(id).copied()
    }

    pub fn insert(&mut self, exec: Exec) -> Key {
        let id = exec.id.clone();
        let key = self.all.insert(exec);
        self.by_id.insert(id, key);
        key
    }

    /// Takes away the record of a command that never began.
    pub fn remove(&mut self, key: Key) -> Option<Exec> {
        let exec = self.all.remove(key)?;
        self.by_id.remove(&exec.id);
        Some(exec)
    }

    /// Records that are kept, in the order of their start.
    pub fn listed(&self) -> Vec<&Exec> {
        let mut execs: Vec<&Exec> = self.by_id.values().filter_map(|&key| self.all.get(key)).collect();
        execs.sort_by_key(|exec| exec.started);
        execs
    }

    pub fn len(&self) -> usize {
        self.by_id.len()
    }

    pub fn is_empty(&self) -> bool {
        self.by_id.is_empty()
    }

    pub fn running(&self) -> usize {
        self.by_id.len() - self.ended.len()
    }

    pub fn running_keys(&self) -> Vec<Key> {
        self.all.iter().filter(|(_, exec)| exec.ending.is_none()).map(|(key, _)| key).collect()
    }
}

impl Aether {
    /// The command at `key` has ended; the oldest ones beyond the bounds are forgotten.
    pub fn retire(&mut self, key: Key) {
        self.execs.ended.push_back(key);
        let held =
            |execs: &Execs| execs.ended.iter().filter_map(|&key| execs.get(key)).map(Exec::held_bytes).sum::<usize>();
        let mut bytes = held(&self.execs);
        while self.execs.ended.len() > MAX_ENDED || bytes > MAX_ENDED_BYTES {
            // The newest stays whatever it holds; who is still being read goes later.
            let limit = self.execs.ended.len() - 1;
            let candidate = self
                .execs
                .ended
                .iter()
                .take(limit)
                .position(|&key| self.execs.get(key).is_none_or(|exec| exec.readers.is_empty()));
            let Some(oldest) = candidate.and_then(|index| self.execs.ended.remove(index)) else { break };
            if let Some(exec) = self.execs.all.get_mut(oldest) {
                bytes -= exec.held_bytes();
                self.execs.ring_bytes -= exec.held_bytes();
                exec.is_forgotten = true;
                for output in &mut exec.outputs {
                    output.ring.forget();
                }
                let id = std::mem::take(&mut exec.id);
                self.execs.by_id.remove(&id);
            }
            self.drop_if_spent(oldest);
        }
    }

    /// A forgotten record whose pipes are closed has no further use.
    pub fn drop_if_spent(&mut self, key: Key) {
        if self.execs.get(key).is_some_and(|exec| exec.is_forgotten && !exec.has_sources()) {
            self.execs.all.remove(key);
        }
    }
}
