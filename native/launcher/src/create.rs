//! Creates: from a blank where one is ready, else a new process that makes everything itself.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Instant;

use rustix::fs::{AtFlags, statat};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use serde_json::json;

use crate::blank::REST;
use crate::failure::{self, Failure};
use crate::init::{self, Content, Plan, READY};
use crate::launcher::Launcher;
use crate::namespaces::Namespaces;
use crate::node::Node;
use crate::poller::Token;
use crate::profile::Profile;
use crate::record::{self, Record, now_ms};
use crate::request::{Create, Limits, Lower};
use crate::sandbox::{Caller, Ending, Phase, Sandbox, Starting, blank_socket_name, socket_name_of};
use crate::sys::Errno;
use crate::sys::clone::{self, CLONE_NEWCGROUP, CLONE_NEWIPC, CLONE_NEWNS, CLONE_NEWPID, CLONE_NEWUTS, Fork, Process};
use crate::{cgroup, sys};
use daemon::socket;

/// Processes that are on their way at once: enough for every core, few enough that each is soon done.
pub const MAX_STARTING_PER_CPU: usize = 2;
/// Connections that may wait for aether to take them.
const BACKLOG: i32 = 128;
/// An inode and its name take a quarter of it: files alone never fill the memory.
const SHM_BYTES_PER_INODE: u64 = 4_096;
const SHM_MIN_INODES: u64 = 256;
/// `/dev/shm` may hold this part of the memory limit.
const SHM_DIVISOR: u64 = 2;

impl Launcher {
    /// Takes up creates that wait, as far as the node is free for them.
    pub fn start_waiting(&mut self, now: Instant) {
        let limit = MAX_STARTING_PER_CPU * self.node.cpus.len();
        while let Some((_, create)) = self.waiting.front() {
            let is_at_hand = create.profile == Profile::default() && self.blanks.serves(&create.lower);
            if self.starting >= limit && !is_at_hand {
                return;
            }
            let Some((caller, create)) = self.waiting.pop_front() else { return };
            if let Err(failure) = self.create(caller, create, now) {
                self.answers.push((caller, Err(failure)));
            }
        }
    }

    fn create(&mut self, caller: Caller, create: Create, now: Instant) -> Result<(), Failure> {
        if let Some(present) = self.find(&create.id) {
            return match &present.phase {
                // The answer to an earlier try was lost.
                Phase::Live
                    if present.lower == create.lower
                        && present.profile == create.profile
                        && present.tripwires == create.tripwires =>
                {
                    let slot = present.slot;
                    if self.wait_for_tripwires(slot, caller) {
                        return Ok(());
                    }
                    let Some(present) = self.find(&create.id) else { return Ok(()) };
                    let answer = self.created(present);
                    self.answers.push((caller, Ok(answer)));
                    Ok(())
                }
                Phase::Starting(_) | Phase::Ending(_) => Err(Failure::new(
                    "sandbox_not_ready",
                    format!("the sandbox {} is being made or removed", create.id),
                )),
                _ => Err(Failure::new("idempotency_conflict", format!("there is another sandbox {}", create.id))),
            };
        }
        if self.live_count() >= self.max_sandboxes {
            let live = self.live_count();
            return Err(Failure::new("no_capacity", "the node has no slot for another sandbox")
                .with("resource", "slots")
                .with("limit", self.max_sandboxes)
                .with("current", live)
                .with("requested", 1));
        }
        // Blanks are made before anybody is known.
        let blank = (create.profile == Profile::default()).then(|| self.blanks.take(&create.lower)).flatten();
        match blank {
            Some(taken) => self.attach_blank(taken, caller, &create, now),
            None => {
                self.lowers.acquire(&create.lower)?;
                self.start_directly(caller, create, now);
                Ok(())
            }
        }
    }

    fn start_directly(&mut self, caller: Caller, create: Create, now: Instant) {
        let ready = self.namespaces.take();
        let Some(slot) = ready.as_ref().map(|ready| ready.slot).or_else(|| self.free_slots.pop_front()) else {
            self.lowers.release(&create.lower, false);
            self.answers.push((caller, Err(Failure::new("unavailable", "slots are still being cleaned"))));
            return;
        };
        let namespaces = ready.map(|ready| ready.namespaces);
        self.slots_by_id.insert(create.id.clone(), slot);
        let sandbox = Sandbox {
            id: Some(create.id.clone()),
            slot,
            pid: 0,
            pid_identity: 0,
            net_identity: None,
            process: None,
            lower: create.lower.clone(),
            profile: create.profile,
            tripwires: create.tripwires.clone(),
            absent_tripwires: Vec::new(),
            is_adopted: false,
            created_at_ms: now_ms(),
            phase: Phase::Ending(Ending::new(now)),
        };
        self.sandboxes.insert(slot, sandbox);
        if let Err(failure) = self.spawn(slot, namespaces, Some((caller, &create))) {
            self.fail_create(slot, Some(caller), failure, now);
        }
    }

