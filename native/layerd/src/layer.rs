//! The files of one layer on this node.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::OnceLock;

use rustix::fs::{AtFlags, FallocateFlags, Mode, OFlags, Stat, fallocate, fstat, ftruncate, openat, renameat, statat};
use rustix::io::{pread, pwrite, read};

use crate::chunk_map::{CHUNK_BYTES, ChunkMap, ENTRY_BYTES, HEADER_BYTES, Header, MAX_CHUNKS, PACK_BYTES};
use crate::digest::{Digest, Hasher};
use crate::failure::{self, Failure};
use crate::family::shared::Marked;
use crate::filled::{Boot, Filled, Of};
use crate::places::Places;
use crate::sys::{Errno, Result};

pub const MAX_MAP_BYTES: u64 = HEADER_BYTES as u64 + MAX_CHUNKS as u64 * (PACK_BYTES + ENTRY_BYTES) as u64;
/// The file with the chunk map.
pub const MAP: &str = "chunks";
/// What is no file must neither lead elsewhere nor make anybody wait.
pub const READ_ONLY: OFlags = OFlags::RDONLY.union(OFlags::NOFOLLOW).union(OFlags::NONBLOCK).union(OFlags::CLOEXEC);

pub struct Layer {
    pub digest: Digest,
    /// What no other layout changes; packs are of `places`.
    pub map: ChunkMap,
    pub filled: Filled,
    pub marked: Marked,
    pub places: Places,
    /// `data`, by a descriptor that raises no events.
    data: OnceLock<OwnedFd>,
}

/// Opens the directory of a layer.
pub fn directory(layers: BorrowedFd<'_>, digest: &Digest) -> Result<OwnedFd> {
    openat(layers, digest.hex(), READ_ONLY | OFlags::DIRECTORY, Mode::empty())
}

impl Layer {
    /// Opens the files, makes `data` and `filled` where they are missing, and checks that map and metadata are what the layer is named after.
    pub fn open(directory: BorrowedFd<'_>, digest: &Digest, boot: &Boot) -> std::result::Result<Self, Failure> {
        let file = |name: &'static str| move |errno| failure::file(digest, name, errno);
        let chunks = openat(directory, MAP, READ_ONLY, Mode::empty()).map_err(file("chunks"))?;
        let length = fstat(&chunks).map_err(file("chunks"))?.st_size as u64;
        if length > MAX_MAP_BYTES {
            return Err(failure::corrupt(digest, "the chunk map is too long, that"));
        }
        let mut bytes = vec![0; length as usize];
        read_at(&chunks, 0, &mut bytes).map_err(file("chunks"))?;
        let mut map = ChunkMap::parse(&bytes)
            .map_err(|why| failure::corrupt(digest, format_args!("something {why}: the chunk map")))?;
        drop(bytes);
        let stat = data_file(directory, &map.header).map_err(file("data"))?;
        if stat.st_size as u64 != map.header.data_bytes {
            return Err(failure::corrupt(digest, "the length differs from what the chunk map says: the file data"));
        }
        let of = Of { chunks: map.header.chunks, inode: stat.st_ino, has_content: stat.st_blocks > 0, boot };
        let filled = Filled::open(directory, &of).map_err(file(crate::filled::NAME))?;
        if !filled.is_verified() {
            let metadata = metadata_digest(directory).map_err(file("rootfs.erofs"))?;
            if layer_form::layer_name(&metadata, &map.chunks_digest) != *digest {
                return Err(failure::corrupt(digest, "metadata and chunk map are not those"));
            }
            filled.set_verified().map_err(file(crate::filled::NAME))?;
        }
        let marked = Marked { digest: *digest, device: stat.st_dev, inode: stat.st_ino };
        let places = Places::new(map.header, std::mem::take(&mut map.packs), chunks);
        Ok(Self { digest: *digest, map, filled, marked, places, data: OnceLock::new() })
    }

    /// Whether nothing needs to be done before a chunk can be read.
    pub fn is_readable(&self, chunk: u32) -> bool {
        self.map.is_hole(chunk) || self.filled.is_there(chunk)
    }

    pub fn has_data(&self) -> bool {
        self.data.get().is_some()
    }

