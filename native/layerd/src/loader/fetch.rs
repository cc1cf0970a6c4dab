//! Fetching: threads that take jobs, read the blob store, check and write.

use std::fmt;
use std::time::{Duration, Instant};

use serde_json::json;
use zstd_safe::DCtx;

use super::Loader;
use super::book::ChunkKey;
use super::plan::{self, Job, MAX_JOB_CHUNKS};
use crate::chunk_map::CHUNK_BYTES;
use crate::digest::Digest;
use crate::failure::errno_name;
use crate::family::shared::Counter;
use crate::places::Place;
use crate::source::{self, SourceError};
use crate::sys::{Errno, Result};
use daemon::log::Level;
use std::sync::atomic::Ordering;

/// Threads that fetch.
pub const THREADS: usize = 8;
/// Of these, how many may fetch ahead of any reader.
const PREFETCH_THREADS: usize = 3;
const IDLE: Duration = Duration::from_secs(60);
/// Passes of eviction that a chunk waits for when the volume is full.
const ROOM_TRIES: u32 = 20;
const FULL_TRIES: u32 = 2;
/// What each asks for.
const ROOM_BYTES: u64 = 4 * CHUNK_BYTES;
/// Between two passes that gave no room. No event tells of room on a volume.
const ROOM_PAUSE: Duration = Duration::from_millis(50);

/// Why a chunk was not filled.
enum NotFilled {
    Source(SourceError),
    Frame,
    Digest,
    Write(Errno),
}

impl fmt::Display for NotFilled {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Source(error) => error.fmt(f),
            Self::Frame => f.write_str("the stored bytes are no zstd frame of the right length"),
            Self::Digest => f.write_str("the bytes do not have the digest of the chunk"),
            Self::Write(errno) => write!(f, "the data file cannot be written: {}", errno_name(*errno)),
        }
    }
}

/// What one thread needs again and again.
struct Desk {
    decoder: DCtx<'static>,
    stored: Vec<u8>,
    plain: Vec<u8>,
}

impl Loader {
    /// Takes jobs for ever.
    pub fn fetch(&self) -> ! {
        let mut desk = Desk { decoder: DCtx::create(), stored: Vec::new(), plain: vec![0; CHUNK_BYTES as usize] };
        loop {
            let job = self.next_job();
            let is_prefetch = job.is_prefetch;
            self.run(&mut desk, job);
            if is_prefetch {
                self.book().prefetching -= 1;
                self.work.notify_one();
            }
        }
    }

    fn next_job(&self) -> Job {
        let mut book = self.book();
        loop {
            if let Some(job) = book.demand.pop_front() {
                return job;
            }
            if book.prefetching < PREFETCH_THREADS
                && let Some(job) = self.next_prefetch(&mut book)
            {
                book.prefetching += 1;
                return job;
            }
            book = self.wait_for(&self.work, book, IDLE);
        }
    }

    /// The next run of chunks that were asked for ahead and are not there.
    fn next_prefetch(&self, book: &mut super::book::Book) -> Option<Job> {
        if !book.prefetch.is_empty() && self.is_under_pressure() {
            book.prefetch.clear();
        }
        while let Some((index, chunk)) = book.prefetch.pop_front() {
            let mut keys: Vec<ChunkKey> = vec![(index, chunk)];
            while keys.len() < MAX_JOB_CHUNKS && book.prefetch.front().is_some_and(|key| key.0 == index) {
                keys.extend(book.prefetch.pop_front());
            }
            let Some(layer) = book.open.get(&index).map(|open| open.layer.clone()) else { continue };
            keys.retain(|key| !layer.is_readable(key.1) && !book.busy.contains_key(key));
            let Ok(places) = layer.places.of(keys.iter().map(|key| key.1)) else { continue };
            let mut groups = plan::group(places);
            let chunks = if groups.is_empty() { continue } else { groups.remove(0) };
            // What does not belong to this run comes next.
            for (chunk, _) in groups.into_iter().flatten().rev() {
                book.prefetch.push_front((index, chunk));
            }
            for (chunk, _) in &chunks {
                book.busy.insert((index, *chunk), Vec::new());
            }
            let deadline = Instant::now() + self.options.store_wait;
            return Some(Job { index, layer, chunks, deadline, is_prefetch: true });
        }
        None
    }

