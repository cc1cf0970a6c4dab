//! Pre-content events (fanotify(7)): the kernel asks before it reads a range of a marked file, and waits for the answer.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd, RawFd};

use super::memory::Mapping;
use super::{Result, check, last_errno};

const FAN_PRE_ACCESS: u64 = 0x0010_0000;
const FAN_EVENT_INFO_TYPE_RANGE: u8 = 6;
const FAN_DENY_EIO: u32 = libc::FAN_DENY | ((libc::EIO as u32) << 24);
/// `struct fanotify_event_metadata`, then `struct fanotify_event_info_range`: an event of this kind has no other records.
pub const EVENT_BYTES: usize = METADATA_BYTES + 24;
const METADATA_BYTES: usize = 24;

/// What the kernel asks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Event {
    /// Names the event in the answer, and is the file: writing through it raises no event.
    pub fd: RawFd,
    /// Of the thread that reads.
    pub tid: u32,
    /// Bytes; absent for an access whose range the kernel does not tell.
    pub range: Option<(u64, u64)>,
}

impl Event {
    /// Reads what the kernel has written at `offset`; nothing when no event is there.
    pub fn parse(memory: &Mapping, offset: usize) -> Option<Self> {
        let mut bytes = [0; EVENT_BYTES];
        memory.copy_to(offset, &mut bytes);
        let word = |at: usize| u32::from_ne_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(word(at)) | (u64::from(word(at + 4)) << 32);
        let length = word(0) as usize;
        if length < METADATA_BYTES || long(8) & FAN_PRE_ACCESS == 0 {
            return None;
        }
        let has_range = length >= EVENT_BYTES && bytes[METADATA_BYTES] == FAN_EVENT_INFO_TYPE_RANGE;
        Some(Self {
            fd: word(16) as RawFd,
            tid: word(20),
            range: has_range.then(|| (long(METADATA_BYTES + 8), long(METADATA_BYTES + 16))),
        })
    }
}

/// A new group. The queue has no limit of its own: the kernel lets through what does not fit into a limited one. Threads that wait are its bound.
pub fn new_group() -> Result<OwnedFd> {
    let flags = libc::FAN_CLASS_PRE_CONTENT
        | libc::FAN_CLOEXEC
        | libc::FAN_UNLIMITED_QUEUE
        | libc::FAN_UNLIMITED_MARKS
        | libc::FAN_REPORT_TID;
    let event_flags = libc::O_RDWR | libc::O_LARGEFILE | libc::O_CLOEXEC | libc::O_NOATIME;
    // SAFETY: no memory is passed.
    let fd = check(unsafe { libc::fanotify_init(flags, event_flags as libc::c_uint) })?;
    // SAFETY: the kernel has just made this descriptor for this process.
    Ok(unsafe { OwnedFd::from_raw_fd(fd) })
}

/// From here on whoever opens the file and reads it is asked about first.
pub fn mark(group: impl AsFd, directory: impl AsFd, name: &CStr) -> Result<()> {
    change_mark(&group, &directory, name, libc::FAN_MARK_ADD)
}

/// Ends what [`mark`] began.
pub fn unmark(group: impl AsFd, directory: impl AsFd, name: &CStr) -> Result<()> {
    change_mark(&group, &directory, name, libc::FAN_MARK_REMOVE)
}

fn change_mark(group: &impl AsFd, directory: &impl AsFd, name: &CStr, change: libc::c_uint) -> Result<()> {
    let (group, directory) = (group.as_fd().as_raw_fd(), directory.as_fd().as_raw_fd());
    // SAFETY: the name is a C string.
    check(unsafe { libc::fanotify_mark(group, change, FAN_PRE_ACCESS, directory, name.as_ptr()) })?;
    Ok(())
}

/// Waits for one event and has the kernel put it into `memory` at `offset`, where [`EVENT_BYTES`] zeros must stand. The kernel writes it there before
/// it expects an answer: a process that is killed at any point has either no event or left its record.
pub fn read_into(group: impl AsFd, memory: &Mapping, offset: usize) -> Result<()> {
    let target = memory.pointer(offset, EVENT_BYTES);
    // SAFETY: the pointer is good for that many bytes, which nobody else uses while the slot is not told to anyone.
    let length = unsafe { libc::read(group.as_fd().as_raw_fd(), target.cast(), EVENT_BYTES) };
    if length < 0 { Err(last_errno()) } else { Ok(()) }
}

/// Lets the reader go on, or has its read fail with EIO.
pub fn respond(group: impl AsFd, event: RawFd, is_allowed: bool) -> Result<()> {
    let response =
        libc::fanotify_response { fd: event, response: if is_allowed { libc::FAN_ALLOW } else { FAN_DENY_EIO } };
    let size = size_of_val(&response);
    // SAFETY: the structure is as long as is said.
    let written = unsafe { libc::write(group.as_fd().as_raw_fd(), std::ptr::from_ref(&response).cast(), size) };
    if written < 0 { Err(last_errno()) } else { Ok(()) }
}
