//! Layers come and go.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::{Dir, Mode, OFlags, openat};
use rustix::io::pread;
use serde_json::{Value, json};

use super::Loader;
use super::book::{Book, MAX_PREFETCH, Open};
use super::plan::Streams;
use crate::chunk_map::{CHUNK_BYTES, Header};
use crate::digest::Digest;
use crate::failure::{self, Failure, errno_name};
use crate::family;
use crate::family::shared::MAX_LAYERS;
use crate::filled::Filled;
use crate::layer::{self, Layer};
use crate::request::Prefetch;
use crate::sys::{Errno, Result, fanotify, lock, process};
use crate::trace::{self, Trace};
use daemon::log::Level;

/// How long a closing waits for what is under way.
const CLOSE_WAIT: Duration = Duration::from_secs(5);
/// What the files of a layer may take beside its data.
const OPEN_ROOM_BYTES: u64 = 8 << 20;
const ROOM_WAIT: Duration = Duration::from_secs(5);
const PROBE_WAIT: Duration = Duration::from_secs(5);

impl Loader {
    /// Makes a layer ready to be mounted, and room for that where there is none. The same again changes nothing. One that is not new goes on with its trace.
    pub fn open_layer(&self, digest: &Digest, is_new: bool) -> std::result::Result<Value, Failure> {
        let opened = self.try_open(digest, is_new);
        match opened {
            Err(failure) if failure.code == "disk_full" => {
                if self.ask_for_room(OPEN_ROOM_BYTES, Instant::now() + ROOM_WAIT) {
                    self.try_open(digest, is_new)
                } else {
                    Err(failure)
                }
            }
            other => other,
        }
    }

    fn try_open(&self, digest: &Digest, is_new: bool) -> std::result::Result<Value, Failure> {
        let _turn = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let known = self.book().by_digest.get(digest).copied();
        let index = match known {
            Some(index) => index,
            None => self.begin_layer(digest, is_new)?,
        };
        let layer = self.book().open.get(&index).map(|open| open.layer.clone());
        let Some(layer) = layer else { return Err(Failure::new("internal", "the layer was closed meanwhile")) };
        if layer.map.header.data_bytes > 0 && !layer.has_data() {
            let deadline = Instant::now() + PROBE_WAIT;
            self.probe(index, &layer, deadline).map_err(|errno| failure::file(digest, "data", errno))?;
        }
        let header = &layer.map.header;
        Ok(json!({ "dataBytes": header.data_bytes, "chunks": header.chunks, "packs": header.packs }))
    }

    fn begin_layer(&self, digest: &Digest, is_new: bool) -> std::result::Result<u32, Failure> {
        let file = |name: &'static str| move |errno| failure::file(digest, name, errno);
        let directory = layer::directory(self.layers.as_fd(), digest).map_err(file(""))?;
        let layer = Layer::open(directory.as_fd(), digest, &self.boot)?;
        if is_new {
            trace::begin(directory.as_fd()).map_err(file(trace::NAME))?;
        }
        let index = {
            let book = self.book();
            (0..MAX_LAYERS as u32).find(|index| !book.open.contains_key(index)).ok_or_else(|| {
                Failure::new("too_many_requests", format!("{MAX_LAYERS} layers are open")).with("limit", MAX_LAYERS)
            })?
        };
        // Known before it is marked: an event about an unknown file can only be denied.
        let (marked, trace) = (layer.marked, self.traced(&directory, layer.map.header.chunks));
        layer.filled.set_open(true).map_err(file(crate::filled::NAME))?;
        self.shared.set_layer(index, &marked);
        self.register(index, layer, trace);
        if let Err(errno) = fanotify::mark(family::group(), &directory, c"data") {
            self.unregister(index);
            return Err(failure::file(digest, "data", errno));
        }
        Ok(index)
    }

    fn register(&self, index: u32, layer: Layer, trace: Trace) {
        let mut book = self.book();
        if let Some(bytes) = book.closed.remove(&layer.digest) {
            self.uncount_allocated(bytes);
        }
        self.count_allocated(layer.present_bytes());
        self.pressure.notify_all();
        book.by_file.insert((layer.marked.device, layer.marked.inode), index);
        book.by_digest.insert(layer.digest, index);
        book.open.insert(index, Open { layer: Arc::new(layer), trace, streams: Streams::default() });
    }

