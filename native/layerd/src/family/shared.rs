//! State in memory that the whole family has: what a worker that is killed leaves to the next.
//!
//! | part | what |
//! |---|---|
//! | header | layout, process ids, counters |
//! | layers | which files are marked: device, inode, digest |
//! | slots | events without an answer, put there by the kernel itself, and the layer that each is about |
//! | readers | threads that were let through and may not have read yet |

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, fstat, ftruncate, memfd_create};

use super::roles::Role;
use crate::digest::Digest;
use crate::sys::fanotify::{EVENT_BYTES, Event};
use crate::sys::memory::Mapping;
use crate::sys::{Errno, Result};

/// Layers that are open at once.
pub const MAX_LAYERS: usize = 8_192;
/// Events that are being dealt with; the rest wait in the kernel.
pub const MAX_EVENTS: usize = 1_024;
/// Threads that were let through and were not seen elsewhere since.
pub const MAX_READERS: usize = 8_192;

const LAYOUT: u64 = u64::from_le_bytes(*b"DSECLYD1");
const PIDS: usize = 64;
const LAYER_COUNT: usize = 96;
const COUNTERS: usize = 128;
const LAYERS: usize = 4_096;
const LAYER_BYTES: usize = 64;
const SLOTS: usize = LAYERS + MAX_LAYERS * LAYER_BYTES;
const SLOT_BYTES: usize = 64;
const READERS: usize = SLOTS + MAX_EVENTS * SLOT_BYTES;
const READER_BYTES: usize = 16;
const TOTAL: usize = READERS + MAX_READERS * READER_BYTES;

/// What is counted, since the family began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Counter {
    /// Events that the kernel sent.
    Events,
    /// Bytes of the ranges of events.
    AskedBytes,
    /// Bytes of chunks when they were first asked for.
    TouchedBytes,
    /// Bytes read from the blob store.
    FetchedBytes,
    /// Reads of the blob store.
    Fetches,
    /// Bytes written to data files.
    StoredBytes,
    /// Chunks that were taken out of data files again, and their bytes.
    Evictions,
    EvictedBytes,
    /// Reads that failed with EIO.
    Denied,
    /// Chunks that could not be filled.
    Errors,
    /// Events that a worker left to the next.
    Recovered,
    /// Bytes that were on the disk before a reboot and were found to be right.
    VerifiedBytes,
    /// Bytes that other nodes gave, and bytes that were given to them.
    PeerBytes,
    GivenBytes,
}

pub const COUNTER_NAMES: [(&str, Counter); 14] = [
    ("events", Counter::Events),
    ("askedBytes", Counter::AskedBytes),
    ("touchedBytes", Counter::TouchedBytes),
    ("fetchedBytes", Counter::FetchedBytes),
    ("fetches", Counter::Fetches),
    ("storedBytes", Counter::StoredBytes),
    ("evictions", Counter::Evictions),
    ("evictedBytes", Counter::EvictedBytes),
    ("denied", Counter::Denied),
    ("errors", Counter::Errors),
    ("recovered", Counter::Recovered),
    ("verifiedBytes", Counter::VerifiedBytes),
    ("peerBytes", Counter::PeerBytes),
    ("givenBytes", Counter::GivenBytes),
];

/// A file that is marked.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Marked {
    pub digest: Digest,
    pub device: u64,
    pub inode: u64,
}

/// A thread that was let through, and the chunks that it may be reading.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reader {
    pub tid: u32,
    pub layer: u32,
    pub first: u32,
    pub last: u32,
}

pub struct Shared(Mapping);

/// Makes the memory for a new family.
pub fn create() -> Result<OwnedFd> {
    let file = memfd_create(c"layerd", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING)?;
    ftruncate(&file, TOTAL as u64)?;
    fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL)?;
    Shared(Mapping::new(&file, TOTAL)?).0.long(0).store(LAYOUT, Ordering::Release);
    Ok(file)
}

impl Shared {
    /// Maps the memory; one of another layout is an error (`EPROTO`).
    pub fn map(file: impl AsFd) -> Result<Self> {
        if u64::try_from(fstat(&file)?.st_size) != Ok(TOTAL as u64) {
            return Err(Errno::PROTO);
        }
        let shared = Self(Mapping::new(&file, TOTAL)?);
        if shared.0.long(0).load(Ordering::Acquire) != LAYOUT {
            return Err(Errno::PROTO);
        }
        Ok(shared)
    }

    /// The process that has, or last had, a role.
    pub fn pid(&self, role: Role) -> &AtomicU32 {
        self.0.word(PIDS + 4 * role as usize)
    }

    pub fn counter(&self, counter: Counter) -> &AtomicU64 {
        self.0.long(COUNTERS + 8 * counter as usize)
    }

    pub fn count(&self, counter: Counter, n: u64) {
        self.counter(counter).fetch_add(n, Ordering::Relaxed);
    }

    pub fn layer_count(&self) -> &AtomicU32 {
        self.0.word(LAYER_COUNT)
    }

    fn layer_at(index: u32) -> usize {
        LAYERS + index as usize * LAYER_BYTES
    }

