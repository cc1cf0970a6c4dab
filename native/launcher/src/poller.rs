//! What the launcher waits for.

use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use rustix::event::{Timespec, epoll};

use crate::sys::Result;

/// Events that one wait returns at most; the rest come with the next.
const BATCH: usize = 64;

/// Whose descriptor it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Token {
    Stdin,
    Listener,
    /// Where a layerd asks for what the launcher holds for it.
    Keep,
    Helper,
    Observer,
    Connection(u32),
    /// The channel of a process that is on its way into a sandbox, by slot.
    Channel(u32),
    /// The first process of a sandbox, by slot.
    Process(u32),
    /// The process that takes changes of a sandbox: what it says, and its end.
    Changes(u32),
    ChangesEnd(u32),
}

impl Token {
    fn encode(self) -> u64 {
        let (kind, index) = match self {
            Self::Stdin => (0, 0),
            Self::Listener => (1, 0),
            Self::Helper => (2, 0),
            Self::Keep => (9, 0),
            Self::Observer => (10, 0),
            Self::Connection(index) => (3, index),
            Self::Channel(index) => (4, index),
            Self::Process(index) => (5, index),
            Self::Changes(index) => (6, index),
            Self::ChangesEnd(index) => (7, index),
        };
        (kind << 32) | u64::from(index)
    }

    fn decode(data: u64) -> Option<Self> {
        let index = data as u32;
        Some(match data >> 32 {
            0 => Self::Stdin,
            1 => Self::Listener,
            2 => Self::Helper,
            9 => Self::Keep,
            10 => Self::Observer,
            3 => Self::Connection(index),
            4 => Self::Channel(index),
            5 => Self::Process(index),
            6 => Self::Changes(index),
            7 => Self::ChangesEnd(index),
            _ => return None,
        })
    }
}

pub struct Poller {
    epoll: OwnedFd,
    events: Vec<epoll::Event>,
}

impl Poller {
    pub fn new() -> Result<Self> {
        Ok(Self { epoll: epoll::create(epoll::CreateFlags::CLOEXEC)?, events: Vec::with_capacity(BATCH) })
    }

    pub fn add(&self, fd: impl AsFd, token: Token) -> Result<()> {
        epoll::add(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), epoll::EventFlags::IN)
    }

    /// Changes what is waited for.
    pub fn set(&self, fd: impl AsFd, token: Token, input: bool, output: bool) -> Result<()> {
        let mut flags = epoll::EventFlags::empty();
        flags.set(epoll::EventFlags::IN, input);
        flags.set(epoll::EventFlags::OUT, output);
        epoll::modify(&self.epoll, fd, epoll::EventData::new_u64(token.encode()), flags)
    }

    /// Must come before the descriptor is closed: a process that is being made may hold a copy for a moment, and it would go on reporting.
    pub fn remove(&self, fd: impl AsFd) {
        // One that was never added reports nothing.
        let _ = epoll::delete(&self.epoll, fd);
    }

    /// Waits until something is ready or the time is over.
    pub fn wait(&mut self, timeout: Option<Duration>) -> Result<Vec<Token>> {
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        self.events.clear();
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.events), timeout.as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error),
        }
        Ok(self.events.iter().filter_map(|event| Token::decode(event.data.u64())).collect())
    }
}
