//! One value in a file that is mapped: what is written there outlives the process, whenever that is killed.

use std::marker::PhantomData;
use std::os::fd::{AsFd, AsRawFd};

use super::{Result, last_errno};

/// A page holds it.
const LENGTH: usize = 4_096;

pub struct SharedPage<T> {
    at: *mut T,
    _kind: PhantomData<T>,
}

impl<T: Plain> SharedPage<T> {
    /// Maps the first page of a file that this process may read and write; it must be as long.
    pub fn map(file: impl AsFd) -> Result<Self> {
        const { assert!(size_of::<T>() <= LENGTH && align_of::<T>() <= LENGTH) };
        if rustix::fs::fstat(&file)?.st_size < LENGTH as i64 {
            rustix::fs::ftruncate(&file, LENGTH as u64)?;
        }
        // SAFETY: a new mapping, where the kernel chooses.
        let at = unsafe {
            let protection = libc::PROT_READ | libc::PROT_WRITE;
            libc::mmap(std::ptr::null_mut(), LENGTH, protection, libc::MAP_SHARED, file.as_fd().as_raw_fd(), 0)
        };
        if at == libc::MAP_FAILED { Err(last_errno()) } else { Ok(Self { at: at.cast(), _kind: PhantomData }) }
    }

    pub fn get(&mut self) -> &mut T {
        // SAFETY: the mapping lives as long as this, is aligned to a page, and any bytes are a value. Nobody else maps the file at the same time: its
        // holder has it locked.
        unsafe { &mut *self.at }
    }
}

impl<T> Drop for SharedPage<T> {
    fn drop(&mut self) {
        // SAFETY: mapped by `map`, and not used after this.
        unsafe { libc::munmap(self.at.cast(), LENGTH) };
    }
}

/// # Safety
/// Any bytes are a value of the type.
pub unsafe trait Plain: Copy {}
