//! The one loop: wait, hand out, let those that asked for a turn have one, write.

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::os::fd::OwnedFd;

use crate::chronus::session::Sessions;
use crate::clock::{self, NANOS_PER_MS};
use crate::connection::{Connection, StreamKey};
use crate::doom::Dooms;
use crate::exec::table::Execs;
use crate::passwd::Accounts;
use crate::proc::Proc;
use crate::reaper::Child;
use crate::slab::{Key, Slab};
use crate::sys::poll::{Poll, Ready};
use crate::sys::scratch::Scratch;

/// Turns that are given between two looks at the descriptors.
const TURNS: usize = 8;
/// Quiet time after which memory is given back.
const TIDY_NANOS: u64 = 1_000 * NANOS_PER_MS;
/// Left at the end of the heap then.
const KEEP_ON_TIDY: usize = 4 << 10;

/// What an event of epoll is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Source {
    Listener,
    Signals,
    Connection(Key),
    Stdout(Key),
    Stderr(Key),
    Stdin(Key),
    Session(Key),
    /// A descriptor that belongs to a stream, by its route.
    Stream(Key),
}

const KIND_SHIFT: u32 = 56;

impl Source {
    pub fn token(self) -> u64 {
        let (kind, bits) = match self {
            Self::Listener => (0u64, 0),
            Self::Signals => (1, 0),
            Self::Connection(key) => (2, key.to_bits()),
            Self::Stdout(key) => (3, key.to_bits()),
            Self::Stderr(key) => (4, key.to_bits()),
            Self::Stdin(key) => (5, key.to_bits()),
            Self::Session(key) => (6, key.to_bits()),
            Self::Stream(key) => (7, key.to_bits()),
        };
        kind << KIND_SHIFT | bits
    }

    fn from_token(token: u64) -> Option<Self> {
        let key = Key::from_bits(token);
        Some(match token >> KIND_SHIFT {
            0 => Self::Listener,
            1 => Self::Signals,
            2 => Self::Connection(key),
            3 => Self::Stdout(key),
            4 => Self::Stderr(key),
            5 => Self::Stdin(key),
            6 => Self::Session(key),
            7 => Self::Stream(key),
            _ => return None,
        })
    }
}

/// What is to happen at a time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Deadline {
    ExecTimeout(Key),
    SlowReader(Key),
    Announce(Key),
    AbortRun(Key, u64),
    LookAtDoomed(Key),
    ConnectTimeout(Key),
    Tidy,
}

/// All of the state. There is one, and one thread that sees it.
pub struct Aether {
    pub poll: Poll,
    pub listener: OwnedFd,
    /// There are as many connections as may be, and the listener is not watched.
    pub is_full: bool,
    pub signals: OwnedFd,
    pub proc: Proc,
    /// /dev/null as it was when aether started.
    pub null: OwnedFd,
    /// The soft limit of open files that programs get.
    pub open_files: Option<libc::rlimit>,
    pub accounts: Accounts,
    pub connections: Slab<Connection>,
    pub execs: Execs,
    pub sessions: Sessions,
    pub dooms: Dooms,
    pub children: BTreeMap<i32, Child>,
    pub deadlines: BTreeSet<(u64, Deadline)>,
    pub turns: VecDeque<StreamKey>,
    /// Streams that have descriptors of their own.
    pub routes: Slab<StreamKey>,
    /// Streams of `file.watch`.
    pub watches: usize,
    pub scratch: Scratch,
    /// When memory that is not needed goes back to the kernel.
    pub tidy_at: Option<u64>,
}

impl Aether {
    /// The stream at `at` has more to do: it gets a turn after the others.
    pub fn queue(&mut self, at: StreamKey) {
        self.turns.push_back(at);
    }

    /// Once things have been quiet for a while, what they needed goes back; then there is nothing to wake for. While they are not,
    /// the one deadline is moved on when it comes.
    fn on_tidy(&mut self) {
        let now = clock::now();
        match self.tidy_at.take() {
            Some(when) if when > now => {
                self.tidy_at = Some(when);
                self.deadlines.insert((when, Deadline::Tidy));
            }
            _ => {
                self.scratch.give_back();
                // SAFETY: plain call.
                unsafe { libc::malloc_trim(KEEP_ON_TIDY) };
            }
        }
    }

    fn note_activity(&mut self) {
        let when = clock::now() + TIDY_NANOS;
        if self.tidy_at.replace(when).is_none() {
            self.deadlines.insert((when, Deadline::Tidy));
        }
    }

    pub fn run(&mut self) -> ! {
        let mut ready: Vec<Ready> = Vec::new();
        loop {
            let timeout = match self.deadlines.first() {
                _ if !self.turns.is_empty() => Some(0),
                Some(&(when, _)) => Some(when.saturating_sub(clock::now())),
                None => None,
            };
            self.poll.wait(timeout, &mut ready);
            for event in &ready {
                self.on_event(*event);
            }
            if !ready.is_empty() {
                self.note_activity();
            }
            self.on_deadlines();
            for _ in 0..TURNS {
                let Some(at) = self.turns.pop_front() else { break };
                self.with_stream(at, |aether, stream| stream.on_turn(aether, at));
            }
            self.flush_all();
        }
    }

    fn on_event(&mut self, event: Ready) {
        match Source::from_token(event.token) {
            Some(Source::Listener) => self.on_listener(),
            Some(Source::Signals) => self.on_signals(),
            Some(Source::Connection(key)) => self.on_connection(key, event.events),
            Some(Source::Stdout(key)) => self.on_output(key, 0),
            Some(Source::Stderr(key)) => self.on_output(key, 1),
            Some(Source::Stdin(key)) => self.flush_stdin(key),
            Some(Source::Session(key)) => self.on_session_status(key),
            Some(Source::Stream(key)) => {
                if let Some(&at) = self.routes.get(key) {
                    self.with_stream(at, |aether, stream| stream.on_ready(aether, at));
                }
            }
            None => {}
        }
    }

    fn on_deadlines(&mut self) {
        while let Some(&(when, deadline)) = self.deadlines.first() {
            if when > clock::now() {
                return;
            }
            self.deadlines.pop_first();
            match deadline {
                Deadline::ExecTimeout(key) => self.on_exec_timeout(key),
                Deadline::SlowReader(key) => self.on_slow_reader(key),
                Deadline::Announce(key) => self.on_announce(key),
                Deadline::AbortRun(key, number) => self.abort_again(key, number),
                Deadline::Tidy => self.on_tidy(),
                Deadline::LookAtDoomed(key) => self.on_look(key),
                Deadline::ConnectTimeout(key) => {
                    if let Some(&at) = self.routes.get(key) {
                        self.with_stream(at, |aether, stream| stream.on_timeout(aether, at));
                    }
                }
            }
        }
    }
}