    pub fn layer(&self, index: u32) -> Option<Marked> {
        let at = Self::layer_at(index);
        if self.0.word(at).load(Ordering::Acquire) == 0 {
            return None;
        }
        let mut digest = [0; 32];
        self.0.copy_to(at + 24, &mut digest);
        Some(Marked {
            digest: Digest(digest),
            device: self.0.long(at + 8).load(Ordering::Relaxed),
            inode: self.0.long(at + 16).load(Ordering::Relaxed),
        })
    }

    pub fn set_layer(&self, index: u32, marked: &Marked) {
        let at = Self::layer_at(index);
        self.0.copy_from(at + 24, &marked.digest.0);
        self.0.long(at + 8).store(marked.device, Ordering::Relaxed);
        self.0.long(at + 16).store(marked.inode, Ordering::Relaxed);
        if self.0.word(at).swap(1, Ordering::Release) == 0 {
            self.layer_count().fetch_add(1, Ordering::Relaxed);
        }
    }

    pub fn clear_layer(&self, index: u32) {
        if self.0.word(Self::layer_at(index)).swap(0, Ordering::Release) != 0 {
            self.layer_count().fetch_sub(1, Ordering::Relaxed);
        }
    }

    fn slot_at(slot: u32) -> usize {
        SLOTS + slot as usize * SLOT_BYTES
    }

    /// Has the kernel put an event into a free slot.
    pub fn read_event(&self, group: impl AsFd, slot: u32) -> Result<Option<Event>> {
        crate::sys::fanotify::read_into(group, &self.0, Self::slot_at(slot))?;
        Ok(self.event(slot))
    }

    pub fn event(&self, slot: u32) -> Option<Event> {
        Event::parse(&self.0, Self::slot_at(slot))
    }

    /// Remembers which layer an event is about.
    pub fn set_slot_layer(&self, slot: u32, layer: u32) {
        self.0.word(Self::slot_at(slot) + EVENT_BYTES).store(layer + 1, Ordering::Release);
    }

    pub fn slot_layer(&self, slot: u32) -> Option<u32> {
        self.0.word(Self::slot_at(slot) + EVENT_BYTES).load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether an event was read and is not noted with its layer yet.
    pub fn has_unnoted(&self) -> bool {
        (0..MAX_EVENTS as u32).any(|slot| self.event(slot).is_some() && self.slot_layer(slot).is_none())
    }

    /// Makes a slot free: its event was answered.
    pub fn clear_slot(&self, slot: u32) {
        // The length of the record comes first and goes first.
        self.0.word(Self::slot_at(slot)).store(0, Ordering::Release);
        self.0.copy_from(Self::slot_at(slot), &[0; SLOT_BYTES]);
    }

    fn reader_at(index: u32) -> usize {
        READERS + index as usize * READER_BYTES
    }

    pub fn reader(&self, index: u32) -> Option<Reader> {
        let at = Self::reader_at(index);
        let word = |n: usize| self.0.word(at + 4 * n).load(Ordering::Acquire);
        (word(0) != 0).then(|| Reader { tid: word(0), layer: word(1), first: word(2), last: word(3) })
    }

    pub fn set_reader(&self, index: u32, reader: Reader) {
        let at = Self::reader_at(index);
        for (n, value) in [(1, reader.layer), (2, reader.first), (3, reader.last), (0, reader.tid)] {
            self.0.word(at + 4 * n).store(value, Ordering::Release);
        }
    }

    pub fn clear_reader(&self, index: u32) {
        self.0.word(Self::reader_at(index)).store(0, Ordering::Release);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_one_mapping_writes_the_other_reads() {
        let file = create().expect("memory");
        let (one, other) = (Shared::map(&file).expect("mapped"), Shared::map(&file).expect("mapped"));
        let marked = Marked { digest: Digest([9; 32]), device: 1, inode: u64::MAX };
        one.set_layer(8_191, &marked);
        one.set_slot_layer(1_023, 7);
        one.set_reader(8_191, Reader { tid: 1, layer: 2, first: 3, last: 4 });
        one.count(Counter::VerifiedBytes, 5);
        assert_eq!((other.layer(8_191), other.layer(0)), (Some(marked), None));
        assert_eq!((other.slot_layer(1_023), other.slot_layer(0)), (Some(7), None));
        assert_eq!(other.reader(8_191), Some(Reader { tid: 1, layer: 2, first: 3, last: 4 }));
        assert_eq!(other.counter(Counter::VerifiedBytes).load(Ordering::Relaxed), 5);
        assert_eq!(other.layer_count().load(Ordering::Relaxed), 1);
        other.clear_layer(8_191);
        other.clear_slot(1_023);
        assert_eq!((one.layer(8_191), one.slot_layer(1_023), one.event(1_023)), (None, None, None));
    }

    #[test]
    fn foreign_memory_is_refused() {
        let file = memfd_create(c"other", MemfdFlags::CLOEXEC).expect("memory");
        ftruncate(&file, TOTAL as u64).expect("length");
        assert!(matches!(Shared::map(&file), Err(Errno::PROTO)));
    }
}