    fn run(&self, desk: &mut Desk, mut job: Job) {
        if let Err(errno) = self.ensure_data(&job) {
            for (chunk, place) in std::mem::take(&mut job.chunks) {
                self.fail(&job, chunk, &place, &NotFilled::Write(errno));
            }
            return;
        }
        // What a boot before this one has filled needs no fetching, if it is right.
        for (chunk, place) in std::mem::take(&mut job.chunks) {
            if job.layer.filled.take_guess(chunk) {
                self.uncount_allocated(job.layer.map.header.plain_bytes(chunk).into());
                if job.layer.holds_chunk(chunk, &place.digest) == Ok(true) {
                    self.done(&job, chunk, Counter::VerifiedBytes);
                    continue;
                }
            }
            job.chunks.push((chunk, place));
        }
        for chunks in plan::group(std::mem::take(&mut job.chunks)) {
            self.run_group(desk, &job, &chunks);
        }
    }

    fn run_group(&self, desk: &mut Desk, job: &Job, chunks: &[(u32, Place)]) {
        for chunks in plan::group(self.fill_from_peers(desk, job, chunks)) {
            self.fill_from_store(desk, job, &chunks);
        }
    }

    /// Fills what other nodes have, within the bound of that; returns the rest.
    fn fill_from_peers(&self, desk: &mut Desk, job: &Job, chunks: &[(u32, Place)]) -> Vec<(u32, Place)> {
        let mut rest = chunks.to_vec();
        let Some(peers) = &self.peers else { return rest };
        let wanted: Vec<(u32, u32)> =
            chunks.iter().map(|(chunk, _)| (*chunk, job.layer.map.header.plain_bytes(*chunk))).collect();
        for given in peers.ask(&job.layer.digest, &wanted, job.deadline) {
            let Some(at) = rest.iter().position(|(chunk, _)| *chunk == given.chunk) else { continue };
            let (chunk, place) = rest[at];
            match self.fill(desk, job, chunk, &place, &given.bytes) {
                Ok(()) => {
                    rest.swap_remove(at);
                    self.shared.count(Counter::PeerBytes, given.bytes.len() as u64);
                    self.done(job, chunk, Counter::StoredBytes);
                }
                // The node gave something else, or lost it while it did.
                Err(NotFilled::Digest | NotFilled::Frame) => {
                    let fields = json!({
                        "layer": job.layer.digest.to_string(),
                        "chunk": chunk,
                        "peer": peers.address(given.peer).to_string(),
                    });
                    self.log.write(Level::Warn, "peer-wrong", &fields);
                    peers.rest(given.peer);
                }
                // Without room here the store's bytes would be of no more use.
                Err(why) => {
                    rest.swap_remove(at);
                    self.fail(job, chunk, &place, &why);
                }
            }
        }
        rest
    }

    fn fill_from_store(&self, desk: &mut Desk, job: &Job, chunks: &[(u32, Place)]) {
        let Some((_, first)) = chunks.first() else { return };
        let length = chunks.iter().map(|(_, place)| place.stored_bytes as usize).sum();
        let stored = std::mem::take(&mut desk.stored);
        let mut stored = resized(stored, length);
        match self.fetch_range(&first.pack, first.offset, &mut stored, job.deadline) {
            Ok(()) => {
                let mut rest = stored.as_slice();
                for (chunk, place) in chunks {
                    let (bytes, behind) = rest.split_at(place.stored_bytes as usize);
                    rest = behind;
                    match self.fill(desk, job, *chunk, place, bytes) {
                        Ok(()) => self.done(job, *chunk, Counter::StoredBytes),
                        Err(NotFilled::Frame | NotFilled::Digest) => self.fill_again(desk, job, *chunk, place),
                        Err(why) => self.fail(job, *chunk, place, &why),
                    }
                }
            }
            // A part of what was asked for may be there.
            Err(SourceError::Short) if chunks.len() > 1 => {
                for chunk in chunks {
                    self.fill_from_store(desk, job, std::slice::from_ref(chunk));
                }
            }
            // The store may have laid the layer out anew, and let go of this pack.
            Err(SourceError::Missing) if let Some(moved) = self.moved(job, chunks) => {
                for chunks in plan::group(moved) {
                    self.fill_from_store(desk, job, &chunks);
                }
            }
            Err(why) => {
                for (chunk, place) in chunks {
                    self.fail(job, *chunk, place, &NotFilled::Source(why));
                }
            }
        }
        desk.stored = stored;
    }

