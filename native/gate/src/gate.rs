//! All connections, and the policies that they live under.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::net::{SocketFlags, acceptfrom_with, getsockname, sockopt};
use serde_json::{Value, json};

use crate::admission::{Crowd, admit};
use crate::bounds::{ACCEPTS_A_TURN, MAX_CONNECTIONS, MAX_HELD, MAX_HELD_PER_SANDBOX, OTHER_FILES, SPLICE_BYTES};
use crate::deadlines::Deadlines;
use crate::events::Refused;
use crate::flow::{self, End, Flow, Stage, Tools, Turn};
use crate::name::HostName;
use crate::poller::{Interest, Poller, Ready, Token};
use crate::refusal::Reason;
use crate::request::{NewPins, NewPolicy, SandboxId};
use crate::splice::Pipe;
use crate::table::{Sandbox, Table};
use crate::{Errno, Result};
use daemon::failure::Failure;

pub struct Gate {
    pub poller: Poller,
    table: Table,
    flows: HashMap<u32, Flow>,
    next_flow: u32,
    deadlines: Deadlines,
    tools: Tools,
    held: usize,
    max_connections: usize,
    /// Connections that came from no sandbox that is known.
    strangers: u64,
    /// What is to be told.
    pub refused: Vec<Refused>,
}

impl Gate {
    /// `files`: how many this process may open.
    pub fn new(files: usize) -> Result<Self> {
        Ok(Self {
            poller: Poller::new()?,
            table: Table::default(),
            flows: HashMap::new(),
            next_flow: 0,
            deadlines: Deadlines::default(),
            tools: Tools { pipe: Pipe::new()?, scratch: vec![0; SPLICE_BYTES] },
            held: 0,
            max_connections: (files.saturating_sub(OTHER_FILES) / 2).min(MAX_CONNECTIONS),
            strangers: 0,
            refused: Vec::new(),
        })
    }

    /// Takes connections that wait. An error is the kernel's want of something: to ask again at once would be in vain.
    pub fn accept(&mut self, listener: &OwnedFd, now: Instant) -> Result<()> {
        for _ in 0..ACCEPTS_A_TURN {
            let (client, peer) = match acceptfrom_with(listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
                Ok(accepted) => accepted,
                Err(Errno::AGAIN) => break,
                // One that was gone before it was taken tells of that only here (accept(2)).
                Err(Errno::INTR | Errno::CONNABORTED | Errno::PROTO | Errno::NETDOWN | Errno::HOSTUNREACH) => continue,
                Err(error) => return Err(error),
            };
            let address = |address: rustix::net::SocketAddrAny| SocketAddr::try_from(address).ok();
            let (peer, destination) = (peer.and_then(address), getsockname(&client).ok().and_then(address));
            if let (Some(peer), Some(destination)) = (peer, destination) {
                self.admit(client, peer, destination, now);
            }
        }
        Ok(())
    }

    fn admit(&mut self, client: OwnedFd, peer: SocketAddr, destination: SocketAddr, now: Instant) {
        let (number, open) = (self.unused_number(), self.flows.len());
        let Some(sandbox) = self.table.at(peer.ip()) else {
            self.strangers += 1;
            return reset(client);
        };
        sandbox.counts.accepted += 1;
        let id = sandbox.id.clone();
        let flow = match admit(sandbox, destination, Crowd { open, most: self.max_connections }, now) {
            Ok(None) => Ok(Flow::deciding(client, id.clone(), destination, now)),
            Ok(Some(name)) => Flow::carrying_any(client, id.clone(), destination, name, now),
            Err(reason) => {
                sandbox.counts.refused += 1;
                let event = event(sandbox, reason, None, (peer.port(), destination), now);
                self.refused.extend(event);
                return reset(client);
            }
        };
        let Ok(mut flow) = flow else {
            sandbox.counts.unreachable += 1;
            return;
        };
        flow.from = peer.port();
        if flow::tune(&flow.client).is_err() {
            return flow.reset();
        }
        sandbox.flows.insert(number);
        sandbox.counts.undecided += usize::from(flow.stage == Stage::Deciding);
        self.deadlines.change(number, None, flow.deadline);
        self.flows.insert(number, flow);
        // Its first bytes often are there already.
        self.advance(number, now);
    }

