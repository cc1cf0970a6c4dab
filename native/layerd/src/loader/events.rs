//! Events: from the kernel's question to the answer.

use std::os::fd::{BorrowedFd, RawFd};
use std::sync::{MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::fs::fstat;
use serde_json::json;

use super::Loader;
use super::book::{Book, Wait};
use super::plan::{self, Job};
use crate::chunk_map::CHUNK_BYTES;
use crate::failure::errno_name;
use crate::family;
use crate::family::shared::{Counter, Reader};
use crate::filled;
use crate::sys::fanotify::{self, Event};
use crate::sys::{Errno, Result, process};
use daemon::log::Level;

/// What an event may take beyond the time that the store has.
pub const MARGIN: Duration = Duration::from_secs(5);
/// After an event could not be read, for want of memory or descriptors: the group stays readable, so that nothing tells when there is more. Also the most
/// that a wait for progress takes.
const PAUSE: Duration = Duration::from_millis(100);

impl Loader {
    /// Takes events for ever.
    pub fn read_events(&self) -> ! {
        loop {
            let slot = self.free_slot();
            match self.shared.read_event(family::group(), slot) {
                Ok(Some(event)) => self.take(slot, event),
                // What is no question needs no answer.
                Ok(None) => self.release_slot(slot),
                Err(errno) => {
                    self.release_slot(slot);
                    if errno != Errno::INTR {
                        self.log.write(Level::Error, "events-unread", &json!({ "errno": errno_name(errno) }));
                        std::thread::sleep(PAUSE);
                    }
                }
            }
        }
    }

    fn free_slot(&self) -> u32 {
        let mut book = self.book();
        loop {
            if let Some(slot) = book.free_slots.pop() {
                return slot;
            }
            book = self.wait_for(&self.progress, book, PAUSE);
        }
    }

    fn release_slot(&self, slot: u32) {
        self.shared.clear_slot(slot);
        self.book().free_slots.push(slot);
    }

    /// A new event.
    fn take(&self, slot: u32, event: Event) {
        self.shared.count(Counter::Events, 1);
        let file = fstat(process::fixed(event.fd)).map(|stat| (stat.st_dev, stat.st_ino));
        let mut book = self.book();
        let index = file.ok().and_then(|file| book.by_file.get(&file).copied());
        let Some(index) = index else {
            self.log.write(Level::Error, "unknown-file", &json!({ "tid": event.tid }));
            return self.refuse(&mut book, slot, event.fd);
        };
        self.shared.set_slot_layer(slot, index);
        let descriptor: BorrowedFd<'static> = process::fixed(event.fd);
        let given = book.open.get(&index).map_or(Ok(()), |open| open.layer.give_data(descriptor));
        if let Err(errno) = given {
            self.log.write(Level::Error, "no-descriptor", &json!({ "errno": errno_name(errno) }));
        }
        if book.probes.get(&event.tid) == Some(&index) {
            book.probes.remove(&event.tid);
            return self.answer(&mut book, slot, event.fd, None);
        }
        self.begin(&mut book, slot, index, event);
    }

    /// An event that an earlier worker left.
    pub fn take_again(&self, slot: u32) {
        let Some(event) = self.shared.event(slot) else { return self.release_slot(slot) };
        self.shared.count(Counter::Recovered, 1);
        let mut book = self.book();
        match self.shared.slot_layer(slot).filter(|index| book.open.contains_key(index)) {
            Some(index) => self.begin(&mut book, slot, index, event),
            None => self.refuse(&mut book, slot, event.fd),
        }
    }

    /// Sees what is missing, and answers at once when nothing is.
    fn begin(&self, book: &mut MutexGuard<'_, Book>, slot: u32, index: u32, event: Event) {
        let now = filled::now();
        let deadline = Instant::now() + self.options.store_wait;
        let Some(open) = book.open.get_mut(&index) else { return self.refuse(book, slot, event.fd) };
        let layer = open.layer.clone();
        let data_bytes = layer.map.header.data_bytes;
        let (offset, count) = event.range.unwrap_or((0, u64::MAX));
        self.shared.count(Counter::AskedBytes, count.min(data_bytes.saturating_sub(offset)));
        if offset >= data_bytes {
            let pass = Reader { tid: event.tid, layer: index, first: u32::MAX, last: 0 };
            return self.answer(book, slot, event.fd, Some(pass));
        }
        let end = offset.saturating_add(count.max(1)).min(data_bytes);
        let (first, last) = ((offset / CHUNK_BYTES) as u32, ((end - 1) / CHUNK_BYTES) as u32);
        for chunk in first..=last {
            if layer.map.is_hole(chunk) {
                continue;
            }
            layer.filled.touch(chunk, now);
            if open.trace.note(chunk) {
                self.shared.count(Counter::TouchedBytes, layer.map.header.plain_bytes(chunk).into());
            }
        }
        let ahead = open.streams.ahead(first, last);
        self.note_use(book, index);
        let ticket = book.next_ticket;
        book.next_ticket += 1;
        let mut missing = 0;
        let mut fetch = Vec::new();
        for chunk in (first..=last).filter(|chunk| !layer.is_readable(*chunk)) {
            missing += 1;
            let waiting = book.busy.entry((index, chunk)).or_insert_with(|| {
                fetch.push(chunk);
                Vec::new()
            });
            waiting.push((slot, ticket));
        }
        if missing == 0 {
            let pass = Reader { tid: event.tid, layer: index, first, last };
            self.answer(book, slot, event.fd, Some(pass));
        } else {
            let wait = Wait {
                fd: event.fd,
                tid: event.tid,
                layer: index,
                first,
                last,
                missing,
                deadline: deadline + MARGIN,
                ticket,
            };
            if book.expiry.is_none() {
                // Of those that come later the time is over later.
                book.expiry = Some(wait.deadline);
                self.asked.notify_one();
            }
            book.waits.insert(slot, wait);
        }
        let end = last.saturating_add(1).saturating_add(ahead).min(layer.map.header.chunks);
        let is_due = ahead > 0 && (last + 1..end).take(1 + ahead as usize / 2).any(|chunk| !layer.is_readable(chunk));
        if is_due {
            for chunk in (last + 1..end).filter(|chunk| !layer.is_readable(*chunk)) {
                book.busy.entry((index, chunk)).or_insert_with(|| {
                    fetch.push(chunk);
                    Vec::new()
                });
            }
        }
        if fetch.is_empty() {
            return;
        }
        match layer.places.of(fetch.iter().copied()) {
            Ok(places) => {
                for chunks in plan::group(places) {
                    let layer = layer.clone();
                    book.demand.push_back(Job { index, layer, chunks, deadline, is_prefetch: false });
                    self.work.notify_one();
                }
            }
            Err(errno) => {
                let layer = layer.digest.to_string();
                self.log.write(
                    Level::Error,
                    "chunk-map-unread",
                    &json!({ "layer": layer, "errno": errno_name(errno) }),
                );
                for chunk in fetch {
                    self.finish(book, (index, chunk), false);
                }
            }
        }
    }

    /// Work on a chunk is over: it is there, or it cannot be had.
    pub fn finish(&self, book: &mut Book, key: super::book::ChunkKey, is_there: bool) {
        for (slot, ticket) in book.busy.remove(&key).unwrap_or_default() {
            let Some(wait) = book.waits.get_mut(&slot).filter(|wait| wait.ticket == ticket) else { continue };
            wait.missing -= 1;
            if wait.missing == 0 || !is_there {
                let Some(wait) = book.waits.remove(&slot) else { continue };
                let pass = Reader { tid: wait.tid, layer: wait.layer, first: wait.first, last: wait.last };
                match is_there {
                    true => self.answer(book, slot, wait.fd, Some(pass)),
                    false => self.refuse(book, slot, wait.fd),
                }
            }
        }
        self.progress.notify_all();
    }

    /// Fails events when their time is over, for ever.
    pub fn expire(&self) -> ! {
        let mut book = self.book();
        loop {
            self.fail_late(&mut book);
            book.expiry = book.waits.values().map(|wait| wait.deadline).min();
            book = match book.expiry {
                Some(at) => self.wait_for(&self.asked, book, at.saturating_duration_since(Instant::now())),
                None => self.asked.wait(book).unwrap_or_else(PoisonError::into_inner),
            };
        }
    }

    /// Fails events whose time is over. Their chunks may still come, for whoever asks next.
    fn fail_late(&self, book: &mut Book) {
        let now = Instant::now();
        let over: Vec<u32> =
            book.waits.iter().filter(|(_, wait)| wait.deadline <= now).map(|(slot, _)| *slot).collect();
        for slot in over {
            if let Some(wait) = book.waits.remove(&slot) {
                let layer = book.open.get(&wait.layer).map(|open| open.layer.digest.to_string());
                self.log.write(Level::Error, "read-expired", &json!({ "layer": layer, "chunk": wait.first }));
                self.refuse(book, slot, wait.fd);
            }
        }
    }

    /// Chunks that wait to be fetched ahead.
    pub fn prefetch_waiting(&self) -> usize {
        self.book().prefetch.len()
    }

    /// Events without an answer.
    pub fn waiting(&self) -> usize {
        self.book().waits.len()
    }

    /// Has the read fail with EIO.
    fn refuse(&self, book: &mut Book, slot: u32, fd: RawFd) {
        self.shared.count(Counter::Denied, 1);
        self.answer(book, slot, fd, None);
    }

    /// Answers an event and makes its slot free. Without a pass the read fails.
    fn answer(&self, book: &mut Book, slot: u32, fd: RawFd, pass: Option<Reader>) {
        let is_allowed = pass.is_some();
        if let Some(pass) = pass {
            book.readers.pass(&self.shared, pass);
        }
        if let Err(errno) = respond(fd, is_allowed) {
            self.log.write(Level::Error, "unanswered", &json!({ "errno": errno_name(errno) }));
        }
        // In this order: the number means something else once it is closed.
        self.shared.clear_slot(slot);
        process::close(fd);
        book.free_slots.push(slot);
        self.progress.notify_all();
    }
}

/// An event that an earlier worker has answered just before its end is not there any more.
fn respond(fd: RawFd, is_allowed: bool) -> Result<()> {
    match fanotify::respond(family::group(), fd, is_allowed) {
        Err(Errno::NOENT) => Ok(()),
        other => other,
    }
}
