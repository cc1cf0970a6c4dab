//! The bounded cache: when it is too large, or the volume too full, chunks are taken out of the data files again.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, Mode, OFlags, fstatvfs, openat, statat};
use serde_json::json;

use super::Loader;
use super::cold::{Cold, Found, Owner};
use super::plan::{self, Job};
use super::readers;
use crate::digest::Digest;
use crate::failure::errno_name;
use crate::family::shared::Counter;
use crate::filled::{self, Filled};
use crate::layer::{self, Layer};
use crate::sys::{Errno, Result, lock};
use daemon::log::Level;

/// Above the bound, so much of it is made free that evictions come in few long passes.
const LOW_WATER_PERCENT: u64 = 90;
const PERIOD: Duration = Duration::from_secs(1);
/// The same while there is nothing to look at.
const IDLE: Duration = Duration::from_secs(60);
/// What was punched counts as free a while later: a volume is not measured sooner after a pass that it caused.
const SETTLE: Duration = Duration::from_secs(5);
/// Chunks that are claimed at once, so that events wait for few punches.
const BATCH: usize = 64;

/// Passes of eviction, for those who wait for room.
#[derive(Default)]
pub struct Passes {
    /// Bytes that are wanted from the next one.
    pub wanted_bytes: u64,
    begun: u64,
    ended: u64,
    freed: u64,
}

impl Loader {
    /// Keeps the bounds for ever.
    pub fn evict(&self) -> ! {
        let mut measure_from = Instant::now();
        loop {
            let wanted = {
                let mut book = self.book();
                if book.passes.wanted_bytes == 0 {
                    // Nobody tells how full the volume is, or when a reader is done with what is too much.
                    let is_watched = self.options.free_marks.is_some() || self.excess() > 0;
                    book = self.wait_for(&self.pressure, book, if is_watched { PERIOD } else { IDLE });
                }
                book.passes.begun += 1;
                std::mem::take(&mut book.passes.wanted_bytes)
            };
            let shortage = if Instant::now() >= measure_from { self.shortage() } else { 0 };
            if shortage > 0 {
                measure_from = Instant::now() + SETTLE;
            }
            if self.excess() > 0 {
                self.forget_removed();
            }
            let surplus = self.excess().max(shortage).max(wanted);
            let freed = if surplus > 0 { self.make_cold(surplus) } else { 0 };
            let mut book = self.book();
            book.passes.ended = book.passes.begun;
            book.passes.freed = freed;
            drop(book);
            self.progress.notify_all();
        }
    }

    /// Bytes beyond the bound of the cache.
    fn excess(&self) -> u64 {
        let present = self.allocated.load(Ordering::Relaxed);
        self.options
            .cache_bytes
            .filter(|most| present > *most)
            .map_or(0, |most| present - most / 100 * LOW_WATER_PERCENT)
    }

    /// Bytes that the volume lacks of its high water mark, once it is below the low one.
    fn shortage(&self) -> u64 {
        let Some(marks) = &self.options.free_marks else { return 0 };
        self.free_bytes().filter(|free| *free < marks.low_bytes).map_or(0, |free| marks.high_bytes - free)
    }

