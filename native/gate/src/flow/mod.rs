//! One connection: from its accept to its end, without knowing of any other. [`moving`] carries its bytes.

mod moving;

use std::net::SocketAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{AddressFamily, SocketFlags, SocketType, connect, getsockname, socket_with, sockopt};

use crate::bounds::{
    CONNECT_TIME, FIRST_BYTES_TIME, KEEPALIVE_IDLE, KEEPALIVE_INTERVAL, KEEPALIVE_PROBES, MAX_HELD_PER_SANDBOX,
    SHORT_SPLICE_BYTES, SPLICE_BYTES,
};
use crate::inspector::Inspector;
use crate::lane::Lane;
use crate::name::HostName;
use crate::poller::Interest;
use crate::refusal::Reason;
use crate::request::SandboxId;
use crate::splice::Pipe;
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
    /// The port that it comes from.
    pub from: u16,
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
            from: 0,
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
        match flow.connect(now) {
            Ok(()) => Ok(flow),
            Err(end) => {
                flow.reset();
                Err(end)
            }
        }
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
        if self.stage != Stage::Connecting
            && let Err(end) = self.move_up(turn)
        {
            if end == End::Broken && self.stage == Stage::Open {
                // An upstream that takes no more may have said why since.
                let _ = self.move_down(turn);
            }
            return Err(end);
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
