//! The changes of a sandbox, as an archive: what `sandbox.changes` does. A process of its own takes and sends them; this side starts it, tells its
//! caller what it says, and removes what it leaves.

mod attributes;
mod filter;
mod report;
mod taker;
pub mod walk;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, unlinkat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::{Value, json};

use self::report::{Report, Stage};
use self::taker::Order;
use crate::failure::{Failure, errno_name};
use crate::launcher::Launcher;
use crate::node::Node;
use crate::poller::Token;
use crate::remove_tree::Removal;
use crate::request::SandboxId;
use crate::sandbox::{Caller, Phase};
use crate::sys::clone::{self, Fork, Process, Reaped};
use crate::sys::{Errno, Result};
use daemon::socket;

/// Archives that are taken at once on a node: each keeps a disk and a core busy.
const MAX_TAKEN: usize = 4;
/// What snapshots and sockets of this are called: the hyphen keeps them apart from slots and ids.
const PREFIX: &str = "changes-";
const BACKLOG: i32 = 1;
/// A snapshot that cannot be removed is tried again after so long.
const RETRY_PERIOD: Duration = Duration::from_secs(30);

/// One archive that is being taken.
struct Taken {
    caller: Caller,
    id: SandboxId,
    slot: u32,
    channel: OwnedFd,
    process: Process,
    /// Its process may have the sandbox stand still: until it has its snapshot, and where there are none, to its end.
    is_holding: bool,
    /// The sandbox stood still before.
    was_frozen: bool,
    outcome: Option<std::result::Result<Value, Failure>>,
}

/// All archives that are being taken.
#[derive(Default)]
pub struct Changes {
    taken: HashMap<u32, Taken>,
    /// Those whose sandbox another holds still now: it would let the sandbox go on under them.
    waiting: VecDeque<(Caller, SandboxId)>,
    next: u32,
    /// Snapshots that are still to be removed, and when each is tried again.
    leftovers: Vec<(String, Instant)>,
}

impl Changes {
    /// A number whose snapshot's name is nobody's: earlier launchers may have left some.
    fn next_serial(&mut self) -> u32 {
        loop {
            let serial = self.next;
            self.next = serial.wrapping_add(1);
            let name = name_of(serial);
            if !self.taken.contains_key(&serial) && self.leftovers.iter().all(|(left, _)| *left != name) {
                return serial;
            }
        }
    }

    /// Whether the sandbox in a slot may stand still for somebody's archive.
    pub fn is_held(&self, slot: u32) -> bool {
        self.taken.values().any(|taken| taken.slot == slot && taken.is_holding)
    }
}

fn name_of(serial: u32) -> String {
    format!("{PREFIX}{serial}")
}

fn socket_of(serial: u32) -> String {
    format!("{PREFIX}{serial}.sock")
}

impl Launcher {
    /// Answers by a message once a reader may connect, and at the end of the archive.
    pub fn take_changes(&mut self, caller: Caller, id: &SandboxId) {
        if let Err(failure) = self.try_take_changes(caller, id) {
            self.answers.push((caller, Err(failure)));
        }
    }

    fn try_take_changes(&mut self, caller: Caller, id: &SandboxId) -> std::result::Result<(), Failure> {
        let slot = match self.find(id) {
            Some(sandbox) if matches!(sandbox.phase, Phase::Live) => sandbox.slot,
            Some(_) => {
                return Err(Failure::new("sandbox_not_ready", format!("the sandbox {id} is being made or has ended")));
            }
            None => return Err(Failure::new("sandbox_not_found", format!("there is no sandbox {id}"))),
        };
        if self.changes.taken.len() + self.changes.waiting.len() >= MAX_TAKEN {
            return Err(Failure::new("too_many_requests", "the changes of as many sandboxes as may be are being read")
                .with("limit", MAX_TAKEN));
        }
        if self.changes.is_held(slot) {
            self.changes.waiting.push_back((caller, id.clone()));
            return Ok(());
        }
        let serial = self.changes.next_serial();
        let started = self.start_taking(caller, id, slot, serial);
        if started.is_err() {
            let _ = unlinkat(&self.node.data.sockets, socket_of(serial), AtFlags::empty());
        }
        started.map_err(|errno| failure(id, Stage::Confine, errno, &[]))
    }

