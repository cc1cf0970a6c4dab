//! epoll.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use super::{Errno, check, fd::owned};

pub const READ: u32 = libc::EPOLLIN as u32;
pub const WRITE: u32 = libc::EPOLLOUT as u32;
pub const HANGUP: u32 = (libc::EPOLLHUP | libc::EPOLLERR) as u32;

const BATCH: usize = 32;

#[derive(Debug)]
pub struct Poll {
    epoll: OwnedFd,
}

#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: u64,
    pub events: u32,
}

impl Poll {
    pub fn new() -> Result<Self, Errno> {
        // SAFETY: plain call.
        let fd = check(unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) })?;
        Ok(Self { epoll: owned(fd) })
    }

    fn control(&self, operation: i32, fd: RawFd, events: u32, token: u64) -> Result<(), Errno> {
        let mut event = libc::epoll_event { events, u64: token };
        // SAFETY: `event` is valid for the call.
        check(unsafe { libc::epoll_ctl(self.epoll.as_raw_fd(), operation, fd, &mut event) })?;
        Ok(())
    }

    pub fn add(&self, fd: &impl AsRawFd, events: u32, token: u64) -> Result<(), Errno> {
        self.control(libc::EPOLL_CTL_ADD, fd.as_raw_fd(), events, token)
    }

    pub fn change(&self, fd: &impl AsRawFd, events: u32, token: u64) {
        // The descriptor is registered and open, so this cannot fail.
        let _ = self.control(libc::EPOLL_CTL_MOD, fd.as_raw_fd(), events, token);
    }

    /// Explicit, because a duplicate in another process would keep a closed descriptor registered.
    pub fn remove(&self, fd: &impl AsRawFd) {
        let _ = self.control(libc::EPOLL_CTL_DEL, fd.as_raw_fd(), 0, 0);
    }

    /// Waits until something is ready or `timeout` nanoseconds have passed (`None`: without end).
    pub fn wait(&self, timeout: Option<u64>, ready: &mut Vec<Ready>) {
        ready.clear();
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; BATCH];
        // A wait of whole milliseconds, rounded up, so that a deadline has passed when it ends.
        let timeout = timeout.map_or(-1, |nanos| nanos.div_ceil(1_000_000).min(i32::MAX as u64) as i32);
        // SAFETY: `events` has room for BATCH entries.
        let n = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), BATCH as i32, timeout) };
        ready.extend(events[..n.max(0) as usize].iter().map(|event| Ready { token: event.u64, events: event.events }));
    }
}
