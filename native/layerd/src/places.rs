//! Where the chunks of a layer lie in the blob store. The store may lay a layer out anew: then there is another map of the same chunks, and one day the packs
//! of this one are gone.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, fsync, openat, renameat};
use rustix::io::write;

use crate::chunk_map::{ChunkMap, ENTRY_BYTES, Entry, Header};
use crate::digest::Digest;
use crate::layer::{self, read_at};
use crate::sys::{Errno, Result};

/// Between two looks for another map of a layer.
const LOOK_PAUSE: Duration = Duration::from_secs(5);
const NEW: &str = "chunks.new";

/// Where one chunk lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    pub digest: Digest,
    pub pack: Digest,
    pub offset: u64,
    pub stored_bytes: u32,
}

/// A map that is in use: its entries are read when they are needed.
struct Used {
    header: Header,
    packs: Vec<Digest>,
    file: OwnedFd,
}

pub struct Places {
    used: RwLock<Arc<Used>>,
    looked_at: Mutex<Option<Instant>>,
}

impl Places {
    pub fn new(header: Header, packs: Vec<Digest>, file: OwnedFd) -> Self {
        Self { used: RwLock::new(Arc::new(Used { header, packs, file })), looked_at: Mutex::new(None) }
    }

    fn used(&self) -> Arc<Used> {
        self.used.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Places of some chunks.
    pub fn of(&self, chunks: impl IntoIterator<Item = u32>) -> Result<Vec<(u32, Place)>> {
        let used = self.used();
        let mut places = Vec::new();
        for chunk in chunks {
            let mut bytes = [0; ENTRY_BYTES];
            read_at(&used.file, used.header.entry_offset(chunk), &mut bytes)?;
            let Entry { digest, pack, offset, stored_bytes } =
                Entry::parse(&bytes, &used.header, chunk).map_err(|_| Errno::IO)?;
            let pack = *used.packs.get(pack as usize).ok_or(Errno::IO)?;
            places.push((chunk, Place { digest, pack, offset, stored_bytes }));
        }
        Ok(places)
    }

    /// The turn of one who wants to look for another map; nothing when somebody has just looked.
    pub fn look(&self) -> Option<MutexGuard<'_, Option<Instant>>> {
        let mut looked_at = self.looked_at.lock().unwrap_or_else(PoisonError::into_inner);
        if looked_at.is_some_and(|at| at.elapsed() < LOOK_PAUSE) {
            return None;
        }
        *looked_at = Some(Instant::now());
        Some(looked_at)
    }

    /// Takes another map of the same chunks, durably; whether it differs from the one in use.
    pub fn replace(&self, directory: BorrowedFd<'_>, bytes: &[u8], map: &ChunkMap) -> Result<bool> {
        if bytes.len() as u64 == map.header.map_bytes() && map.packs == self.used().packs {
            let mut now = vec![0; bytes.len()];
            if read_at(&self.used().file, 0, &mut now).is_ok() && now == bytes {
                return Ok(false);
            }
        }
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(directory, NEW, flags, Mode::from_raw_mode(0o644))?;
        let mut rest = bytes;
        while !rest.is_empty() {
            match write(&file, rest) {
                Ok(length) => rest = &rest[length..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        fsync(&file)?;
        renameat(directory, NEW, directory, layer::MAP)?;
        fsync(directory.as_fd())?;
        let used = Used { header: map.header, packs: map.packs.clone(), file };
        *self.used.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(used);
        Ok(true)
    }
}