    /// Starts the making of a blank.
    pub fn start_blank(&mut self, now: Instant) {
        let Some(slot) = self.free_slots.pop_front() else { return };
        let sandbox = Sandbox {
            id: None,
            slot,
            pid: 0,
            pid_identity: 0,
            net_identity: None,
            process: None,
            lower: Lower::default(),
            profile: Profile::default(),
            tripwires: Vec::new(),
            absent_tripwires: Vec::new(),
            is_adopted: false,
            created_at_ms: 0,
            phase: Phase::Ending(Ending::new(now)),
        };
        self.sandboxes.insert(slot, sandbox);
        if let Err(failure) = self.spawn(slot, None, None) {
            self.fail_create(slot, None, failure, now);
        }
    }

    /// Makes the groups, the socket and the process of a slot, writes its record, and lets the process go on.
    fn spawn(
        &mut self,
        slot: u32,
        namespaces: Option<Namespaces>,
        order: Option<(Caller, &Create)>,
    ) -> Result<(), Failure> {
        let failed = |stage: &'static str| move |errno: Errno| failure::stage(stage, errno);
        let name = Node::slot_name(slot);
        let groups = self.node.cgroups.create(&name).map_err(failed("cgroup"))?;
        let limits = order.map(|(_, create)| create.limits);
        if let Some(limits) = &limits {
            self.node.cgroups.set_limits(&name, limits).map_err(failed("limits"))?;
        }
        let socket_name = order.map_or_else(|| blank_socket_name(slot), |(_, create)| socket_name_of(&create.id));
        let listener = socket::listen_at(
            self.node.data.sockets.as_fd(),
            &socket_name,
            SocketType::STREAM,
            self.node.edge,
            BACKLOG,
        )
        .map_err(failed("socket"))?;
        let flags = SocketFlags::CLOEXEC;
        let (channel, far) =
            socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, flags, None).map_err(failed("channel"))?;
        let cpus = limits.and_then(|limits| self.node.cores_for(limits.cpu_millis, self.core_turn));
        let content = match order {
            Some((_, create)) => Some(Content {
                lower: self.lowers.mount(&create.lower).ok_or_else(|| Failure::internal("the layers are gone"))?,
                hostname: &create.hostname,
                nameserver: create.nameserver,
                disk_bytes: create.limits.disk_bytes,
                shm_bytes: shm_bytes(&create.limits),
                cpus: cpus.as_ref(),
            }),
            None => None,
        };
        let profile = order.map(|(_, create)| create.profile).unwrap_or_default();
        let plan = Plan {
            slot_name: &name,
            root_uid: self.node.uids.root_of(slot),
            listener: listener.as_fd(),
            channel: far.as_fd(),
            aether: self.node.aether.as_fd(),
            groups: &groups,
            namespaces: namespaces.as_ref(),
            volume: &self.node.volume,
            templates: &self.node.templates,
            profile,
            filter: self.node.sandbox_filter(profile),
            refusals: self.node.refusals(),
            cgroups: &self.node.cgroups,
            has_oom_adjustment: self.node.has_oom_adjustment,
            apparmor: self.node.apparmor.as_ref().map(|apparmor| apparmor.word(profile)),
            content,
        };
        let process = fork(&plan).map_err(failed("clone"))?;
        self.core_turn = self.core_turn.wrapping_add(1);
        drop((listener, far));
        self.adopt_child(slot, process, channel, order)
    }

    fn adopt_child(
        &mut self,
        slot: u32,
        process: Process,
        channel: OwnedFd,
        order: Option<(Caller, &Create)>,
    ) -> Result<(), Failure> {
        let failed = |stage: &'static str| move |errno: Errno| failure::stage(stage, errno);
        let pid_identity = clone::identity(&process.pidfd).map_err(failed("record"))?;
        self.poller.add(&process.pidfd, Token::Process(slot)).map_err(failed("epoll"))?;
        self.poller.add(&channel, Token::Channel(slot)).map_err(failed("epoll"))?;
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return Err(Failure::internal("the slot is gone")) };
        sandbox.pid = process.pid.as_raw_nonzero().get().unsigned_abs();
        sandbox.pid_identity = pid_identity;
        sandbox.process = Some(process);
        if order.is_some() {
            write_record(&self.node, sandbox, None).map_err(failed("record"))?;
        }
        match rustix::io::write(&channel, &[1]) {
            // It has failed already, and said why.
            Ok(_) | Err(Errno::PIPE) => {}
            Err(errno) => return Err(failure::stage("channel", errno)),
        }
        sandbox.phase = Phase::Starting(Starting { channel, caller: order.map(|(caller, _)| caller), is_ready: false });
        self.starting += 1;
        Ok(())
    }

    /// A process on its way has said something, or has closed the channel: it executes aether, or is gone.
    pub fn channel_ready(&mut self, slot: u32, now: Instant) {
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        let Phase::Starting(starting) = &mut sandbox.phase else { return };
        let mut message = [0; init::REPORT_LENGTH];
        let caller = starting.caller;
        let failure = match rustix::io::read(&starting.channel, &mut message) {
            Ok(length) if message[..length] == READY => {
                starting.is_ready = true;
                // It is in its network: who waits to see that there is told only now, since whoever looks earlier finds the launcher's.
                return self.note_network(slot);
            }
            Ok(0) if starting.is_ready && sandbox.process.is_some() => {
                self.poller.remove(&starting.channel);
                self.starting -= 1;
                return self.started(slot, caller);
            }
            Ok(0) => Failure::new("create_failed", "the process died while it was made").with("stage", "setup"),
            Ok(length) => match init::decode_report(&message[..length]) {
                Some((stage, errno)) => failure::stage(stage.name(), errno),
                None => Failure::internal("a process reported nonsense"),
            },
            // It died before it read its word, which is told before its last message and only once.
            Err(Errno::INTR | Errno::AGAIN | Errno::CONNRESET) => return,
            Err(errno) => failure::stage("channel", errno),
        };
        self.fail_create(slot, caller, failure, now);
    }

    fn started(&mut self, slot: u32, caller: Option<Caller>) {
        self.note_network(slot);
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        match caller {
            None => {
                sandbox.phase = Phase::Blank;
                self.blanks.add_bare(slot);
            }
            Some(caller) => {
                sandbox.phase = Phase::Live;
                self.watch_created(slot, caller);
            }
        }
    }

    /// Nobody could ask anything of it yet: its network is the one that it was made with.
    fn note_network(&mut self, slot: u32) {
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        if sandbox.net_identity.is_some() {
            return;
        }
        let shown = statat(&self.node.proc, format!("{}/ns/net", sandbox.pid), AtFlags::empty());
        sandbox.net_identity = shown.ok().map(|shown| shown.st_ino);
        if let Err(errno) = write_record(&self.node, sandbox, None) {
            self.warn("network-not-noted", &json!({ "slot": slot, "errno": failure::errno_name(errno) }));
        }
    }

    pub fn answer_created(&mut self, slot: u32, caller: Caller) {
        if let Some(sandbox) = self.sandboxes.get(&slot) {
            let answer = self.created(sandbox);
            self.answers.push((caller, Ok(answer)));
        }
    }

    fn created(&self, sandbox: &Sandbox) -> serde_json::Value {
        let mut answer = json!({
            "id": sandbox.id.as_ref().map(crate::request::SandboxId::as_str),
            "pid": sandbox.pid,
            "socket": self.node.data.socket_path(&sandbox.socket_name()),
        });
        if !sandbox.absent_tripwires.is_empty() {
            answer["absentTripwires"] = json!(sandbox.absent_tripwires);
        }
        answer
    }

    /// Removes what there is of a sandbox; then its caller hears why.
    pub fn fail_create(&mut self, slot: u32, caller: Option<Caller>, failure: Failure, now: Instant) {
        let fields =
            json!({ "slot": slot, "code": failure.code, "message": failure.message, "details": failure.details });
        self.warn("create-failed", &fields);
        if let Some(Phase::Starting(starting)) = self.sandboxes.get(&slot).map(|sandbox| &sandbox.phase) {
            self.poller.remove(&starting.channel);
            self.starting -= 1;
        }
        if caller.is_none() {
            self.refill_after = now + REST;
        }
        let mut ending = Ending::new(now);
        ending.failed = caller.map(|caller| (caller, failure));
        self.begin_ending(slot, ending);
    }
}

