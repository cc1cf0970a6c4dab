//! Threads that were let through. Between the answer and the read itself the kernel asks no more, so what they were let through to must stay: a thread
//! can be stopped in between for as long as its sandbox is paused.

use std::collections::HashMap;

use crate::family::shared::{MAX_READERS, Reader, Shared};

pub struct Readers {
    /// Where each thread stands in the shared memory, and how often it was let through.
    places: HashMap<u32, (u32, u64)>,
    free: Vec<u32>,
    passes: u64,
    /// Some thread could not be remembered: nothing may be evicted any more.
    pub is_overflown: bool,
}

impl Readers {
    /// Takes over what an earlier worker has written.
    pub fn load(shared: &Shared) -> Self {
        let mut readers = Self { places: HashMap::new(), free: Vec::new(), passes: 0, is_overflown: false };
        for index in (0..MAX_READERS as u32).rev() {
            match shared.reader(index) {
                Some(reader) if readers.places.insert(reader.tid, (index, 0)).is_none() => {}
                Some(_) => shared.clear_reader(index),
                None => readers.free.push(index),
            }
        }
        readers
    }

    /// Writes down that a thread is about to be let through. Its reads before are done: a thread does one thing at a time.
    pub fn pass(&mut self, shared: &Shared, reader: Reader) {
        if self.free.is_empty() && !self.places.contains_key(&reader.tid) {
            self.sweep(shared);
        }
        self.passes += 1;
        let place = match self.places.get(&reader.tid) {
            Some((place, _)) => *place,
            None => match self.free.pop() {
                Some(place) => place,
                None => {
                    self.is_overflown = true;
                    return;
                }
            },
        };
        self.places.insert(reader.tid, (place, self.passes));
        shared.set_reader(place, reader);
    }

    /// Threads to look at, each with the number of its pass.
    pub fn passed(&self) -> Vec<(u32, u64)> {
        self.places.iter().map(|(tid, (_, pass))| (*tid, *pass)).collect()
    }

    /// Forgets a thread that has read, unless it was let through again in the meantime.
    pub fn forget(&mut self, shared: &Shared, tid: u32, pass: u64) {
        if let Some((place, latest)) = self.places.get(&tid).copied()
            && latest == pass
        {
            self.places.remove(&tid);
            shared.clear_reader(place);
            self.free.push(place);
        }
    }

    fn sweep(&mut self, shared: &Shared) {
        for (tid, pass) in self.passed() {
            if is_elsewhere(tid) {
                self.forget(shared, tid, pass);
            }
        }
    }

    /// What must stay.
    pub fn pinned<'a>(&'a self, shared: &'a Shared) -> impl Iterator<Item = Reader> + 'a {
        self.places.values().filter_map(|(place, _)| shared.reader(*place))
    }
}

/// Whether a thread is certainly not between the answer and the end of its read: it is gone, or sleeps in a way in which the kernel never does there
/// (interruptibly, or stopped on the way to user space). All sleeps between are uninterruptible or killable, and so is being frozen: `D`.
pub fn is_elsewhere(tid: u32) -> bool {
    let Ok(stat) = std::fs::read_to_string(format!("/proc/{tid}/stat")) else { return true };
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    matches!(state, Some('S' | 'T' | 't' | 'Z' | 'X') | None)
}
