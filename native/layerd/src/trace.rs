//! Which chunks of a layer were read since it was opened, in the order of their first touch: `layers/<hex>/trace`, and `trace.before` of the opening before.
//!
//! A header (`DSECTRAC`, version 1, number of chunks of the layer), then a word for each chunk. The file only grows: whoever reads it takes whole words, leaves out
//! what cannot be, and so needs no other mark of its end. It is a hint, and losing its last moments does no harm.

use std::os::fd::{AsFd, BorrowedFd};

use rustix::fs::{AtFlags, Mode, OFlags, fsync, openat, renameat, statat};
use rustix::io::{pread, pwrite};

use crate::chunk_map;
use crate::layer::READ_ONLY;
use crate::sys::{Errno, Result};

pub const NAME: &str = "trace";
pub const BEFORE: &str = "trace.before";
/// Chunks that a trace names: 16 GiB of data.
pub const MAX_CHUNKS: usize = 65_536;

const MAGIC: &[u8; 8] = b"DSECTRAC";
const VERSION: u32 = 1;
const HEADER_BYTES: usize = 16;

/// The trace of an open layer.
pub struct Trace {
    seen: Vec<u64>,
    order: Vec<u32>,
    /// How many of them are in the file.
    saved: usize,
}

/// What is to be written: words behind those of before.
pub struct Unsaved {
    pub from: usize,
    pub chunks: Vec<u32>,
}

impl Trace {
    /// A trace that goes on after these.
    pub fn new(layer_chunks: u32, order: Vec<u32>) -> Self {
        let mut seen = vec![0; layer_chunks.div_ceil(64) as usize];
        order.iter().for_each(|chunk| seen[*chunk as usize / 64] |= 1 << (chunk % 64));
        Self { seen, saved: order.len(), order }
    }

    /// Notes a touch; whether it is the first.
    pub fn note(&mut self, chunk: u32) -> bool {
        let (word, bit) = (&mut self.seen[chunk as usize / 64], 1 << (chunk % 64));
        let is_first = *word & bit == 0;
        *word |= bit;
        if is_first && self.order.len() < MAX_CHUNKS {
            self.order.push(chunk);
        }
        is_first
    }

    pub fn order(&self) -> &[u32] {
        &self.order
    }

    /// Takes what is not in the file yet.
    pub fn take_unsaved(&mut self) -> Option<Unsaved> {
        let from = self.saved;
        self.saved = self.order.len();
        (from < self.saved).then(|| Unsaved { from, chunks: self.order[from..].to_vec() })
    }

    /// Takes back what could not be written: nothing may be written behind it before it is.
    pub fn give_back(&mut self, unsaved: &Unsaved) {
        self.saved = self.saved.min(unsaved.from);
    }
}