    fn unregister(&self, index: u32) {
        let mut book = self.book();
        let Some(open) = book.open.remove(&index) else { return };
        let layer = open.layer;
        book.by_file.remove(&(layer.marked.device, layer.marked.inode));
        book.by_digest.remove(&layer.digest);
        let bytes = layer.present_bytes();
        if bytes > 0 {
            book.closed.insert(layer.digest, bytes);
        }
        let saved = layer.filled.save_uses().and_then(|()| layer.filled.set_open(false));
        if let Err(errno) = saved {
            // A family that comes to be in this boot opens the layer again.
            self.log_failure("filled-unsaved", errno);
        }
        self.shared.clear_layer(index);
    }

    /// Opens again what an earlier worker of this family had open: it is marked still.
    pub fn restore(&self) {
        for index in 0..MAX_LAYERS as u32 {
            let Some(marked) = self.shared.layer(index) else { continue };
            let opened = layer::directory(self.layers.as_fd(), &marked.digest)
                .map_err(|errno| failure::file(&marked.digest, "", errno))
                .and_then(|directory| {
                    let layer = Layer::open(directory.as_fd(), &marked.digest, &self.boot)?;
                    // The worker before may have ended between writing down and marking.
                    fanotify::mark(family::group(), &directory, c"data")
                        .map_err(|errno| failure::file(&marked.digest, "data", errno))?;
                    let trace = self.traced(&directory, layer.map.header.chunks);
                    Ok((layer, trace))
                });
            match opened {
                Ok((layer, trace)) => self.register(index, layer, trace),
                Err(failure) => self.not_restored(&marked.digest, &failure),
            }
        }
    }

    /// The trace that a worker before has begun.
    fn traced(&self, directory: &OwnedFd, chunks: u32) -> Trace {
        let order = trace::load(directory.as_fd(), trace::NAME, Some(chunks)).unwrap_or_else(|errno| {
            self.log_failure("trace-unread", errno);
            Vec::new()
        });
        Trace::new(chunks, order)
    }

    fn not_restored(&self, digest: &Digest, failure: &Failure) {
        let fields = json!({ "layer": digest.to_string(), "message": failure.message });
        self.log.write(Level::Error, "layer-not-restored", &fields);
    }

    /// Opens what a family that is gone had open in this boot: its mounts may still be there. Returns the digests of the other layers.
    pub fn resume(&self) -> Vec<Digest> {
        let mut others = Vec::new();
        for digest in self.digests() {
            let filled = layer::directory(self.layers.as_fd(), &digest)
                .and_then(|directory| Filled::existing(directory.as_fd()));
            match filled {
                Ok(filled) if filled.is_open() && filled.is_of_boot(&self.boot) => {
                    if let Err(failure) = self.open_layer(&digest, false) {
                        self.not_restored(&digest, &failure);
                    }
                }
                Ok(_) => others.push(digest),
                Err(_) => {}
            }
        }
        others
    }

    fn digests(&self) -> Vec<Digest> {
        let Ok(entries) = Dir::read_from(&self.layers) else { return Vec::new() };
        entries.filter_map(|entry| Digest::parse_hex(entry.ok()?.file_name().to_str().ok()?)).collect()
    }