    /// Free bytes of the volume that has the layers.
    pub fn free_bytes(&self) -> Option<u64> {
        fstatvfs(&self.layers).ok().map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize))
    }

    /// Whether nothing should be brought that nobody waits for.
    pub fn is_under_pressure(&self) -> bool {
        let is_large = self.options.cache_bytes.is_some_and(|most| self.allocated.load(Ordering::Relaxed) >= most);
        let is_low = |low: u64| self.free_bytes().is_some_and(|free| free < low);
        is_large || self.is_full.load(Ordering::Relaxed) || self.options.free_marks.is_some_and(|m| is_low(m.low_bytes))
    }

    /// Has room made at once, for whoever found none; whether there is more of it now.
    pub fn ask_for_room(&self, bytes: u64, deadline: Instant) -> bool {
        let mut book = self.book();
        book.passes.wanted_bytes += bytes;
        let pass = book.passes.begun + 1;
        self.pressure.notify_all();
        while book.passes.ended < pass {
            if Instant::now() >= deadline {
                return false;
            }
            book = self.wait_for(&self.progress, book, PERIOD);
        }
        book.passes.freed > 0
    }

    /// Counts bytes that were there before this worker looked.
    pub fn count_allocated(&self, bytes: u64) {
        self.allocated.fetch_add(bytes, Ordering::Relaxed);
    }

    pub fn uncount_allocated(&self, bytes: u64) {
        // What was found on the disk is counted in blocks, what is taken away in chunks.
        let _ = self
            .allocated
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, |count| Some(count.saturating_sub(bytes)));
    }

    /// Finds what is on the disk of layers that are not open.
    pub fn survey(&self, digests: &[Digest]) {
        for digest in digests {
            // Openings, of which creates wait, come in between.
            let _turn = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            if self.book().by_digest.contains_key(digest) {
                continue;
            }
            let size = |directory: &OwnedFd, name| {
                statat(directory, name, AtFlags::SYMLINK_NOFOLLOW).map_or(0, |stat| stat.st_blocks as u64 * 512)
            };
            // What was built here is no cache: nobody could bring it again.
            let bytes = layer::directory(self.layers.as_fd(), digest)
                .map_or(0, |directory| if size(&directory, filled::NAME) > 0 { size(&directory, "data") } else { 0 });
            if bytes > 0 && self.book().closed.insert(*digest, bytes).is_none() {
                self.count_allocated(bytes);
            }
        }
    }

    /// Forgets what closed layers had that were removed since: nobody tells a loader of that.
    fn forget_removed(&self) {
        let closed: Vec<Digest> = self.book().closed.keys().copied().collect();
        for digest in closed {
            // What is opened and closed again in the meantime counts anew.
            let _turn = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
            let filled = format!("{}/{}", digest.hex(), filled::NAME);
            if statat(&self.layers, filled, AtFlags::SYMLINK_NOFOLLOW).is_err_and(|errno| errno == Errno::NOENT) {
                self.uncount_allocated(self.book().closed.remove(&digest).unwrap_or(0));
            }
        }
    }

    /// Takes the coldest chunks from the disk; returns their bytes.
    fn make_cold(&self, surplus: u64) -> u64 {
        self.forget_readers();
        let mut freed = 0;
        for Found { owner, chunks } in self.coldest(surplus) {
            freed += match owner {
                Owner::Open(index, layer) => {
                    chunks.chunks(BATCH).map(|batch| self.evict_open(index, &layer, batch)).sum()
                }
                Owner::Closed(digest) => match self.evict_closed(&digest, &chunks) {
                    Ok(bytes) => bytes,
                    Err(errno) => {
                        self.not_evicted(&digest, errno);
                        0
                    }
                },
            };
        }
        freed
    }

    fn count_evicted(&self, chunks: usize, bytes: u64) {
        self.uncount_allocated(bytes);
        self.shared.count(Counter::Evictions, chunks as u64);
        self.shared.count(Counter::EvictedBytes, bytes);
    }

    /// Empties a layer that nobody has open, here or elsewhere, of some chunks.
    fn evict_closed(&self, digest: &Digest, chunks: &[Cold]) -> Result<u64> {
        let _turn = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        if !self.book().closed.contains_key(digest) {
            // It was opened, or removed, in the meantime.
            return Ok(0);
        }
        let directory = match layer::directory(self.layers.as_fd(), digest) {
            Err(Errno::NOENT) => return Ok(0),
            other => other?,
        };
        let filled = Filled::existing(directory.as_fd())?;
        let data = openat(&directory, "data", OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        if !lock::is_sole_opener(&data)? {
            return Ok(0);
        }
        let known = chunks.iter().map(|cold| cold.chunk).filter(|chunk| *chunk < filled.chunks());
        filled.forget(known)?;
        for run in runs(chunks.iter().map(|cold| cold.chunk)) {
            layer::punch(data.as_fd(), &run)?;
        }
        let bytes = chunks.iter().map(|cold| u64::from(cold.bytes)).sum();
        self.count_evicted(chunks.len(), bytes);
        let mut book = self.book();
        if let Some(left) = book.closed.get_mut(digest) {
            *left = left.saturating_sub(bytes);
            if *left == 0 {
                book.closed.remove(digest);
            }
        }
        Ok(bytes)
    }

    /// Takes chunks of an open layer, unless somebody may be reading them by now: from the claim on, events about them wait.
    fn evict_open(&self, index: u32, layer: &Arc<Layer>, batch: &[Cold]) -> u64 {
        let claimed = self.claim(index, layer, batch);
        for run in runs(claimed.iter().map(|cold| cold.chunk)) {
            if let Err(errno) = layer.punch(run) {
                self.not_evicted(&layer.digest, errno);
            }
        }
        let bytes = claimed.iter().map(|cold| u64::from(cold.bytes)).sum();
        self.count_evicted(claimed.len(), bytes);
        self.release(index, layer, &claimed);
        bytes
    }

    /// Forgets threads that have read what they were let through to.
    fn forget_readers(&self) {
        let passed = self.book().readers.passed();
        for (tid, pass) in passed {
            if readers::is_elsewhere(tid) {
                self.book().readers.forget(&self.shared, tid, pass);
            }
        }
    }

    fn claim(&self, index: u32, layer: &Arc<Layer>, batch: &[Cold]) -> Vec<Cold> {
        let mut book = self.book();
        if !book.open.get(&index).is_some_and(|open| Arc::ptr_eq(&open.layer, layer)) || book.readers.is_overflown {
            return Vec::new();
        }
        let pinned = book.pinned(&self.shared).filter(|(layer, _)| *layer == index);
        let pinned: Vec<_> = pinned.map(|(_, chunks)| chunks).collect();
        let mut claimed = batch.to_vec();
        claimed.retain(|cold| {
            let is_read = pinned.iter().any(|chunks| chunks.contains(&cold.chunk));
            // One that was used since is not cold any more.
            let is_cold = layer.filled.used_at(cold.chunk) == cold.used_at && layer.filled.may_be_there(cold.chunk);
            !is_read && is_cold && !book.busy.contains_key(&(index, cold.chunk))
        });
        if let Err(errno) = layer.filled.forget(claimed.iter().map(|cold| cold.chunk)) {
            self.not_evicted(&layer.digest, errno);
            return Vec::new();
        }
        book.busy.extend(claimed.iter().map(|cold| ((index, cold.chunk), Vec::new())));
        claimed
    }

    /// The chunks are gone. Whoever asked for one in the meantime gets it again.
    fn release(&self, index: u32, layer: &Arc<Layer>, claimed: &[Cold]) {
        let mut book = self.book();
        let mut wanted = Vec::new();
        for Cold { chunk, .. } in claimed {
            if book.busy.get(&(index, *chunk)).is_none_or(Vec::is_empty) {
                self.finish(&mut book, (index, *chunk), true);
            } else {
                wanted.push(*chunk);
            }
        }
        let Ok(places) = layer.places.of(wanted.iter().copied()) else {
            return wanted.iter().for_each(|chunk| self.finish(&mut book, (index, *chunk), false));
        };
        let deadline = Instant::now() + self.options.store_wait;
        for chunks in plan::group(places) {
            let layer = layer.clone();
            book.demand.push_back(Job { index, layer, chunks, deadline, is_prefetch: false });
            self.work.notify_one();
        }
    }

    fn not_evicted(&self, digest: &Digest, errno: Errno) {
        let fields = json!({ "layer": digest.to_string(), "errno": errno_name(errno) });
        self.log.write(Level::Warn, "not-evicted", &fields);
    }
}

/// Chunks that lie one behind the other, together.
fn runs(chunks: impl IntoIterator<Item = u32>) -> Vec<std::ops::RangeInclusive<u32>> {
    let mut sorted: Vec<u32> = chunks.into_iter().collect();
    sorted.sort_unstable();
    let mut runs: Vec<std::ops::RangeInclusive<u32>> = Vec::new();
    for chunk in sorted {
        match runs.last_mut().filter(|run| *run.end() + 1 == chunk) {
            Some(run) => *run = *run.start()..=chunk,
            None => runs.push(chunk..=chunk),
        }
    }
    runs
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn neighbours_are_punched_together() {
        assert_eq!(runs([5, 2, 3, 9, 4]), [2..=5, 9..=9]);
        assert_eq!(runs([]), []);
    }
}
