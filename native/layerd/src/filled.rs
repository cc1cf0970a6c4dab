//! `layers/<hex>/filled`: which chunks of `data` are there. It is trusted within one boot only, since nobody knows in which order pages reached the disk
//! before a crash; after a reboot, what it says is a guess that the digests must confirm.
//!
//! It is written through a descriptor, not a mapping: where a copy-on-write file system is full, writing to a mapped page ends the process. The file is
//! allocated when it is made, and written in place (`FS_NOCOW_FL`), so that a full disk can be made less full.
//!
//! A header of one page, one bit for each chunk that is there, one bit for each that may be, and a word for each about its use: whether it was ever read,
//! and when last. The latter order eviction, and are right about that alone: they outlive workers, and after a reboot they are as old as the disk has them.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::atomic::Ordering::{AcqRel, Acquire, Relaxed, Release};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64};

use rustix::fs::{FallocateFlags, IFlags, Mode, OFlags, fallocate, fstat, ftruncate, ioctl_setflags, openat};
use rustix::io::{pread, pwrite};

use crate::chunk_map::MAX_CHUNKS;
use crate::sys::{Errno, Result};

pub const NAME: &str = "filled";

const HEADER_BYTES: usize = 4_096;
const MAGIC: [u8; 8] = *b"DSECFIL2";
const CHUNKS: usize = 8;
/// Whether the chunk map and the metadata are known to be those that the layer is named after.
const VERIFIED: usize = 12;
const INODE: usize = 16;
/// Whether somebody may have it mounted.
const OPEN: usize = 24;
const BOOT: usize = 32;
const BOOT_BYTES: usize = 36;

/// Names the time since the machine started.
pub type Boot = [u8; BOOT_BYTES];

pub fn boot() -> std::io::Result<Boot> {
    let text = std::fs::read("/proc/sys/kernel/random/boot_id")?;
    text.first_chunk().copied().ok_or_else(|| std::io::Error::other("boot_id is short"))
}

/// When the clock of uses begins, in seconds since 1970: 1 January 2026.
const EPOCH: u64 = 1_767_225_600;

/// The clock of uses: seconds, never 0, for 68 years.
pub fn now() -> u32 {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(0, |since| since.as_secs());
    (now.saturating_sub(EPOCH) as u32).clamp(1, u32::MAX >> 1)
}

/// What the bits are about.
pub struct Of<'a> {
    pub chunks: u32,
    /// The inode of `data`.
    pub inode: u64,
    /// Whether `data` had anything in it before.
    pub has_content: bool,
    pub boot: &'a Boot,
}

pub struct Filled {
    file: OwnedFd,
    chunks: u32,
    boot: Boot,
    is_verified: AtomicBool,
    is_open: AtomicBool,
    there: Vec<AtomicU64>,
    maybe: Vec<AtomicU64>,
    used: Vec<AtomicU32>,
    /// Whether times of use are not in the file yet.
    has_unsaved_uses: AtomicBool,
}

/// How many words hold a bit for each chunk.
fn words(chunks: u32) -> usize {
    chunks.div_ceil(64) as usize
}

fn uses_at(chunks: u32) -> usize {
    HEADER_BYTES + 16 * words(chunks)
}

fn length(chunks: u32) -> usize {
    uses_at(chunks) + 4 * chunks as usize
}

/// The word and the bit of a chunk.
fn place(chunk: u32) -> (usize, u64) {
    (chunk as usize / 64, 1 << (chunk % 64))
}

