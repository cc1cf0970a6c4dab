//! One connection: from its accept to its end, without knowing of any other.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{
    AddressFamily, RecvFlags, Shutdown, SocketFlags, SocketType, connect, getsockname, recv, shutdown, socket_with,
    sockopt,
};

use crate::bounds::{
    CONNECT_TIME, FIRST_BYTES_TIME, HEAD_TIME, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES,
    MAX_HELD_PER_SANDBOX, MAX_NAMES_PER_CONNECTION, SHORT_SPLICE_BYTES, SPLICE_BYTES, SPLICES_A_TURN,
};
use crate::inspector::{Inspector, Look};
use crate::lane::Lane;
use crate::name::HostName;
use crate::poller::Interest;
use crate::refusal::Reason;
use crate::request::SandboxId;
use crate::splice::{Moved, Pipe};
use crate::table::Sandbox;
use crate::{Errno, Result};

/// How far it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// Its first bytes are not whole. Nothing has gone anywhere.
    Deciding,
    /// It may go on; the upstream has not answered.
    Connecting,
    Open,
}

/// Why it is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum End {
    /// Both sides have said so.
    Done,
    /// One side has gone.
    Broken,
    /// There is no connection to the upstream.
    Unreachable,
    Refused(Reason, Option<HostName>),
}

/// What all connections use in turn.
pub struct Tools {
    pub pipe: Pipe,
    pub scratch: Vec<u8>,
}

/// One turn's worth of what is around it.
pub struct Turn<'a> {
    pub tools: &'a mut Tools,
    pub sandbox: &'a Sandbox,
    pub now: Instant,
}

impl Turn<'_> {
    /// How much to splice at once: what the other end does not take is held.
    fn splice_bytes(&self) -> usize {
        let is_much_held = self.sandbox.counts.held_bytes > MAX_HELD_PER_SANDBOX / 2;
        if is_much_held { SHORT_SPLICE_BYTES } else { SPLICE_BYTES }
    }
}

#[derive(Debug)]
pub struct Flow {
    pub sandbox: SandboxId,
    pub destination: SocketAddr,
    pub client: OwnedFd,
    pub upstream: Option<OwnedFd>,
    pub stage: Stage,
    pub deadline: Option<Instant>,
    /// How both are watched; `None` is not at all.
    pub watched: [Option<Interest>; 2],
    /// Bytes that were counted as held when last looked at.
    pub held: usize,
    /// Bytes that have gone on, up and down, and are not counted yet.
    pub moved: [u64; 2],
    accepted_at: Instant,
    inspector: Inspector,
    names: Vec<HostName>,
    carries_any: bool,
    up: Lane,
    down: Lane,
    is_holding: bool,
}

impl Flow {
    /// A connection that has to say its name. Its socket does not block.
    pub fn deciding(client: OwnedFd, sandbox: SandboxId, destination: SocketAddr, now: Instant) -> Self {
        Self {
            sandbox,
            destination,
            client,
            upstream: None,
            stage: Stage::Deciding,
            deadline: Some(now + FIRST_BYTES_TIME),
            watched: [None; 2],
            held: 0,
            moved: [0; 2],
            accepted_at: now,
            inspector: Inspector::new(destination.port()),
            names: Vec::new(),
            carries_any: false,
            up: Lane::default(),
            down: Lane::default(),
            is_holding: false,
        }
    }

    /// One that may carry anything, because of this name: the other side may be the one that speaks first.
    pub fn carrying_any(
        client: OwnedFd,
        sandbox: SandboxId,
        destination: SocketAddr,
        name: HostName,
        now: Instant,
    ) -> std::result::Result<Self, End> {
        let mut flow = Self::deciding(client, sandbox, destination, now);
        flow.names.push(name);
        flow.carries_any = true;
        flow.inspector = Inspector::free();
        flow.connect(now)?;
        Ok(flow)
    }

    /// Whether a sandbox's policy of now would let it go on as it does. What has not said its name is judged when it does.
    pub fn is_allowed(&self, sandbox: &Sandbox) -> bool {
        let port = self.destination.port();
        self.names.iter().all(|name| {
            if self.carries_any { sandbox.still_carries_any(name, port) } else { sandbox.still_allows(name, port) }
        })
    }

    pub fn name(&self) -> Option<&HostName> {
        self.names.last()
    }

    pub fn has_encrypted(&self) -> bool {
        self.inspector.has_encrypted()
    }

    pub fn held_now(&self) -> usize {
        self.up.held() + self.down.held()
    }

    fn connect(&mut self, now: Instant) -> std::result::Result<(), End> {
        let upstream = open(self.destination).map_err(|_| End::Unreachable)?;
        self.upstream = Some(upstream);
        self.stage = Stage::Connecting;
        self.deadline = Some(now + CONNECT_TIME);
        Ok(())
    }

