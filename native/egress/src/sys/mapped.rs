//! A map of the kernel that is an array, in this process's own memory.

use std::ffi::c_void;
use std::marker::PhantomData;
use std::os::fd::BorrowedFd;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use super::{Errno, Result};
use crate::layout::Plain;

/// `T` is a multiple of 8 bytes long.
pub struct Mapped<T: Plain> {
    memory: NonNull<c_void>,
    count: usize,
    of: PhantomData<T>,
}

impl<T: Plain> Mapped<T> {
    const STRIDE: usize = {
        assert!(size_of::<T>().is_multiple_of(8));
        size_of::<T>()
    };

    pub fn new(map: BorrowedFd<'_>, count: usize) -> Result<Self> {
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: new memory, at a place that the kernel chooses; it is as long as the map (`BPF_F_MMAPABLE`).
        let memory = unsafe { mmap(std::ptr::null_mut(), count * Self::STRIDE, flags, MapFlags::SHARED, map, 0) }?;
        Ok(Self { memory: NonNull::new(memory).ok_or(Errno::NOMEM)?, count, of: PhantomData })
    }

    fn words(&self, index: usize) -> &[AtomicU64] {
        assert!(index < self.count);
        // SAFETY: within the memory, and aligned since the stride is a multiple of 8. Others change it only by whole words or atomic additions.
        unsafe {
            let first = self.memory.cast::<u8>().add(index * Self::STRIDE).cast::<AtomicU64>();
            std::slice::from_raw_parts(first.as_ptr(), Self::STRIDE / 8)
        }
    }

    /// A copy. Words that others change meanwhile may be of different moments.
    pub fn get(&self, index: usize) -> T {
        let mut value = T::zeroed();
        let words: Vec<u64> = self.words(index).iter().map(|word| word.load(Ordering::Acquire)).collect();
        // SAFETY: as many bytes as the value has, all patterns of which are values.
        unsafe {
            std::ptr::copy_nonoverlapping(words.as_ptr().cast::<u8>(), (&raw mut value).cast::<u8>(), Self::STRIDE);
        }
        value
    }

    /// The first word last, so that who reads it sees the rest.
    pub fn set(&self, index: usize, value: &T) {
        let mut words = vec![0u64; Self::STRIDE / 8];
        // SAFETY: as many bytes as the value has, none of which is padding.
        unsafe {
            std::ptr::copy_nonoverlapping(
                std::ptr::from_ref(value).cast::<u8>(),
                words.as_mut_ptr().cast::<u8>(),
                Self::STRIDE,
            );
        }
        for (to, from) in self.words(index).iter().zip(words).rev() {
            to.store(from, Ordering::Release);
        }
    }

    /// Stores the first word, at once.
    pub fn set_first(&self, index: usize, word: u64) {
        if let Some(first) = self.words(index).first() {
            first.store(word, Ordering::Release);
        }
    }
}

impl<T: Plain> Drop for Mapped<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `new`, and borrowed by nobody.
        let _ = unsafe { munmap(self.memory.as_ptr(), self.count * Self::STRIDE) };
    }
}