    /// Takes a descriptor that an event brought.
    pub fn give_data(&self, fd: BorrowedFd<'_>) -> Result<()> {
        if !self.has_data() {
            // Another thread may have been first; then this copy closes again.
            let _ = self.data.set(rustix::io::fcntl_dupfd_cloexec(fd, 0)?);
        }
        Ok(())
    }

    pub fn data(&self) -> Result<BorrowedFd<'_>> {
        self.data.get().map(AsFd::as_fd).ok_or(Errno::BADF)
    }

    pub fn write_chunk(&self, chunk: u32, bytes: &[u8]) -> Result<()> {
        let (data, start) = (self.data()?, Header::chunk_offset(chunk));
        let mut done = 0;
        while done < bytes.len() {
            match pwrite(data, &bytes[done..], start + done as u64) {
                Ok(0) => return Err(Errno::NOSPC),
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    /// The bytes of a chunk that is there. They may be taken away while they are read: whoever gets them checks.
    pub fn read_chunk(&self, chunk: u32) -> Option<Vec<u8>> {
        if chunk >= self.map.header.chunks || !self.filled.is_there(chunk) {
            return None;
        }
        let mut bytes = vec![0; self.map.header.plain_bytes(chunk) as usize];
        read_at(self.data().ok()?, Header::chunk_offset(chunk), &mut bytes).ok()?;
        self.filled.is_there(chunk).then_some(bytes)
    }

    /// Whether what is on the disk is the chunk.
    pub fn holds_chunk(&self, chunk: u32, digest: &Digest) -> Result<bool> {
        let mut bytes = vec![0; self.map.header.plain_bytes(chunk) as usize];
        read_at(self.data()?, Header::chunk_offset(chunk), &mut bytes)?;
        Ok(Digest::of(&bytes) == *digest)
    }

    /// Takes chunks that lie one behind the other from the disk and from memory.
    pub fn punch(&self, chunks: std::ops::RangeInclusive<u32>) -> Result<()> {
        punch(self.data()?, &chunks)
    }

    /// Bytes of chunks that are there, or may be.
    pub fn present_bytes(&self) -> u64 {
        self.bytes_of(|chunk| self.filled.may_be_there(chunk))
    }

    /// Bytes of the chunks that this is true of.
    pub fn bytes_of(&self, is_meant: impl Fn(u32) -> bool) -> u64 {
        let chunks = (0..self.map.header.chunks).filter(|chunk| is_meant(*chunk));
        chunks.map(|chunk| u64::from(self.map.header.plain_bytes(chunk))).sum()
    }
}

/// Takes chunks from the disk and from memory. `data` ends with its last block, so more may be named than there is.
pub fn punch(data: BorrowedFd<'_>, chunks: &std::ops::RangeInclusive<u32>) -> Result<()> {
    let start = Header::chunk_offset(*chunks.start());
    let length = Header::chunk_offset(*chunks.end()) + CHUNK_BYTES - start;
    fallocate(data, FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE, start, length)?;
    // What the page cache still holds is zeros by now; it is of no use.
    rustix::fs::fadvise(data, start, std::num::NonZero::new(length), rustix::fs::Advice::DontNeed)
}

/// Finds `data`, or makes it. One that is there is never opened: it may be marked, and then whoever opens it raises events.
fn data_file(directory: BorrowedFd<'_>, header: &Header) -> Result<Stat> {
    const NEW: &str = "data.new";
    match statat(directory, "data", AtFlags::SYMLINK_NOFOLLOW) {
        Err(Errno::NOENT) => {}
        other => return other,
    }
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(directory, NEW, flags, Mode::from_raw_mode(0o600))?;
    ftruncate(&file, header.data_bytes)?;
    renameat(directory, NEW, directory, "data")?;
    fstat(&file)
}

fn metadata_digest(directory: BorrowedFd<'_>) -> Result<Digest> {
    let metadata = openat(directory, "rootfs.erofs", READ_ONLY, Mode::empty())?;
    let mut hasher = Hasher::default();
    let mut buffer = vec![0; 1 << 16];
    loop {
        match read(&metadata, &mut buffer) {
            Ok(0) => break,
            Ok(length) => hasher.update(&buffer[..length]),
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(hasher.finish())
}

pub fn read_at(file: impl AsFd, offset: u64, bytes: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(&file, &mut bytes[done..], offset + done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}
