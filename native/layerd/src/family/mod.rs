//! The processes of one layerd, and what they have in common.
//!
//! When the last descriptor of a fanotify group closes, the kernel lets every read through, and what is not filled reads as zeros. So the group is
//! held by three processes, each of which brings back the others:
//!
//! - the holder, which starts the worker and the standby and hands the group over to a new layerd;
//! - the worker, which fills;
//! - the standby, which waits to become the holder.
//!
//! Invariants:
//! 1. Whoever holds the group has [`Role::Member`], shared. A layerd that gets it exclusively may make a new group: there is no other.
//! 2. At most one process has each of the other roles. A role ends with its process, in whatever way that ends.
//! 3. The worker touches the shared state only while it has [`Role::Worker`].

pub mod handover;
pub mod holder;
pub mod roles;
pub mod shared;

use std::os::fd::{BorrowedFd, RawFd};

use crate::sys::process;

/// Descriptors have fixed numbers in each process of the family, and executed programs inherit them.
const GROUP: RawFd = 3;
const SHARED: RawFd = 4;
const CONTROL: RawFd = 5;
const KEEP: RawFd = 6;
/// The first number without a meaning.
pub const FIRST_FREE: RawFd = 7;

pub fn group() -> BorrowedFd<'static> {
    process::fixed(GROUP)
}

pub fn shared() -> BorrowedFd<'static> {
    process::fixed(SHARED)
}

/// The listener of `run/layerd.sock`.
pub fn control() -> BorrowedFd<'static> {
    process::fixed(CONTROL)
}

/// The listener of `run/layerd.keep`, where a new layerd asks for the group.
pub fn keep() -> BorrowedFd<'static> {
    process::fixed(KEEP)
}

/// Keeps the places free: what is opened later does not get these numbers.
pub fn keep_places() -> crate::sys::Result<()> {
    let opened = rustix::fs::open("/dev/null", rustix::fs::OFlags::RDWR, rustix::fs::Mode::empty())?;
    let null = process::above(&opened, 64)?;
    // It may have one of these numbers itself.
    drop(opened);
    [GROUP, SHARED, CONTROL, KEEP].into_iter().try_for_each(|at| process::place_fd(&null, at))
}

/// Puts the family's descriptors in their places.
pub fn place(fds: [std::os::fd::OwnedFd; 4]) -> crate::sys::Result<()> {
    // First out of the way of each other.
    let mut moved = Vec::new();
    for fd in &fds {
        moved.push(process::above(fd, 64)?);
    }
    drop(fds);
    for (fd, at) in moved.iter().zip([GROUP, SHARED, CONTROL, KEEP]) {
        process::place_fd(fd, at)?;
    }
    Ok(())
}

/// Whether this process was started by one of the family.
pub fn is_placed() -> bool {
    [GROUP, SHARED, CONTROL, KEEP].into_iter().all(process::is_open)
}
