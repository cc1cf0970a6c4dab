//! Shared mappings of files: state that outlives the process which writes it.

use std::os::fd::AsFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU32, AtomicU64};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::Result;

pub struct Mapping {
    start: NonNull<u8>,
    length: usize,
}

// SAFETY: the memory is reached through atomics, or by the one owner of a part of it.
unsafe impl Send for Mapping {}
// SAFETY: as above.
unsafe impl Sync for Mapping {}

impl Mapping {
    /// Maps the first `length` bytes, which the file must have as long as the mapping lives.
    pub fn new(file: impl AsFd, length: usize) -> Result<Self> {
        // SAFETY: a new mapping at an address that the kernel chooses.
        let start = unsafe {
            mmap(std::ptr::null_mut(), length, ProtFlags::READ | ProtFlags::WRITE, MapFlags::SHARED, file, 0)?
        };
        let start = NonNull::new(start.cast()).ok_or(super::Errno::NOMEM)?;
        Ok(Self { start, length })
    }

    /// The address of `length` bytes at `offset`.
    ///
    /// # Panics
    /// When they are not within the mapping.
    pub fn pointer(&self, offset: usize, length: usize) -> *mut u8 {
        assert!(offset.checked_add(length).is_some_and(|end| end <= self.length), "outside of the mapping");
        // SAFETY: the offset is within the mapping.
        unsafe { self.start.as_ptr().add(offset) }
    }

    pub fn word(&self, offset: usize) -> &AtomicU32 {
        assert!(offset.is_multiple_of(4), "unaligned");
        // SAFETY: in bounds and aligned, since mappings begin on a page; atomics may be shared, with other processes too.
        unsafe { &*self.pointer(offset, 4).cast() }
    }

    pub fn long(&self, offset: usize) -> &AtomicU64 {
        assert!(offset.is_multiple_of(8), "unaligned");
        // SAFETY: as in `word`.
        unsafe { &*self.pointer(offset, 8).cast() }
    }

    pub fn copy_to(&self, offset: usize, bytes: &mut [u8]) {
        // SAFETY: in bounds; the caller owns this part of the mapping while it copies.
        unsafe { std::ptr::copy_nonoverlapping(self.pointer(offset, bytes.len()), bytes.as_mut_ptr(), bytes.len()) }
    }

    pub fn copy_from(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: in bounds; the caller owns this part of the mapping while it copies.
        unsafe { std::ptr::copy_nonoverlapping(bytes.as_ptr(), self.pointer(offset, bytes.len()), bytes.len()) }
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nothing borrows from the mapping any more. It can only fail for addresses that are none of ours.
        let _ = unsafe { munmap(self.start.as_ptr().cast(), self.length) };
    }
}