/// Begins the trace of a new opening: what is there becomes that of the one before.
pub fn begin(directory: BorrowedFd<'_>) -> Result<()> {
    match statat(directory, NAME, AtFlags::SYMLINK_NOFOLLOW) {
        Ok(stat) if stat.st_size as usize > HEADER_BYTES => renameat(directory, NAME, directory, BEFORE),
        Ok(_) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

/// Reads a trace; an empty one where there is none, or one of a layer of another size. Without a size the trace's own word is taken.
pub fn load(directory: BorrowedFd<'_>, name: &str, layer_chunks: Option<u32>) -> Result<Vec<u32>> {
    let file = match openat(directory, name, READ_ONLY, Mode::empty()) {
        Err(Errno::NOENT) => return Ok(Vec::new()),
        other => other?,
    };
    let mut bytes = vec![0; HEADER_BYTES + 4 * MAX_CHUNKS];
    let mut length = 0;
    while length < bytes.len() {
        match pread(&file, &mut bytes[length..], length as u64) {
            Ok(0) => break,
            Ok(read) => length += read,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(parse(&bytes[..length], layer_chunks))
}

/// The chunks that a file names, each once.
pub fn parse(bytes: &[u8], layer_chunks: Option<u32>) -> Vec<u32> {
    let Some((found, words)) = bytes.split_first_chunk::<HEADER_BYTES>() else { return Vec::new() };
    let said = u32::from_le_bytes([found[12], found[13], found[14], found[15]]).min(chunk_map::MAX_CHUNKS);
    let layer_chunks = layer_chunks.unwrap_or(said);
    if *found != header(layer_chunks) {
        return Vec::new();
    }
    let mut trace = Trace::new(layer_chunks, Vec::new());
    for word in words.as_chunks::<4>().0 {
        let chunk = u32::from_le_bytes(*word);
        if chunk < layer_chunks {
            trace.note(chunk);
        }
    }
    trace.order
}

fn header(layer_chunks: u32) -> [u8; HEADER_BYTES] {
    let mut bytes = [0; HEADER_BYTES];
    bytes[..8].copy_from_slice(MAGIC);
    bytes[8..12].copy_from_slice(&VERSION.to_le_bytes());
    bytes[12..].copy_from_slice(&layer_chunks.to_le_bytes());
    bytes
}

/// Writes what is new.
pub fn save(directory: BorrowedFd<'_>, layer_chunks: u32, unsaved: &Unsaved) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let flags = if unsaved.from == 0 { flags | OFlags::TRUNC } else { flags };
    let file = openat(directory, NAME, flags, Mode::from_raw_mode(0o600))?;
    let mut bytes = if unsaved.from == 0 { header(layer_chunks).to_vec() } else { Vec::new() };
    let at = if unsaved.from == 0 { 0 } else { HEADER_BYTES + 4 * unsaved.from };
    unsaved.chunks.iter().for_each(|chunk| bytes.extend(chunk.to_le_bytes()));
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(&file, &bytes[done..], (at + done) as u64) {
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

/// Sees to it that the trace outlives the machine.
pub fn sync(directory: BorrowedFd<'_>) -> Result<()> {
    match openat(directory, NAME, READ_ONLY, Mode::empty()) {
        Ok(file) => fsync(file.as_fd()).and_then(|()| fsync(directory)),
        Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(errno),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;

    #[test]
    fn what_is_written_piece_by_piece_is_read_as_one() {
        let path = std::env::temp_dir().join(format!("dsec-trace-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("directory");
        let directory = openat(CWD, &path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("opened");
        let at = directory.as_fd();
        assert_eq!(load(at, NAME, Some(100)), Ok(vec![]));
        begin(at).expect("begun");
        let mut trace = Trace::new(100, Vec::new());
        assert!(trace.note(7) && trace.note(3) && !trace.note(7));
        save(at, 100, &trace.take_unsaved().expect("two")).expect("saved");
        assert!(trace.take_unsaved().is_none() && trace.note(99));
        let unsaved = trace.take_unsaved().expect("one");
        assert!(trace.note(50));
        trace.give_back(&unsaved);
        assert_eq!(trace.take_unsaved().expect("both").chunks, [99, 50], "what was not written comes first");
        trace.give_back(&unsaved);
        save(at, 100, &trace.take_unsaved().expect("both")).expect("saved");
        assert_eq!(load(at, NAME, Some(100)), Ok(vec![7, 3, 99, 50]));
        assert_eq!(load(at, NAME, Some(101)), Ok(vec![]), "another layer");
        let mut again = Trace::new(100, load(at, NAME, None).expect("read"));
        assert!(!again.note(3) && again.take_unsaved().is_none(), "another worker goes on");
        sync(at).expect("synced");
        begin(at).expect("begun");
        assert_eq!((load(at, NAME, Some(100)), load(at, BEFORE, Some(100))), (Ok(vec![]), Ok(vec![7, 3, 99, 50])));
        begin(at).expect("begun");
        assert_eq!(load(at, BEFORE, Some(100)), Ok(vec![7, 3, 99, 50]), "an opening that read nothing");
        std::fs::remove_dir_all(&path).expect("removed");
    }

    #[test]
    fn what_cannot_be_is_left_out() {
        let words =
            |words: &[u32]| [&header(10)[..], &words.iter().flat_map(|w| w.to_le_bytes()).collect::<Vec<_>>()].concat();
        assert_eq!(parse(&words(&[9, 10, u32::MAX, 9, 1]), Some(10)), [9, 1]);
        let cut = words(&[5, 6]);
        assert_eq!(parse(&cut[..cut.len() - 1], Some(10)), [5]);
        for wrong in [&[][..], &cut[..15], &[0; 64]] {
            assert!(parse(wrong, Some(10)).is_empty());
        }
    }

    #[test]
    fn a_trace_has_a_bound() {
        let mut trace = Trace::new(MAX_CHUNKS as u32 + 10, Vec::new());
        assert!((0..MAX_CHUNKS as u32 + 10).all(|chunk| trace.note(chunk)));
        assert_eq!(trace.order().len(), MAX_CHUNKS);
    }
}
