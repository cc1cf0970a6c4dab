//! Memory for one read at a time: pages of its own, which exist once they are used and are given back when nothing goes on.

use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;

use super::{Errno, errno};

#[derive(Debug)]
pub struct Scratch {
    start: NonNull<u8>,
    length: usize,
}

impl Scratch {
    pub fn new(length: usize) -> Result<Self, Errno> {
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS;
        // SAFETY: a new anonymous mapping.
        let start = unsafe { libc::mmap(std::ptr::null_mut(), length, protection, flags, -1, 0) };
        match NonNull::new(start.cast::<u8>()) {
            Some(start) if start.as_ptr().cast() != libc::MAP_FAILED => Ok(Self { start, length }),
            _ => Err(errno()),
        }
    }

    /// The contents are zeros afterwards.
    pub fn give_back(&mut self) {
        // SAFETY: the mapping is this one's.
        unsafe { libc::madvise(self.start.as_ptr().cast(), self.length, libc::MADV_DONTNEED) };
    }
}

impl Deref for Scratch {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the mapping is as long, lives as long as this, and anonymous memory is always initialized.
        unsafe { std::slice::from_raw_parts(self.start.as_ptr(), self.length) }
    }
}

impl DerefMut for Scratch {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as above, and it is borrowed by one.
        unsafe { std::slice::from_raw_parts_mut(self.start.as_ptr(), self.length) }
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // SAFETY: the mapping is this one's, and nothing borrows it any more.
        unsafe { libc::munmap(self.start.as_ptr().cast(), self.length) };
    }
}

// SAFETY: it owns its memory, as a Vec does.
unsafe impl Send for Scratch {}
