//! One direction of a connection: bytes that were read and wait, first those that may go on, then those that are still to be looked at.

use std::os::fd::AsFd;

use rustix::net::SendFlags;

use crate::bounds::MAX_PEEK;
use crate::{Errno, Result};

#[derive(Debug, Default)]
pub struct Lane {
    bytes: Vec<u8>,
    /// Bytes at the front that have gone.
    gone: usize,
    /// Bytes, with those, that may go.
    passed: usize,
    /// The source has sent its end.
    pub has_ended: bool,
    /// The end was passed on.
    pub is_shut: bool,
}

impl Lane {
    /// What may go on and has not.
    pub fn waiting(&self) -> &[u8] {
        &self.bytes[self.gone..self.passed]
    }

    /// What is to be looked at.
    pub fn unread(&self) -> &[u8] {
        &self.bytes[self.passed..]
    }

    pub fn held(&self) -> usize {
        self.bytes.len() - self.gone
    }

    /// How much more of what is to be looked at may wait. What fills all of it without being decided on is refused as too large.
    pub fn room(&self) -> usize {
        MAX_PEEK.saturating_sub(self.held())
    }

    pub fn is_full(&self) -> bool {
        self.room() == 0
    }

    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.extend_from_slice(bytes);
    }

    /// So many of the unread bytes may go on.
    pub fn pass(&mut self, count: usize) {
        self.passed = (self.passed + count).min(self.bytes.len());
    }

    /// Sends what may go on; false when the socket takes no more for now.
    pub fn flush(&mut self, to: impl AsFd) -> Result<bool> {
        while self.gone < self.passed {
            match rustix::net::send(&to, self.waiting(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(count) => self.gone += count,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return Ok(false),
                Err(error) => return Err(error),
            }
        }
        self.tidy();
        Ok(true)
    }

    /// An idle connection holds no buffer.
    fn tidy(&mut self) {
        if self.gone == self.bytes.len() {
            self.bytes = Vec::new();
        } else {
            self.bytes.drain(..self.gone);
        }
        self.passed -= self.gone;
        self.gone = 0;
    }

    /// Whether the end of the source can be passed on now.
    pub fn is_to_be_shut(&self) -> bool {
        self.has_ended && !self.is_shut && self.held() == 0
    }
}