    /// Goes on as far as it can without waiting.
    pub fn turn(&mut self, turn: &mut Turn<'_>) -> std::result::Result<(), End> {
        if self.stage == Stage::Connecting {
            self.finish_connect()?;
        }
        // First down: it may be what the other direction waits for.
        if self.stage == Stage::Open {
            self.move_down(turn)?;
        }
        if self.stage != Stage::Connecting {
            self.move_up(turn)?;
        }
        if self.up.is_shut && self.down.is_shut { Err(End::Done) } else { Ok(()) }
    }

    fn finish_connect(&mut self) -> std::result::Result<(), End> {
        let upstream = self.upstream.as_ref().ok_or(End::Broken)?;
        if !matches!(sockopt::socket_error(upstream), Ok(Ok(()))) {
            return Err(End::Unreachable);
        }
        match rustix::net::getpeername(upstream) {
            Ok(Some(_)) => {}
            Ok(None) | Err(Errno::NOTCONN) => return Ok(()),
            Err(_) => return Err(End::Unreachable),
        }
        // A destination of this host is reached from itself. The packet filter has let none through.
        let local = getsockname(upstream).ok().and_then(|address| SocketAddr::try_from(address).ok());
        if local.is_none_or(|local| local.ip() == self.destination.ip()) {
            return Err(End::Refused(Reason::AddressIsLocal, self.names.last().cloned()));
        }
        self.stage = Stage::Open;
        self.deadline = None;
        Ok(())
    }

    fn move_up(&mut self, turn: &mut Turn<'_>) -> std::result::Result<(), End> {
        let mut reads = 0;
        let last = loop {
            if let Some(upstream) = &self.upstream {
                let waiting = self.up.waiting().len();
                let is_flushed = self.up.flush(upstream).map_err(|_| End::Broken)?;
                self.moved[0] += (waiting - self.up.waiting().len()) as u64;
                if !is_flushed {
                    break None;
                }
            }
            let look = self.inspector.look(self.up.unread());
            match look.map_err(|reason| End::Refused(reason, self.names.last().cloned()))? {
                Look::Pass(count) => self.up.pass(count),
                Look::Ask(name) => {
                    self.ask(name, turn)?;
                    self.inspector.granted();
                    if self.stage == Stage::Deciding {
                        return self.connect(turn.now);
                    }
                }
                Look::More if self.up.has_ended => {
                    self.ended_early()?;
                    break None;
                }
                look if self.up.has_ended || reads == SPLICES_A_TURN => break Some(look),
                // What is held back is read as well, as far as there is room: the client's end must be seen.
                Look::Hold if self.up.is_full() => break Some(Look::Hold),
                look @ (Look::More | Look::Hold) => {
                    reads += 1;
                    let room = self.up.room().min(turn.tools.scratch.len());
                    match receive(&self.client, &mut turn.tools.scratch[..room]).map_err(|_| End::Broken)? {
                        None => break Some(look),
                        Some([]) => self.up.has_ended = true,
                        Some(bytes) => self.up.push(bytes),
                    }
                }
                Look::Splice(most) => {
                    reads += 1;
                    let upstream = self.upstream.as_ref().ok_or(End::Broken)?;
                    let most = most.min(turn.splice_bytes());
                    let moved = turn.tools.pipe.transfer(&self.client, upstream, most).map_err(|_| End::Broken)?;
                    match moved {
                        Moved::Nothing => break None,
                        Moved::End => self.up.has_ended = true,
                        Moved::Bytes { count, left } => {
                            self.inspector.spliced(count);
                            self.moved[0] += (count - left.len()) as u64;
                            self.up.push(&left);
                            self.up.pass(left.len());
                        }
                    }
                }
            }
        };
        self.is_holding = last == Some(Look::Hold);
        if self.stage == Stage::Open {
            let is_midway = last == Some(Look::More) && !self.up.unread().is_empty();
            self.deadline = is_midway.then(|| self.deadline.unwrap_or(turn.now + HEAD_TIME));
        }
        if let Some(upstream) = &self.upstream
            && self.up.is_to_be_shut()
        {
            shutdown(upstream, Shutdown::Write).map_err(|_| End::Broken)?;
            self.up.is_shut = true;
        }
        Ok(())
    }

    /// The client has sent its end where more was needed.
    fn ended_early(&self) -> std::result::Result<(), End> {
        match (self.stage, self.up.unread()) {
            // One that only looked whether somebody is there.
            (Stage::Deciding, []) => Err(End::Done),
            (_, []) => Ok(()),
            _ => Err(End::Refused(Reason::Incomplete, self.names.last().cloned())),
        }
    }