impl Filled {
    /// Opens the file in the layer's directory, or makes it.
    pub fn open(directory: BorrowedFd<'_>, of: &Of<'_>) -> Result<Self> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, NAME, flags, Mode::from_raw_mode(0o600))?;
        let length = length(of.chunks);
        if u64::try_from(fstat(&file)?.st_size) != Ok(length as u64) {
            ftruncate(&file, 0)?;
            // Only some file systems know this, and only of files without content.
            let _ = ioctl_setflags(&file, IFlags::NOCOW);
            fallocate(&file, FallocateFlags::empty(), 0, length as u64)?;
        }
        let mut bytes = vec![0; length];
        read_all(&file, &mut bytes)?;
        let is_of_this =
            bytes.starts_with(&MAGIC) && word(&bytes, CHUNKS) == of.chunks && long(&bytes, INODE) == of.inode;
        if is_of_this && bytes[BOOT..].starts_with(of.boot) {
            return Ok(Self::parse(file, &bytes, of.chunks));
        }
        for at in (HEADER_BYTES..HEADER_BYTES + 8 * words(of.chunks)).step_by(8) {
            let behind = at + 8 * words(of.chunks);
            let guess = match (is_of_this, of.has_content) {
                (true, _) => long(&bytes, at) | long(&bytes, behind),
                (false, true) => u64::MAX,
                (false, false) => 0,
            };
            bytes[at..at + 8].fill(0);
            bytes[behind..behind + 8].copy_from_slice(&guess.to_le_bytes());
        }
        if !is_of_this {
            bytes[VERIFIED..VERIFIED + 4].fill(0);
            bytes[uses_at(of.chunks)..].fill(0);
        }
        bytes[OPEN..OPEN + 4].fill(0);
        bytes[CHUNKS..CHUNKS + 4].copy_from_slice(&of.chunks.to_le_bytes());
        bytes[INODE..INODE + 8].copy_from_slice(&of.inode.to_le_bytes());
        bytes[BOOT..BOOT + BOOT_BYTES].copy_from_slice(of.boot);
        // It begins as such a file only once the rest is there: an end in between loses guesses, and trusts nothing.
        bytes[..8].fill(0);
        write_all(&file, 0, &bytes)?;
        bytes[..8].copy_from_slice(&MAGIC);
        write_all(&file, 0, &MAGIC)?;
        Ok(Self::parse(file, &bytes, of.chunks))
    }

    /// Opens the file only if it is there and whole.
    pub fn existing(directory: BorrowedFd<'_>) -> Result<Self> {
        let file = openat(directory, NAME, OFlags::RDWR | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = usize::try_from(fstat(&file)?.st_size).map_err(|_| Errno::INVAL)?;
        if !(HEADER_BYTES..=length(MAX_CHUNKS)).contains(&found) {
            return Err(Errno::INVAL);
        }
        let mut bytes = vec![0; found];
        read_all(&file, &mut bytes)?;
        let chunks = word(&bytes, CHUNKS);
        if !bytes.starts_with(&MAGIC) || chunks > MAX_CHUNKS || found != length(chunks) {
            return Err(Errno::INVAL);
        }
        Ok(Self::parse(file, &bytes, chunks))
    }

    fn parse(file: OwnedFd, bytes: &[u8], chunks: u32) -> Self {
        let bits = |from: usize| (0..words(chunks)).map(|n| AtomicU64::new(long(bytes, from + 8 * n))).collect();
        let mut boot = [0; BOOT_BYTES];
        boot.copy_from_slice(&bytes[BOOT..BOOT + BOOT_BYTES]);
        Self {
            file,
            chunks,
            boot,
            is_verified: AtomicBool::new(word(bytes, VERIFIED) != 0),
            is_open: AtomicBool::new(word(bytes, OPEN) != 0),
            there: bits(HEADER_BYTES),
            maybe: bits(HEADER_BYTES + 8 * words(chunks)),
            used: (0..chunks as usize).map(|n| AtomicU32::new(word(bytes, uses_at(chunks) + 4 * n))).collect(),
            has_unsaved_uses: AtomicBool::new(false),
        }
    }

    pub fn is_of_boot(&self, boot: &Boot) -> bool {
        self.boot == *boot
    }

    pub fn chunks(&self) -> u32 {
        self.chunks
    }

    /// Notes that a chunk is read.
    pub fn touch(&self, chunk: u32, now: u32) {
        self.set_use(chunk, now << 1 | 1);
    }

    /// Notes that a chunk was brought: it is not cold, even if nobody has read it yet.
    pub fn set_expected(&self, chunk: u32, now: u32) {
        self.set_use(chunk, now << 1 | u32::from(self.is_touched(chunk)));
    }

    fn set_use(&self, chunk: u32, word: u32) {
        if self.used[chunk as usize].swap(word, Relaxed) != word {
            self.has_unsaved_uses.store(true, Release);
        }
    }

    /// Whether the chunk was ever read.
    pub fn is_touched(&self, chunk: u32) -> bool {
        self.used[chunk as usize].load(Relaxed) & 1 != 0
    }

    /// When the chunk was last read or brought; 0: never.
    pub fn used_at(&self, chunk: u32) -> u32 {
        self.used[chunk as usize].load(Relaxed) >> 1
    }

    /// Writes down when chunks were used, as far as that has changed.
    pub fn save_uses(&self) -> Result<()> {
        if !self.has_unsaved_uses.swap(false, AcqRel) {
            return Ok(());
        }
        let bytes: Vec<u8> = self.used.iter().flat_map(|word| word.load(Relaxed).to_le_bytes()).collect();
        // What fails is tried again with what comes next.
        write_all(&self.file, uses_at(self.chunks), &bytes).inspect_err(|_| self.has_unsaved_uses.store(true, Release))
    }

    /// Whether the chunk is on the disk, or may be, as it is for a boot that has not looked yet.
    pub fn may_be_there(&self, chunk: u32) -> bool {
        let (word, bit) = place(chunk);
        (self.there[word].load(Acquire) | self.maybe[word].load(Acquire)) & bit != 0
    }

    pub fn is_there(&self, chunk: u32) -> bool {
        let (word, bit) = place(chunk);
        self.there[word].load(Acquire) & bit != 0
    }

    /// The bytes are there. Callers do one thing at a time with the bits of a file.
    pub fn set(&self, chunk: u32) {
        let (word, bit) = place(chunk);
        let now = self.there[word].fetch_or(bit, AcqRel) | bit;
        // When this fails the next worker brings the chunk once more.
        let _ = self.write_there(word, now);
    }

    /// Forgets that chunks are there, or may be; when that cannot be written down, they are not to be taken away.
    pub fn forget(&self, chunks: impl IntoIterator<Item = u32> + Clone) -> Result<()> {
        let mut words: Vec<usize> = chunks.clone().into_iter().map(|chunk| place(chunk).0).collect();
        words.sort_unstable();
        words.dedup();
        for word in words {
            let mine = chunks.clone().into_iter().map(place).filter(|(at, _)| *at == word);
            let mask = mine.fold(u64::MAX, |mask, (_, bit)| mask & !bit);
            self.write_there(word, self.there[word].load(Acquire) & mask)?;
            self.write_maybe(word, self.maybe[word].load(Acquire) & mask)?;
            self.there[word].fetch_and(mask, AcqRel);
            self.maybe[word].fetch_and(mask, AcqRel);
        }
        Ok(())
    }

    /// Whether the chunk may be there, which is asked once.
    pub fn take_guess(&self, chunk: u32) -> bool {
        let (word, bit) = place(chunk);
        let before = self.maybe[word].fetch_and(!bit, AcqRel);
        before & bit != 0
    }

    fn write_there(&self, word: usize, bits: u64) -> Result<()> {
        write_all(&self.file, HEADER_BYTES + 8 * word, &bits.to_le_bytes())
    }

    fn write_maybe(&self, word: usize, bits: u64) -> Result<()> {
        write_all(&self.file, HEADER_BYTES + 8 * (words(self.chunks) + word), &bits.to_le_bytes())
    }

    pub fn is_verified(&self) -> bool {
        self.is_verified.load(Acquire)
    }

    pub fn set_verified(&self) -> Result<()> {
        write_all(&self.file, VERIFIED, &1_u32.to_le_bytes())?;
        self.is_verified.store(true, Release);
        Ok(())
    }

    pub fn is_open(&self) -> bool {
        self.is_open.load(Acquire)
    }

    pub fn set_open(&self, is_open: bool) -> Result<()> {
        write_all(&self.file, OPEN, &u32::from(is_open).to_le_bytes())?;
        self.is_open.store(is_open, Release);
        Ok(())
    }
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

fn read_all(file: &OwnedFd, bytes: &mut [u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pread(file, &mut bytes[done..], done as u64) {
            Ok(0) => return Err(Errno::IO),
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

fn write_all(file: &OwnedFd, at: usize, bytes: &[u8]) -> Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match pwrite(file, &bytes[done..], (at + done) as u64) {
            Ok(length) => done += length,
            Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::CWD;
    use std::os::fd::AsFd;

    #[test]
    fn bits_are_trusted_within_one_boot_only() {
        let path = std::env::temp_dir().join(format!("dsec-filled-{}", std::process::id()));
        std::fs::create_dir_all(&path).expect("directory");
        let directory = openat(CWD, &path, OFlags::DIRECTORY | OFlags::RDONLY, Mode::empty()).expect("opened");
        let open = |boot: u8, inode, has_content| {
            let of = Of { chunks: 100, inode, has_content, boot: &[boot; BOOT_BYTES] };
            Filled::open(directory.as_fd(), &of).expect("filled")
        };
        let first = open(1, 5, false);
        first.set(3);
        first.set(99);
        first.forget([99]).expect("written");
        first.touch(3, 7);
        first.set_expected(98, 8);
        first.save_uses().expect("written");
        first.set_verified().expect("written");
        assert!(!first.take_guess(3));
        let same = open(1, 5, true);
        assert!(same.is_there(3) && !same.is_there(99) && same.is_verified());
        assert_eq!((same.used_at(3), same.is_touched(3)), (7, true));
        assert_eq!((same.used_at(98), same.is_touched(98)), (8, false));
        let next = open(2, 5, true);
        assert!(next.may_be_there(3) && !next.may_be_there(99) && next.is_touched(3));
        assert!(!next.is_there(3) && next.is_verified());
        assert!(next.take_guess(3) && !next.take_guess(3) && !next.take_guess(4));
        let other = open(2, 6, true);
        assert!(other.take_guess(4) && !other.is_verified(), "content that nothing is known about");
        assert!(!other.is_touched(3));
        std::fs::remove_dir_all(&path).expect("removed");
    }
}
