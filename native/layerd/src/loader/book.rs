//! What the loader has under way.

use std::collections::{HashMap, HashSet, VecDeque};
use std::ops::RangeInclusive;
use std::os::fd::RawFd;
use std::sync::Arc;
use std::time::Instant;

use super::evict::Passes;
use super::plan::{Job, Streams};
use super::readers::Readers;
use crate::digest::Digest;
use crate::family::shared::{MAX_EVENTS, Shared};
use crate::layer::Layer;
use crate::trace::Trace;

/// Chunks that wait to be fetched ahead.
pub const MAX_PREFETCH: usize = 262_144;

/// An open layer.
pub struct Open {
    pub layer: Arc<Layer>,
    pub trace: Trace,
    pub streams: Streams,
}

/// An event without an answer.
pub struct Wait {
    pub fd: RawFd,
    pub tid: u32,
    pub layer: u32,
    pub first: u32,
    pub last: u32,
    /// Chunks that are still to come.
    pub missing: u32,
    pub deadline: Instant,
    /// Tells it from events that had the slot before.
    pub ticket: u64,
}

pub type ChunkKey = (u32, u32);

pub struct Book {
    pub open: HashMap<u32, Open>,
    pub by_file: HashMap<(u64, u64), u32>,
    pub by_digest: HashMap<Digest, u32>,
    /// Bytes of layers that are not open.
    pub closed: HashMap<Digest, u64>,
    /// Slots and tickets of the events that wait for a chunk which is being worked on.
    pub busy: HashMap<ChunkKey, Vec<(u32, u64)>>,
    pub waits: HashMap<u32, Wait>,
    /// When somebody looks for waits whose time is over; nothing while there are none.
    pub expiry: Option<Instant>,
    /// Layers whose chunks were used since that was written down.
    pub used: HashSet<u32>,
    pub free_slots: Vec<u32>,
    pub next_ticket: u64,
    pub demand: VecDeque<Job>,
    pub prefetch: VecDeque<ChunkKey>,
    /// Jobs of `prefetch` that run.
    pub prefetching: usize,
    pub readers: Readers,
    /// Threads of this process that read in order to be sent a descriptor, and of which layer.
    pub probes: HashMap<u32, u32>,
    pub passes: Passes,
}

impl Book {
    /// Chunks that must stay: a thread was let through to them, or will be when the rest of what it asked for is there too.
    pub fn pinned<'a>(&'a self, shared: &'a Shared) -> impl Iterator<Item = (u32, RangeInclusive<u32>)> + 'a {
        let waiting = self.waits.values().map(|wait| (wait.layer, wait.first..=wait.last));
        waiting.chain(self.readers.pinned(shared).map(|reader| (reader.layer, reader.first..=reader.last)))
    }

    pub fn new(readers: Readers, occupied_slots: &[u32]) -> Self {
        Self {
            open: HashMap::new(),
            by_file: HashMap::new(),
            by_digest: HashMap::new(),
            closed: HashMap::new(),
            busy: HashMap::new(),
            waits: HashMap::new(),
            expiry: None,
            used: HashSet::new(),
            free_slots: (0..MAX_EVENTS as u32).rev().filter(|slot| !occupied_slots.contains(slot)).collect(),
            next_ticket: 0,
            demand: VecDeque::new(),
            prefetch: VecDeque::new(),
            prefetching: 0,
            readers,
            probes: HashMap::new(),
            passes: Passes::default(),
        }
    }
}