/// Files that `/dev/shm` may hold: their inodes are memory, which no kill of a program gives back.
pub fn shm_inodes(shm_bytes: u64) -> u64 {
    (shm_bytes / SHM_BYTES_PER_INODE).max(SHM_MIN_INODES)
}

pub fn shm_bytes(limits: &Limits) -> u64 {
    limits.memory_bytes / SHM_DIVISOR
}

/// Writes down what adoption needs.
pub fn write_record(node: &Node, sandbox: &Sandbox, exit: Option<record::Exit>) -> sys::Result<()> {
    let Some(id) = &sandbox.id else { return Ok(()) };
    let record = Record {
        id: id.clone(),
        boot: node.boot.clone(),
        slot: sandbox.slot,
        pid: sandbox.pid,
        pid_identity: sandbox.pid_identity,
        net_identity: sandbox.net_identity,
        lower: sandbox.lower.clone(),
        profile: sandbox.profile,
        tripwires: sandbox.tripwires.clone(),
        created_at_ms: sandbox.created_at_ms,
        exit,
    };
    record::write(&node.data.records, &record)
}

fn fork(plan: &Plan<'_>) -> sys::Result<Process> {
    let mut namespaces = CLONE_NEWNS | CLONE_NEWPID | CLONE_NEWIPC | CLONE_NEWUTS;
    let group: Option<BorrowedFd<'_>> = match plan.groups {
        cgroup::Entry::Born(group) => {
            // Its cgroup namespace begins at the group that it is born in.
            namespaces |= CLONE_NEWCGROUP;
            Some(group.as_fd())
        }
        cgroup::Entry::Join(_) => None,
    };
    // SAFETY: the launcher has one thread.
    match unsafe { clone::fork(namespaces, group) }? {
        Fork::Parent(process) => Ok(process),
        Fork::Child => init::run(plan),
    }
}
