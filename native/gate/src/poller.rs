//! What the gate waits for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::{Errno, Result};

/// Events that one wait returns at most; the rest come with the next.
const BATCH: usize = 128;

/// Whose descriptor it is. Numbers of connections are not used again while any event of theirs may be on its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    /// By its place among the listeners.
    Listener(u32),
    Control,
    Feeder(u32),
    Client(u32),
    Upstream(u32),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Listener(index) => (0, index),
            Self::Control => (1, 0),
            Self::Feeder(index) => (2, index),
            Self::Client(index) => (3, index),
            Self::Upstream(index) => (4, index),
        };
        kind << 32 | u64::from(index)
    }

    fn decode(data: u64) -> Option<Self> {
        let index = data as u32;
        Some(match data >> 32 {
            0 => Self::Listener(index),
            1 => Self::Control,
            2 => Self::Feeder(index),
            3 => Self::Client(index),
            4 => Self::Upstream(index),
            _ => return None,
        })
    }
}

/// What a descriptor is waited on for; its failure is told in any case.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Interest {
    pub input: bool,
    pub output: bool,
}

impl Interest {
    pub const INPUT: Self = Self { input: true, output: false };

    pub fn is_none(self) -> bool {
        !self.input && !self.output
    }

    fn flags(self) -> epoll::EventFlags {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, self.input);
        flags.set(epoll::EventFlags::OUT, self.output);
        flags
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Ready {
    pub token: Token,
    /// The connection was reset, or could not be made.
    pub has_failed: bool,
    /// Both directions are over: this is told again and again, asked for or not.
    pub has_hung_up: bool,
}

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    pub fn add(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), interest.flags())
    }

    pub fn set(&self, fd: impl AsFd, token: Token, interest: Interest) -> Result<()> {
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), interest.flags())
    }

    pub fn remove(&self, fd: impl AsFd) {
        // One that was never added reports nothing.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or the time is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<Ready>> {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        let ready = self.events.iter().filter_map(|event| {
            let flags = event.flags;
            Some(Ready {
                token: Token::decode(event.data.u64())?,
                has_failed: flags.contains(epoll::EventFlags::ERR),
                has_hung_up: flags.contains(epoll::EventFlags::HUP),
            })
        });
        Ok(ready.collect())
    }
}
