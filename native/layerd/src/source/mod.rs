//! Where packs are read from.

pub mod account;
pub mod directory;
pub mod s3;
mod signature;

use std::fmt;
use std::path::Path;
use std::time::{Duration, Instant};

use crate::digest::Digest;
use crate::failure::errno_name;
use crate::options::Store;
use crate::sys::Errno;

/// Why a range of a pack was not read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SourceError {
    /// The store answers, and has no such pack.
    Missing,
    /// The pack ends before the range does.
    Short,
    /// The object is longer than such an object can be.
    Long,
    /// The store does not answer. Worth another try.
    Unreachable(Errno),
    /// The store answers that it can not now. Worth another try, not before this time.
    Busy { status: u16, after: Duration },
    /// The store answers, and does not give it out: its account is wrong, or it is no such store.
    Refused(u16),
}

impl fmt::Display for SourceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing => f.write_str("the blob store does not have the pack"),
            Self::Short => f.write_str("the pack ends before the chunk does"),
            Self::Long => f.write_str("the object in the blob store is too long"),
            Self::Unreachable(errno) => write!(f, "the blob store does not answer: {}", errno_name(*errno)),
            Self::Busy { status, .. } => write!(f, "the blob store answers with {status}, again and again"),
            Self::Refused(status) => write!(f, "the blob store answers with {status}"),
        }
    }
}

/// A blob store, as far as loading needs one. Each call is one try, which should be over by the deadline.
pub trait ChunkSource: Send + Sync {
    /// Fills the buffer from this offset of the pack on.
    fn read(&self, pack: &Digest, offset: u64, buffer: &mut [u8], deadline: Instant) -> Result<(), SourceError>;

    /// All of a small object.
    fn object(&self, key: &str, max_bytes: u64, deadline: Instant) -> Result<Vec<u8>, SourceError>;

    /// What errors call it.
    fn name(&self) -> &str;
}

/// Opens the store that is meant. Whether it answers is seen at the first read.
pub fn open(store: &Store, account: Option<&Path>) -> Result<Box<dyn ChunkSource>, String> {
    Ok(match store {
        Store::Directory(path) => Box::new(directory::DirectorySource::new(path)),
        Store::Bucket(bucket) => {
            let account = account::Account::read(account, |name| std::env::var(name).ok())?;
            Box::new(s3::S3Source::new(bucket, account)?)
        }
    })
}

const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Goes on trying until the deadline while the store does not answer. There is nothing to wait for but time: a store does not call.
pub fn until<T>(deadline: Instant, mut attempt: impl FnMut() -> Result<T, SourceError>) -> Result<T, SourceError> {
    let mut pause = FIRST_PAUSE;
    loop {
        let failed = match attempt() {
            Err(error @ (SourceError::Unreachable(_) | SourceError::Busy { .. })) => error,
            other => return other,
        };
        let wait = match failed {
            SourceError::Busy { after, .. } => pause.max(after),
            _ => pause,
        };
        if Instant::now() + wait >= deadline {
            return Err(failed);
        }
        std::thread::sleep(wait);
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
}
