//! One session and its shell.

use std::collections::{BTreeMap, VecDeque};
use std::os::fd::OwnedFd;

use super::room::Room;
use super::shell_loop::Numbers;
use crate::slab::{Key, Slab};

#[derive(Debug)]
pub struct Session {
    pub id: String,
    /// The params it was opened with: opening it again with the same is the same.
    pub opened_with: String,
    pub pid: i32,
    pub numbers: Numbers,
    pub room: Room,
    pub control: OwnedFd,
    pub status: OwnedFd,
    /// Begun line of the status pipe.
    pub line: Vec<u8>,
    /// The loop has begun.
    pub is_ready: bool,
    pub queue: VecDeque<Waiting>,
    pub current: Option<Run>,
    pub next_run: u64,
    /// `$?` for the next run.
    pub last_exit: i32,
}

/// A run whose turn has not come.
#[derive(Debug)]
pub struct Waiting {
    pub exec: Key,
    pub script: String,
    pub timeout_ms: Option<u64>,
}

/// The run that the shell is busy with.
#[derive(Debug)]
pub struct Run {
    pub exec: Key,
    pub number: u64,
    /// Children that the shell had before: jobs of earlier runs.
    pub jobs: Vec<i32>,
    /// Clock ticks at its start: what is older was not started by it.
    pub started_tick: u64,
    /// How often it was told to stop.
    pub aborts: u32,
}

#[derive(Debug, Default)]
pub struct Sessions {
    all: Slab<Session>,
    by_id: BTreeMap<String, Key>,
}

impl Sessions {
    pub fn get(&self, key: Key) -> Option<&Session> {
        self.all.get(key)
    }

    pub fn get_mut(&mut self, key: Key) -> Option<&mut Session> {
        self.all.get_mut(key)
    }

    pub fn find(&self, id: &str) -> Option<Key> {
        self.by_id.get(id).copied()
    }

    pub fn insert(&mut self, session: Session) -> Key {
        let id = session.id.clone();
        let key = self.all.insert(session);
        self.by_id.insert(id, key);
        key
    }

    pub fn remove(&mut self, key: Key) -> Option<Session> {
        let session = self.all.remove(key)?;
        if self.by_id.get(&session.id) == Some(&key) {
            self.by_id.remove(&session.id);
        }
        Some(session)
    }

    /// The id is free for another session although this one is still ending.
    pub fn release_id(&mut self, key: Key) {
        if let Some(session) = self.all.get(key) {
            self.by_id.remove(&session.id);
        }
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    pub fn listed(&self) -> impl Iterator<Item = &Session> {
        self.by_id.values().filter_map(|&key| self.all.get(key))
    }
}
