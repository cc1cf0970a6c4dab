//! Packs in a directory: a local one, or a filesystem of the cluster that is mounted there.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::io::pread;

use super::{ChunkSource, SourceError};
use crate::digest::Digest;
use crate::sys::Errno;

/// Packs that stay open between reads.
const MAX_OPEN: usize = 256;

pub struct DirectorySource {
    root: PathBuf,
    name: String,
    opened: Mutex<HashMap<Digest, Arc<OwnedFd>>>,
}

impl DirectorySource {
    pub fn new(root: &Path) -> Self {
        Self { root: root.to_owned(), name: format!("file://{}", root.display()), opened: Mutex::new(HashMap::new()) }
    }

    fn open(&self, pack: &Digest) -> Result<Arc<OwnedFd>, SourceError> {
        if let Some(file) = self.opened.lock().unwrap_or_else(PoisonError::into_inner).get(pack) {
            return Ok(file.clone());
        }
        let hex = pack.hex();
        // A store that is not mounted has no packs at all.
        let directory = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let packs = openat(CWD, self.root.join("packs"), directory, Mode::empty()).map_err(SourceError::Unreachable)?;
        let file = openat(&packs, format!("{}/{hex}", &hex[..2]), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let file = Arc::new(file.map_err(|errno| match errno {
            Errno::NOENT | Errno::NOTDIR => SourceError::Missing,
            other => SourceError::Unreachable(other),
        })?);
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if opened.len() >= MAX_OPEN {
            opened.clear();
        }
        opened.insert(*pack, file.clone());
        Ok(file)
    }

    fn forget(&self, pack: &Digest) {
        self.opened.lock().unwrap_or_else(PoisonError::into_inner).remove(pack);
    }
}

impl ChunkSource for DirectorySource {
    fn read(&self, pack: &Digest, offset: u64, buffer: &mut [u8], _deadline: Instant) -> Result<(), SourceError> {
        let file = self.open(pack)?;
        let mut done = 0;
        while done < buffer.len() {
            match pread(&*file, &mut buffer[done..], offset + done as u64) {
                Ok(0) => {
                    self.forget(pack);
                    return Err(SourceError::Short);
                }
                Ok(length) => done += length,
                Err(Errno::INTR) => {}
                Err(errno) => {
                    // A descriptor may be stale where a new one is not.
                    self.forget(pack);
                    return Err(SourceError::Unreachable(errno));
                }
            }
        }
        Ok(())
    }

    fn object(&self, key: &str, max_bytes: u64, _deadline: Instant) -> Result<Vec<u8>, SourceError> {
        use std::io::Read;
        let unreachable = |error: std::io::Error| {
            SourceError::Unreachable(error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
        };
        let file = std::fs::File::open(self.root.join(key)).map_err(|error| match error.kind() {
            std::io::ErrorKind::NotFound => SourceError::Missing,
            _ => unreachable(error),
        })?;
        let mut bytes = Vec::new();
        let length = file.take(max_bytes + 1).read_to_end(&mut bytes).map_err(unreachable)?;
        if length as u64 > max_bytes { Err(SourceError::Long) } else { Ok(bytes) }
    }

    fn name(&self) -> &str {
        &self.name
    }
}