    /// A second look at the store: bytes can be wrong on their way.
    fn fill_again(&self, desk: &mut Desk, job: &Job, chunk: u32, place: &Place) {
        let mut stored = vec![0; place.stored_bytes as usize];
        let filled = self
            .fetch_range(&place.pack, place.offset, &mut stored, job.deadline)
            .map_err(NotFilled::Source)
            .and_then(|()| self.fill(desk, job, chunk, place, &stored));
        match filled {
            Ok(()) => self.done(job, chunk, Counter::StoredBytes),
            Err(why) => self.fail(job, chunk, place, &why),
        }
    }

    fn fetch_range(
        &self,
        pack: &Digest,
        offset: u64,
        stored: &mut [u8],
        deadline: Instant,
    ) -> std::result::Result<(), SourceError> {
        source::until(deadline, || self.source.read(pack, offset, stored, deadline))?;
        self.shared.count(Counter::Fetches, 1);
        self.shared.count(Counter::FetchedBytes, stored.len() as u64);
        Ok(())
    }

    fn fill(
        &self,
        desk: &mut Desk,
        job: &Job,
        chunk: u32,
        place: &Place,
        stored: &[u8],
    ) -> std::result::Result<(), NotFilled> {
        let plain_bytes = job.layer.map.header.plain_bytes(chunk) as usize;
        let plain: &[u8] = if stored.len() == plain_bytes {
            stored
        } else {
            let target = &mut desk.plain[..plain_bytes];
            match desk.decoder.decompress(target, stored) {
                Ok(length) if length == plain_bytes => target,
                _ => return Err(NotFilled::Frame),
            }
        };
        if Digest::of(plain) != place.digest {
            return Err(NotFilled::Digest);
        }
        let mut tries = 0;
        loop {
            match job.layer.write_chunk(chunk, plain) {
                Ok(()) => return Ok(()),
                Err(errno @ (Errno::NOSPC | Errno::DQUOT)) => {
                    // Where there was no room just now there is hardly any: others need not wait as long.
                    let most = if self.is_full.load(Ordering::Relaxed) { FULL_TRIES } else { ROOM_TRIES };
                    if tries >= most || job.is_prefetch || Instant::now() >= job.deadline {
                        self.is_full.store(true, Ordering::Relaxed);
                        return Err(NotFilled::Write(errno));
                    }
                    tries += 1;
                    if !self.ask_for_room(ROOM_BYTES, job.deadline) || tries > FULL_TRIES {
                        // Others may have taken what there was, or the volume gives it back only when it next commits.
                        std::thread::sleep(ROOM_PAUSE);
                    }
                }
                Err(errno) => return Err(NotFilled::Write(errno)),
            }
        }
    }

    fn done(&self, job: &Job, chunk: u32, counted_as: Counter) {
        let bytes = u64::from(job.layer.map.header.plain_bytes(chunk));
        self.shared.count(counted_as, bytes);
        let allocated = self.allocated.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.is_full.store(false, Ordering::Relaxed);
        job.layer.filled.set_expected(chunk, crate::filled::now());
        let mut book = self.book();
        job.layer.filled.set(chunk);
        self.note_use(&mut book, job.index);
        self.finish(&mut book, (job.index, chunk), true);
        if self.options.cache_bytes.is_some_and(|most| allocated > most) {
            self.pressure.notify_all();
        }
    }

    fn fail(&self, job: &Job, chunk: u32, place: &Place, why: &NotFilled) {
        self.shared.count(Counter::Errors, 1);
        let fields = json!({
            "layer": job.layer.digest.to_string(),
            "chunk": chunk,
            "digest": place.digest.to_string(),
            "pack": place.pack.to_string(),
            "store": self.source.name(),
            "message": why.to_string(),
        });
        self.log.write(Level::Error, "chunk-not-filled", &fields);
        let (key, mut book) = ((job.index, chunk), self.book());
        // What goes wrong ahead of any reader must not fail one that has come since: for it the chunk is tried in its own right.
        if job.is_prefetch && book.busy.get(&key).is_some_and(|waiting| !waiting.is_empty()) {
            let deadline = Instant::now() + self.options.store_wait;
            let (index, layer, chunks) = (job.index, job.layer.clone(), vec![(chunk, *place)]);
            book.demand.push_back(Job { index, layer, chunks, deadline, is_prefetch: false });
            return self.work.notify_one();
        }
        self.finish(&mut book, key, false);
    }

    /// Sees to it that there is a descriptor of the data file.
    fn ensure_data(&self, job: &Job) -> Result<()> {
        if job.layer.has_data() { Ok(()) } else { self.probe(job.index, &job.layer, job.deadline) }
    }
}

fn resized(mut buffer: Vec<u8>, length: usize) -> Vec<u8> {
    buffer.resize(length, 0);
    buffer
}