    fn start_taking(&mut self, caller: Caller, id: &SandboxId, slot: u32, serial: u32) -> Result<()> {
        let (slot_name, snapshot) = (Node::slot_name(slot), name_of(serial));
        let was_frozen = self.node.cgroups.is_frozen(&slot_name)?;
        let listener = socket::listen_at(
            self.node.data.sockets.as_fd(),
            &socket_of(serial),
            SocketType::STREAM,
            self.node.edge,
            BACKLOG,
        )?;
        let (channel, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let order = Order {
            cgroups: &self.node.cgroups,
            volume: &self.node.volume,
            slot_name: &slot_name,
            snapshot: &snapshot,
            root_uid: self.node.uids.root_of(slot),
            listener: listener.as_fd(),
            channel: far.as_fd(),
            is_frozen: was_frozen,
        };
        // SAFETY: the launcher has one thread.
        let process = match unsafe { clone::fork(0, None) }? {
            Fork::Parent(process) => process,
            Fork::Child => taker::run(&order),
        };
        let added = self
            .poller
            .add(&channel, Token::Changes(serial))
            .and_then(|()| self.poller.add(&process.pidfd, Token::ChangesEnd(serial)));
        let taken =
            Taken { caller, id: id.clone(), slot, channel, process, is_holding: true, was_frozen, outcome: None };
        if let Err(errno) = added {
            // Nobody would hear of its end. Before it has come, the process could still freeze what is let go here.
            self.poller.remove(&taken.channel);
            clone::end(&taken.process);
            self.let_go(&taken);
            self.changes.leftovers.push((snapshot, Instant::now()));
            return Err(errno);
        }
        self.changes.taken.insert(serial, taken);
        Ok(())
    }

    /// The process has said something.
    pub fn changes_ready(&mut self, serial: u32) {
        let Some(taken) = self.changes.taken.get_mut(&serial) else { return };
        let mut message = [0; report::LENGTH];
        let report = match rustix::io::read(&taken.channel, &mut message) {
            Err(Errno::INTR | Errno::AGAIN) => return,
            // Its end tells the rest.
            Ok(0) | Err(_) => return self.poller.remove(&taken.channel),
            Ok(length) => Report::decode(&message[..length]),
        };
        match report {
            Some(Report::Ready { frozen_us }) => {
                taken.is_holding = !self.node.volume.has_snapshots();
                let socket = self.node.data.socket_path(&socket_of(serial));
                self.messages.push((taken.caller, json!({ "socket": socket, "frozenUs": frozen_us })));
                self.take_waiting_changes();
            }
            Some(Report::Done(sent)) => {
                taken.outcome = Some(Ok(json!({ "entries": sent.entries, "bytes": sent.bytes })));
            }
            Some(Report::Failed { stage, errno, path }) => {
                taken.outcome = Some(Err(failure(&taken.id, stage, errno, &path)));
            }
            None => taken.outcome = Some(Err(Failure::internal("a process reported nonsense"))),
        }
    }

    /// The process has ended.
    pub fn changes_ended(&mut self, serial: u32) {
        let Some(taken) = self.changes.taken.get(&serial) else { return };
        if clone::reap(taken.process.pidfd.as_fd()) == Reaped::Alive {
            return;
        }
        // What it said last may have come in the same moment.
        self.changes_ready(serial);
        let Some(mut taken) = self.changes.taken.remove(&serial) else { return };
        self.poller.remove(&taken.channel);
        self.poller.remove(&taken.process.pidfd);
        self.let_go(&taken);
        let _ = unlinkat(&self.node.data.sockets, socket_of(serial), AtFlags::empty());
        let now = Instant::now();
        self.changes.leftovers.push((name_of(serial), now));
        self.remove_snapshots(now);
        let outcome = taken.outcome.take().unwrap_or_else(|| {
            Err(Failure::internal("the process that reads the changes died").with("id", taken.id.as_str()))
        });
        self.answers.push((taken.caller, outcome));
        self.take_waiting_changes();
    }

    fn take_waiting_changes(&mut self) {
        for (caller, id) in std::mem::take(&mut self.changes.waiting) {
            self.take_changes(caller, &id);
        }
    }

    /// The sandbox in a slot ends. Who holds it still goes first: it knows it by the slot, which may be another's soon.
    pub fn end_holding(&mut self, slot: u32) {
        for taken in self.changes.taken.values_mut().filter(|taken| taken.slot == slot && taken.is_holding) {
            taken.outcome = Some(Err(failure(&taken.id, Stage::Snapshot, Errno::NOENT, &[])));
            // Gone already is what is wanted.
            let _ = pidfd_send_signal(&taken.process.pidfd, Signal::KILL);
        }
    }

    /// The launcher ends, and these processes with it; the sandboxes go on.
    pub fn end_changes(&self) {
        for taken in self.changes.taken.values() {
            clone::end(&taken.process);
            self.let_go(taken);
        }
    }

    /// Nobody wants the archive any more.
    pub fn abandon_changes(&mut self, is_meant: impl Fn(Caller) -> bool) {
        self.changes.waiting.retain(|(caller, _)| !is_meant(*caller));
        for taken in self.changes.taken.values().filter(|taken| is_meant(taken.caller)) {
            // Gone already is what is wanted.
            let _ = pidfd_send_signal(&taken.process.pidfd, Signal::KILL);
        }
    }

    /// A process may have been killed before it let its sandbox go on.
    fn let_go(&self, taken: &Taken) {
        if taken.is_holding && !taken.was_frozen && self.find(&taken.id).is_some() {
            self.node.cgroups.let_run(&Node::slot_name(taken.slot));
        }
    }

    /// Removes what is due. Returns the time until more is.
    pub fn remove_snapshots(&mut self, now: Instant) -> Option<Duration> {
        for (name, due) in std::mem::take(&mut self.changes.leftovers) {
            if due > now {
                self.changes.leftovers.push((name, due));
                continue;
            }
            let group = self.node.volume.group_of(&name).ok().flatten();
            match self.node.volume.remove(&name) {
                Ok(Removal::Done) => self.stale_groups.extend(group),
                Ok(Removal::More) => self.changes.leftovers.push((name, now)),
                Err(errno) => {
                    self.warn("snapshot-not-removed", &json!({ "name": name, "errno": errno_name(errno) }));
                    self.changes.leftovers.push((name, now + RETRY_PERIOD));
                }
            }
        }
        self.changes.leftovers.iter().map(|(_, due)| due.saturating_duration_since(now)).min()
    }

    /// What a launcher that died has left: snapshots; and sandboxes that stand still, where the process that was to let them go on died with it. One that
    /// lives takes the launcher's lock with it until it has its snapshot, and ends where it has none.
    pub fn remove_stray_snapshots(&mut self, now: Instant) -> Result<()> {
        for slot in self.slots_by_id.values() {
            self.node.cgroups.let_run(&Node::slot_name(*slot));
        }
        let names = self.node.volume.names()?.into_iter().filter(|name| name.starts_with(PREFIX));
        self.changes.leftovers.extend(names.map(|name| (name, now)));
        self.remove_snapshots(now);
        Ok(())
    }
}

fn failure(id: &SandboxId, stage: Stage, errno: Errno, path: &[u8]) -> Failure {
    let (code, message) = match (stage, errno) {
        (Stage::Freeze, Errno::TIMEDOUT) => ("sandbox_not_ready", "the sandbox does not stand still"),
        (Stage::Freeze | Stage::Snapshot, Errno::NOENT | Errno::NODEV) => {
            ("sandbox_not_ready", "the sandbox is ending")
        }
        (_, Errno::NOSPC | Errno::DQUOT) => ("disk_full", "the volume has no room for a snapshot"),
        (Stage::Connect | Stage::Send, _) => ("cancelled", "nobody reads the changes"),
        (Stage::Read, Errno::NAMETOOLONG | Errno::TOOBIG | Errno::OPNOTSUPP | Errno::NODEV) => {
            ("archive_unsafe", "the sandbox has a file that no archive takes")
        }
        _ => ("internal", "the changes of the sandbox cannot be read"),
    };
    let failure =
        Failure::new(code, format!("{message}: {id}")).with("stage", stage.name()).with("errno", errno_name(errno));
    if path.is_empty() { failure } else { failure.with("path", String::from_utf8_lossy(path).into_owned()) }
}
