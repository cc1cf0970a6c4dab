//! The worker's work: events in, bytes into data files, answers out.
//!
//! Invariants, all under the lock of [`Book`](book::Book):
//! 1. A chunk is fetched, checked or evicted by one thread at a time: it is in `busy` meanwhile, and events that need it wait there.
//! 2. An event is answered once: by whoever takes its entry out of `waits`.
//! 3. A bit of `filled` is set after the bytes were written, and cleared before they are taken away.
//! 4. A chunk that a thread was let through to is not evicted before that thread was seen elsewhere; nor one that is there while an event waits for
//!    others beside it.

pub mod book;
pub mod cold;
pub mod control;
pub mod events;
pub mod evict;
pub mod fetch;
pub mod plan;
pub mod readers;
pub mod registry;
pub mod relaid;
pub mod traces;
pub mod worker;

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use book::Book;

use crate::family::shared::Shared;
use crate::filled::Boot;
use crate::options::Serve;
use crate::peer::client::Peers;
use crate::source::ChunkSource;
use daemon::log::Log;

pub struct Loader {
    pub options: Serve,
    pub shared: Shared,
    pub source: Box<dyn ChunkSource>,
    /// Other nodes, which are asked first.
    pub peers: Option<Peers>,
    pub log: Log,
    pub boot: Boot,
    pub layers: std::os::fd::OwnedFd,
    pub run: std::os::fd::OwnedFd,
    book: Mutex<Book>,
    /// There may be something to fetch.
    work: Condvar,
    /// A slot, a chunk or a descriptor has become free.
    progress: Condvar,
    /// There may be something to evict.
    pressure: Condvar,
    /// Chunks were used, which is not written down yet.
    used: Condvar,
    /// An event waits, and nobody looks after its time.
    asked: Condvar,
    /// Openings, closings and evictions of closed layers come one after another.
    registry: Mutex<()>,
    /// What is known of uses is written by one thread at a time.
    saving: Mutex<()>,
    /// Bytes that the data files of all layers hold.
    pub allocated: AtomicU64,
    /// Whether the last chunk that came found no room.
    pub is_full: AtomicBool,
}

impl Loader {
    fn book(&self) -> MutexGuard<'_, Book> {
        self.book.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait_for<'a>(&self, what: &Condvar, book: MutexGuard<'a, Book>, most: Duration) -> MutexGuard<'a, Book> {
        what.wait_timeout(book, most).unwrap_or_else(PoisonError::into_inner).0
    }
}