    /// Gets a descriptor of the data file that raises no events: the one that comes with an event about a read of our own, which is then denied.
    pub fn probe(&self, index: u32, layer: &Layer, deadline: Instant) -> Result<()> {
        let directory = layer::directory(self.layers.as_fd(), &layer.digest)?;
        let file = openat(&directory, "data", OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let tid = process::thread_id();
        while !layer.has_data() {
            self.book().probes.insert(tid, index);
            // The answer is an error, and what matters comes before it.
            let _ = pread(&file, &mut [0_u8; 1], 0);
            self.book().probes.remove(&tid);
            if Instant::now() >= deadline {
                return Err(Errno::TIMEDOUT);
            }
        }
        Ok(())
    }

    /// Lets go of a layer, unless somebody has it mounted.
    pub fn close_layer(&self, digest: &Digest) -> std::result::Result<Value, Failure> {
        let _turn = self.registry.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(index) = self.book().by_digest.get(digest).copied() else { return Ok(json!({})) };
        let layer = self.quiesce(index, digest)?;
        if layer.map.header.data_bytes > 0 {
            // A worker that has just begun has no descriptor yet.
            let probed = if layer.has_data() { Ok(()) } else { self.probe(index, &layer, Instant::now() + PROBE_WAIT) };
            let is_sole = probed.and_then(|()| layer.data()).and_then(lock::is_sole_opener);
            match is_sole {
                Ok(true) => {}
                Ok(false) => return Err(in_use(digest)),
                Err(errno) => return Err(failure::file(digest, "data", errno)),
            }
        }
        let removed = layer::directory(self.layers.as_fd(), digest)
            .and_then(|directory| fanotify::unmark(family::group(), &directory, c"data"));
        match removed {
            // Files that were removed took their marks along.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => return Err(failure::file(digest, "data", errno)),
        }
        self.end_trace(index);
        self.unregister(index);
        Ok(json!({}))
    }

    /// Waits until nothing is under way for a layer.
    fn quiesce(&self, index: u32, digest: &Digest) -> std::result::Result<Arc<Layer>, Failure> {
        let until = Instant::now() + CLOSE_WAIT;
        let mut book = self.book();
        book.prefetch.retain(|key| key.0 != index);
        loop {
            let is_quiet = !book.busy.keys().any(|key| key.0 == index);
            match book.open.get(&index) {
                Some(open) if is_quiet => return Ok(open.layer.clone()),
                Some(_) if Instant::now() < until => {}
                _ => return Err(in_use(digest)),
            }
            book = self.wait_for(&self.progress, book, CLOSE_WAIT);
        }
    }

    /// Has chunks fetched that nobody waits for: some, those of ranges of bytes, or those that the opening before has read.
    pub fn prefetch(&self, digest: &Digest, which: &Prefetch) -> std::result::Result<Value, Failure> {
        let (_, layer) = opened(&self.book(), digest)?;
        match which {
            Prefetch::Chunks(chunks) => self.prefetch_chunks(digest, chunks),
            Prefetch::Ranges(ranges) => self.prefetch_chunks(digest, &chunks_of(&layer.map.header, ranges)?),
            Prefetch::Recorded => self.prefetch_chunks(digest, &self.recorded(&layer)?),
        }
    }

    /// Forgets what waits to be fetched ahead of a layer's readers. What is under way comes.
    pub fn cancel_prefetch(&self, digest: &Digest) -> std::result::Result<Value, Failure> {
        let mut book = self.book();
        let (index, _) = opened(&book, digest)?;
        let before = book.prefetch.len();
        book.prefetch.retain(|key| key.0 != index);
        Ok(json!({ "chunks": before - book.prefetch.len() }))
    }

    fn prefetch_chunks(&self, digest: &Digest, chunks: &[u32]) -> std::result::Result<Value, Failure> {
        let mut book = self.book();
        let (index, layer) = opened(&book, digest)?;
        if book.prefetch.len() + chunks.len() > MAX_PREFETCH {
            return Err(Failure::new("too_many_requests", format!("{MAX_PREFETCH} chunks wait to be fetched ahead"))
                .with("limit", MAX_PREFETCH));
        }
        let mut seen = HashSet::new();
        let missing: Vec<u32> = chunks
            .iter()
            .copied()
            .filter(|chunk| *chunk < layer.map.header.chunks && !layer.is_readable(*chunk) && seen.insert(*chunk))
            .collect();
        book.prefetch.extend(missing.iter().map(|chunk| (index, *chunk)));
        self.work.notify_all();
        Ok(json!({ "chunks": missing.len() }))
    }

    /// A layer that is open.
    pub fn layer(&self, digest: &Digest) -> Option<Arc<Layer>> {
        opened(&self.book(), digest).ok().map(|(_, layer)| layer)
    }

    pub fn layer_count(&self) -> usize {
        self.book().open.len()
    }

    pub fn log_failure(&self, event: &str, errno: Errno) {
        self.log.write(Level::Error, event, &json!({ "errno": errno_name(errno) }));
    }
}

/// The chunks that ranges of bytes are in.
fn chunks_of(header: &Header, ranges: &[(u64, u64)]) -> std::result::Result<Vec<u32>, Failure> {
    let mut chunks = Vec::new();
    for (offset, length) in ranges.iter().filter(|(_, length)| *length > 0) {
        let end = offset.saturating_add(*length).min(header.data_bytes).div_ceil(CHUNK_BYTES);
        chunks.extend((offset / CHUNK_BYTES..end).map(|chunk| chunk as u32).take(MAX_PREFETCH));
        if chunks.len() > MAX_PREFETCH {
            return Err(Failure::invalid("ranges", "cover too many chunks"));
        }
    }
    Ok(chunks)
}

fn opened(book: &Book, digest: &Digest) -> std::result::Result<(u32, Arc<Layer>), Failure> {
    let index = book.by_digest.get(digest).copied();
    index.and_then(|index| Some((index, book.open.get(&index)?.layer.clone()))).ok_or_else(|| {
        Failure::new("layer_not_found", format!("the layer {digest} is not open")).with("layer", digest.to_string())
    })
}

fn in_use(digest: &Digest) -> Failure {
    Failure::new("layer_in_use", format!("the layer {digest} is mounted or being read"))
        .with("layer", digest.to_string())
}
