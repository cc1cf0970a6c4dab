//! Traces of open layers, and when their chunks were used: written beside them a moment after the touches.

use std::os::fd::AsFd;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use serde_json::{Value, json};

use super::Loader;
use super::book::Book;
use crate::chunk_map::{CHUNK_BYTES, Header};
use crate::digest::Digest;
use crate::failure::{self, Failure};
use crate::filled::Filled;
use crate::layer::{self, Layer};
use crate::request::Opening;
use crate::sys::{Errno, Result};
use crate::trace;

/// Touches of so long are written together; what the end of a worker may cost.
const PERIOD: Duration = Duration::from_millis(250);

impl Loader {
    /// Writes for ever.
    pub fn save_traces(&self) -> ! {
        loop {
            let mut book = self.book();
            while book.used.is_empty() {
                book = self.used.wait(book).unwrap_or_else(PoisonError::into_inner);
            }
            drop(book);
            // Not for anything to happen, but for more of the same.
            std::thread::sleep(PERIOD);
            let used = std::mem::take(&mut self.book().used);
            for index in used {
                self.save_use(index);
            }
        }
    }

    /// Has it written soon that chunks of a layer were used.
    pub fn note_use(&self, book: &mut Book, index: u32) {
        if book.used.is_empty() {
            self.used.notify_one();
        }
        book.used.insert(index);
    }

    /// Writes what is new of an open layer; returns the layer.
    fn save_use(&self, index: u32) -> Option<Arc<Layer>> {
        // Whoever closes the layer writes behind this, not at the same time.
        let _turn = self.saving.lock().unwrap_or_else(PoisonError::into_inner);
        let (layer, unsaved) = {
            let mut book = self.book();
            let open = book.open.get_mut(&index)?;
            (open.layer.clone(), open.trace.take_unsaved())
        };
        if let Err(errno) = layer.filled.save_uses() {
            self.log_failure("uses-unsaved", errno);
        }
        let Some(unsaved) = unsaved else { return Some(layer) };
        let saved = layer::directory(self.layers.as_fd(), &layer.digest)
            .and_then(|directory| trace::save(directory.as_fd(), layer.map.header.chunks, &unsaved));
        match saved {
            // Of a layer that was removed nothing needs to last.
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => {
                self.log_failure("trace-unsaved", errno);
                if let Some(open) = self.book().open.get_mut(&index) {
                    open.trace.give_back(&unsaved);
                }
            }
        }
        Some(layer)
    }

    /// Writes the end of a trace, durably: its layer is about to be closed.
    pub fn end_trace(&self, index: u32) {
        let Some(layer) = self.save_use(index) else { return };
        let synced =
            layer::directory(self.layers.as_fd(), &layer.digest).and_then(|directory| trace::sync(directory.as_fd()));
        match synced {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(errno) => self.log_failure("trace-unsaved", errno),
        }
    }

    /// The chunks in the order in which they were first asked for, and how much of the layer was ever.
    pub fn trace(&self, digest: &Digest, opening: Opening) -> std::result::Result<Value, Failure> {
        let file = |errno| failure::file(digest, trace::NAME, errno);
        let directory = layer::directory(self.layers.as_fd(), digest).map_err(file)?;
        let current = {
            let book = self.book();
            let index = book.by_digest.get(digest);
            index.and_then(|index| book.open.get(index)).map(|open| (open.layer.clone(), open.trace.order().to_vec()))
        };
        let (use_of, chunks) = match current {
            Some((layer, order)) => (Use::of(&layer.filled, layer.map.header.data_bytes), Some(order)),
            None => (Use::of_closed(directory.as_fd()).map_err(file)?, None),
        };
        let recorded = |name| trace::load(directory.as_fd(), name, use_of.chunks).map_err(file);
        let order = match (opening, chunks) {
            (Opening::Last, Some(order)) => order,
            (Opening::Last, None) => recorded(trace::NAME)?,
            (Opening::Before, _) => recorded(trace::BEFORE)?,
        };
        Ok(json!({
            "isCut": order.len() >= trace::MAX_CHUNKS,
            "chunks": order,
            "dataBytes": use_of.data_bytes,
            "touchedChunks": use_of.touched_chunks,
            "touchedBytes": use_of.touched_bytes,
            "presentBytes": use_of.present_bytes,
        }))
    }

    /// What the opening before this one has read.
    pub fn recorded(&self, layer: &Layer) -> std::result::Result<Vec<u32>, Failure> {
        layer::directory(self.layers.as_fd(), &layer.digest)
            .and_then(|directory| trace::load(directory.as_fd(), trace::BEFORE, Some(layer.map.header.chunks)))
            .map_err(|errno| failure::file(&layer.digest, trace::BEFORE, errno))
    }
}

/// What was ever read of a layer on this node, and what is here of it.
#[derive(Default)]
struct Use {
    /// Nothing when that is not known.
    chunks: Option<u32>,
    data_bytes: u64,
    touched_chunks: u32,
    touched_bytes: u64,
    present_bytes: u64,
}

impl Use {
    fn of(filled: &Filled, data_bytes: u64) -> Self {
        let mut found = Self { chunks: Some(filled.chunks()), data_bytes, ..Self::default() };
        for chunk in 0..filled.chunks() {
            let bytes = data_bytes.saturating_sub(Header::chunk_offset(chunk)).min(CHUNK_BYTES);
            if filled.is_touched(chunk) {
                found.touched_chunks += 1;
                found.touched_bytes += bytes;
            }
            if filled.may_be_there(chunk) {
                found.present_bytes += bytes;
            }
        }
        found
    }

    /// Nothing was read of a layer that was never opened.
    fn of_closed(directory: std::os::fd::BorrowedFd<'_>) -> Result<Self> {
        let filled = match Filled::existing(directory) {
            Err(Errno::NOENT) => return Ok(Self::default()),
            other => other?,
        };
        let data = rustix::fs::statat(directory, "data", rustix::fs::AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Self::of(&filled, data.st_size as u64))
    }
}