    /// Numbers come again after four billions, when old connections may still be there.
    fn unused_number(&mut self) -> u32 {
        while self.flows.contains_key(&self.next_flow) {
            self.next_flow = self.next_flow.wrapping_add(1);
        }
        let number = self.next_flow;
        self.next_flow = self.next_flow.wrapping_add(1);
        number
    }

    /// Something has happened on a connection's socket.
    pub fn ready(&mut self, number: u32, ready: Ready, now: Instant) {
        let Some(flow) = self.flows.get(&number) else { return };
        let is_client = matches!(ready.token, Token::Client(_));
        if ready.has_failed {
            let is_refused = !is_client && flow.stage == Stage::Connecting;
            if flow.stage == Stage::Open {
                // What the other side has sent before goes on first: often it says why.
                self.advance(number, now);
            }
            return self.end(number, if is_refused { End::Unreachable } else { End::Broken }, now);
        }
        self.advance(number, now);
        if ready.has_hung_up {
            self.ignore_hang_up(number, usize::from(!is_client));
        }
    }

    /// A socket that is over in both directions while bytes still wait for the other is told of again and again, unless it is not watched.
    fn ignore_hang_up(&mut self, number: u32, side: usize) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let sockets = [Some(&flow.client), flow.upstream.as_ref()];
        if let Some(socket) = sockets[side]
            && flow.watched[side].is_some_and(Interest::is_none)
        {
            self.poller.remove(socket);
            flow.watched[side] = None;
        }
    }

    fn advance(&mut self, number: u32, now: Instant) {
        let Some(flow) = self.flows.get_mut(&number) else { return };
        let Some(sandbox) = self.table.get_mut(&flow.sandbox) else { return self.end(number, End::Broken, now) };
        let (stage, deadline) = (flow.stage, flow.deadline);
        let outcome = flow.turn(&mut Turn { tools: &mut self.tools, sandbox, now });
        self.deadlines.change(number, deadline, flow.deadline);
        let counts = &mut sandbox.counts;
        if stage == Stage::Deciding && flow.stage != stage {
            counts.undecided -= 1;
            counts.encrypted_hellos += u64::from(flow.has_encrypted());
        }
        counts.connected += u64::from(flow.stage == Stage::Open && stage != Stage::Open);
        let [up, down] = std::mem::take(&mut flow.moved);
        counts.bytes_up += up;
        counts.bytes_down += down;
        let held = flow.held_now();
        let before = std::mem::replace(&mut flow.held, held);
        counts.held_bytes = counts.held_bytes - before + held;
        self.held = self.held - before + held;
        let is_too_much = held > before && (counts.held_bytes > MAX_HELD_PER_SANDBOX || self.held > MAX_HELD);
        match outcome {
            Ok(()) if is_too_much => self.end(number, End::Refused(Reason::TooManyBytes, None), now),
            Ok(()) => {
                if self.watch(number).is_err() {
                    self.end(number, End::Broken, now);
                }
            }
            Err(end) => self.end(number, end, now),
        }
    }

    fn watch(&mut self, number: u32) -> Result<()> {
        let Some(flow) = self.flows.get_mut(&number) else { return Ok(()) };
        let sides = [(Some(&flow.client), Token::Client(number)), (flow.upstream.as_ref(), Token::Upstream(number))];
        for (side, wanted) in flow.interests().into_iter().enumerate() {
            let (Some(socket), token) = sides[side] else { continue };
            match flow.watched[side] {
                Some(watched) if watched == wanted => continue,
                Some(_) => self.poller.set(socket, token, wanted)?,
                // One that was let go for having hung up is wanted again only for what it has.
                None if wanted.is_none() && flow.stage == Stage::Open => continue,
                None => self.poller.add(socket, token, wanted)?,
            }
            flow.watched[side] = Some(wanted);
        }
        Ok(())
    }

    fn end(&mut self, number: u32, end: End, now: Instant) {
        let Some(flow) = self.flows.remove(&number) else { return };
        self.deadlines.change(number, flow.deadline, None);
        // Its sockets leave the poller as they are closed: nobody has copies of them.
        self.held -= flow.held;
        if let Some(sandbox) = self.table.get_mut(&flow.sandbox) {
            sandbox.flows.remove(&number);
            let counts = &mut sandbox.counts;
            counts.held_bytes -= flow.held;
            counts.undecided -= usize::from(flow.stage == Stage::Deciding);
            match &end {
                End::Done | End::Broken => {}
                End::Unreachable => counts.unreachable += 1,
                End::Refused(Reason::PolicyChanged, _) => counts.cut += 1,
                End::Refused(..) => counts.refused += 1,
            }
            if let End::Refused(reason, name) = &end {
                let event = event(sandbox, *reason, name.clone(), (flow.from, flow.destination), now);
                self.refused.extend(event);
            }
        }
        if end != End::Done {
            flow.reset();
        }
    }

    /// Ends what has taken too long.
    pub fn expire(&mut self, now: Instant) {
        for number in self.deadlines.over(now) {
            let Some(flow) = self.flows.get(&number) else { continue };
            let end = match flow.stage {
                Stage::Connecting => End::Unreachable,
                Stage::Deciding | Stage::Open => End::Refused(Reason::TooSlow, flow.name().cloned()),
            };
            self.end(number, end, now);
        }
    }

    pub fn timeout(&self, now: Instant) -> Option<Duration> {
        self.deadlines.wait(now)
    }

    /// Puts a policy in force, and cuts what it no longer allows.
    pub fn set(&mut self, policy: NewPolicy, now: Instant) -> std::result::Result<Value, Failure> {
        let id = policy.id.clone();
        self.table.set(policy, now)?;
        let sandbox = self.table.get(&id)?;
        let is_cut = |number: &&u32| self.flows.get(number).is_some_and(|flow| !flow.is_allowed(sandbox));
        let cut: Vec<u32> = sandbox.flows.iter().filter(is_cut).copied().collect();
        let open = sandbox.flows.len() - cut.len();
        for number in &cut {
            let name = self.flows.get(number).and_then(|flow| flow.name().cloned());
            self.end(*number, End::Refused(Reason::PolicyChanged, name), now);
        }
        Ok(json!({ "open": open, "cut": cut.len() }))
    }

    pub fn add_pins(&mut self, pins: NewPins, now: Instant) -> std::result::Result<Value, Failure> {
        self.table.add_pins(pins, now).map(|()| json!({}))
    }

    /// Forgets a sandbox and cuts all that it has.
    pub fn remove(&mut self, id: &SandboxId, now: Instant) -> Value {
        let Some(sandbox) = self.table.remove(id) else { return json!({ "cut": 0 }) };
        for number in &sandbox.flows {
            self.end(*number, End::Broken, now);
        }
        json!({ "cut": sandbox.flows.len() })
    }

    pub fn counts(&self, id: &SandboxId) -> std::result::Result<Value, Failure> {
        let sandbox = self.table.get(id)?;
        let counts = sandbox.counts;
        Ok(json!({
            "generation": sandbox.generation(),
            "pins": sandbox.pins(),
            "open": sandbox.flows.len(),
            "undecided": counts.undecided,
            "heldBytes": counts.held_bytes,
            "accepted": counts.accepted,
            "connected": counts.connected,
            "unreachable": counts.unreachable,
            "refused": counts.refused,
            "cut": counts.cut,
            "encryptedHellos": counts.encrypted_hellos,
            "bytesUp": counts.bytes_up,
            "bytesDown": counts.bytes_down,
        }))
    }

    pub fn info(&self) -> Value {
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "sandboxes": self.table.count(),
            "open": self.flows.len(),
            "maxOpen": self.max_connections,
            "heldBytes": self.held,
            "strangers": self.strangers,
        })
    }
}

/// What is told of a refusal, within the sandbox's budget.
fn event(
    sandbox: &mut Sandbox,
    reason: Reason,
    name: Option<HostName>,
    (from, destination): (u16, SocketAddr),
    now: Instant,
) -> Option<Refused> {
    let missed = sandbox.events.take(now)?;
    Some(Refused { id: sandbox.id.clone(), reason, name, from, destination, missed })
}

fn reset(client: impl AsFd) {
    let _ = sockopt::set_socket_linger(&client, Some(Duration::ZERO));
}
