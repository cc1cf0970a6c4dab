//! Waiting for those that were killed: a caller is told that a tree is gone when it is.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::clock::{self, NANOS_PER_MS};
use crate::connection::StreamKey;
use crate::event_loop::{Aether, Deadline};
use crate::slab::{Key, Slab};

/// How often those are looked for whose end is told to somebody else, and how long at most. (A process in an uninterruptible wait
/// stays.)
const LOOK_MS: u64 = 20;
const MAX_LOOKS: u32 = 100;

/// What follows.
#[derive(Debug)]
pub enum Then {
    Nothing,
    Answer(StreamKey, Value),
    /// The end of the command may be told.
    EndExec(Key),
}

#[derive(Debug)]
struct Doom {
    pids: Vec<i32>,
    then: Then,
    looks: u32,
}

#[derive(Debug, Default)]
pub struct Dooms {
    all: Slab<Doom>,
    by_pid: BTreeMap<i32, Vec<Key>>,
}

impl Aether {
    /// Does `then` once the processes, which were sent SIGKILL, are gone.
    pub fn doom(&mut self, pids: Vec<i32>, then: Then) {
        if pids.is_empty() {
            return self.follow(then);
        }
        let key = self.dooms.all.insert(Doom { pids: pids.clone(), then, looks: 0 });
        for pid in pids {
            self.dooms.by_pid.entry(pid).or_default().push(key);
        }
        self.deadlines.insert((clock::now() + LOOK_MS * NANOS_PER_MS, Deadline::LookAtDoomed(key)));
    }

    /// A process was waited for.
    pub fn on_reaped(&mut self, pid: i32) {
        for key in self.dooms.by_pid.remove(&pid).into_iter().flatten() {
            let Some(doom) = self.dooms.all.get_mut(key) else { continue };
            doom.pids.retain(|&other| other != pid);
            if doom.pids.is_empty() {
                self.finish_doom(key);
            }
        }
    }

    /// Some may be children of processes that wait for them themselves.
    pub fn on_look(&mut self, key: Key) {
        let Some(doom) = self.dooms.all.get_mut(key) else { return };
        doom.looks += 1;
        let is_alive = |pid: i32| self.proc.stat(pid).is_some_and(|stat| !matches!(stat.state, b'Z' | b'X'));
        if doom.looks >= MAX_LOOKS || !doom.pids.iter().any(|&pid| is_alive(pid)) {
            self.finish_doom(key);
        } else {
            self.deadlines.insert((clock::now() + LOOK_MS * NANOS_PER_MS, Deadline::LookAtDoomed(key)));
        }
    }

    fn finish_doom(&mut self, key: Key) {
        let Some(doom) = self.dooms.all.remove(key) else { return };
        for pid in &doom.pids {
            if let Some(keys) = self.dooms.by_pid.get_mut(pid) {
                keys.retain(|&other| other != key);
                if keys.is_empty() {
                    self.dooms.by_pid.remove(pid);
                }
            }
        }
        self.follow(doom.then);
    }

    fn follow(&mut self, then: Then) {
        match then {
            Then::Nothing => {}
            Then::Answer(at, value) => self.finish(at, Ok(value)),
            Then::EndExec(key) => self.release_ending(key),
        }
    }
}