    fn ask(&mut self, name: HostName, turn: &Turn<'_>) -> std::result::Result<(), End> {
        if self.names.contains(&name) {
            return Ok(());
        }
        // A pin counts at the moment when the connection came, as for the packet filter; for a later name, now.
        let at = if self.stage == Stage::Deciding { self.accepted_at } else { turn.now };
        let mut decision = turn.sandbox.decide(&name, self.destination, at);
        if decision.is_ok() && self.names.len() >= MAX_NAMES_PER_CONNECTION {
            decision = Err(Reason::TooManyNames);
        }
        if let Err(reason) = decision {
            return Err(End::Refused(reason, Some(name)));
        }
        self.names.push(name);
        Ok(())
    }

    fn move_down(&mut self, turn: &mut Turn<'_>) -> std::result::Result<(), End> {
        let Some(upstream) = &self.upstream else { return Ok(()) };
        for _ in 0..SPLICES_A_TURN {
            let waiting = self.down.waiting().len();
            let is_flushed = self.down.flush(&self.client).map_err(|_| End::Broken)?;
            self.moved[1] += (waiting - self.down.waiting().len()) as u64;
            if !is_flushed || self.down.has_ended {
                break;
            }
            let has_ended = if self.inspector.wants_answer() {
                match receive(upstream, &mut turn.tools.scratch).map_err(|_| End::Broken)? {
                    None => break,
                    Some(bytes) => {
                        self.inspector.answered(bytes);
                        self.down.push(bytes);
                        self.down.pass(bytes.len());
                        bytes.is_empty()
                    }
                }
            } else {
                let most = turn.splice_bytes();
                let moved = turn.tools.pipe.transfer(upstream, &self.client, most);
                match moved.map_err(|_| End::Broken)? {
                    Moved::Nothing => break,
                    Moved::End => true,
                    Moved::Bytes { count, left } => {
                        self.moved[1] += (count - left.len()) as u64;
                        self.down.push(&left);
                        self.down.pass(left.len());
                        false
                    }
                }
            };
            if has_ended {
                self.down.has_ended = true;
                self.inspector.answer_ended();
            }
        }
        if self.down.is_to_be_shut() {
            shutdown(&self.client, Shutdown::Write).map_err(|_| End::Broken)?;
            self.down.is_shut = true;
        }
        Ok(())
    }

    /// What client and upstream are to be watched for. A side that has to wait is not read: so its sender is held back.
    pub fn interests(&self) -> [Interest; 2] {
        let (up, down) = (self.up.waiting().is_empty(), self.down.waiting().is_empty());
        let has_room = !self.is_holding || !self.up.is_full();
        let reads_client = self.stage != Stage::Connecting && has_room && up && !self.up.has_ended;
        let client = Interest { input: reads_client, output: !down };
        let upstream = match self.stage {
            Stage::Deciding => Interest::default(),
            Stage::Connecting => Interest { input: false, output: true },
            Stage::Open => Interest { input: down && !self.down.has_ended, output: !up },
        };
        [client, upstream]
    }

    /// Ends it so that both sides see a reset, and none takes what it has for the whole.
    pub fn reset(self) {
        for socket in [Some(self.client), self.upstream].into_iter().flatten() {
            let _ = sockopt::set_socket_linger(&socket, Some(Duration::ZERO));
        }
    }
}

/// Bytes that have come; none at the end. `None`: nothing yet.
fn receive<'a>(from: &OwnedFd, into: &'a mut [u8]) -> Result<Option<&'a [u8]>> {
    loop {
        match recv(from, &mut *into, RecvFlags::DONTWAIT) {
            Ok((_, count)) => return Ok(Some(&into[..count])),
            Err(Errno::INTR) => {}
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error),
        }
    }
}

/// Begins a connection.
fn open(destination: SocketAddr) -> Result<OwnedFd> {
    let family = if destination.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let socket = socket_with(family, SocketType::STREAM, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK, None)?;
    tune(&socket)?;
    match connect(&socket, &destination) {
        Ok(()) | Err(Errno::INPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// What both ends of a connection have: small writes go at once, as they came; a peer that is gone is noticed.
pub fn tune(socket: &OwnedFd) -> Result<()> {
    sockopt::set_tcp_nodelay(socket, true)?;
    sockopt::set_socket_keepalive(socket, true)?;
    sockopt::set_tcp_keepidle(socket, KEEPALIVE_IDLE)?;
    sockopt::set_tcp_keepintvl(socket, KEEPALIVE_INTERVAL)?;
    sockopt::set_tcp_keepcnt(socket, KEEPALIVE_PROBES)
}
