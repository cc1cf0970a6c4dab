//! Blank sandboxes: made ahead with everything but a root filesystem, and most of them furnished with one that is likely to be asked for, so that a
//! create only sets limits and names.

use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{CWD, renameat};
use serde_json::json;

use crate::blank_pool::{Step, Taken};
use crate::create::{shm_bytes, shm_inodes, write_record};
use crate::failure::{self, Failure, errno_name};
use crate::launcher::Launcher;
use crate::namespace_pool::Answer;
use crate::node::Node;
use crate::record::now_ms;
use crate::request::{Create, Lower};
use crate::rootfs;
use crate::sandbox::{Caller, Ending, Phase, blank_socket_name, socket_name_of};
use crate::sys::clone::{self, Process};
use crate::sys::{Errno, mount, process};

/// Blanks that are made at once.
const MAX_STARTING_BLANKS: usize = 1;
/// After a failure the pools rest.
pub const REST: Duration = Duration::from_secs(1);
/// Filling the pools waits for a pause in the requests, the shorter the emptier they are: by eighths of a full pool.
const PAUSES_MS: [u64; 9] = [0, 2, 2, 3, 10, 20, 20, 20, 20];

/// So many are made as fast as the pauses allow, more one by one: a full pool is for bursts, and need not be there at once.
const EAGER_BLANKS: usize = 64;
const UNHURRIED: Duration = Duration::from_millis(10);

/// The step that failed.
type Failed = (&'static str, Errno);

fn at(stage: &'static str) -> impl Fn(Errno) -> Failed {
    move |errno| (stage, errno)
}

impl Launcher {
    /// Makes a create of a blank.
    pub fn attach_blank(&mut self, taken: Taken, caller: Caller, create: &Create, now: Instant) -> Result<(), Failure> {
        let slot = match taken {
            Taken::Furnished(slot) => slot,
            Taken::Bare(slot) => {
                if let Err(failure) = self.lowers.acquire(&create.lower) {
                    self.blanks.add_bare(slot);
                    return Err(failure);
                }
                slot
            }
        };
        self.slots_by_id.insert(create.id.clone(), slot);
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return Err(Failure::internal("the blank is gone")) };
        sandbox.id = Some(create.id.clone());
        sandbox.lower.clone_from(&create.lower);
        sandbox.tripwires.clone_from(&create.tripwires);
        sandbox.created_at_ms = now_ms();
        let made = match taken {
            Taken::Furnished(_) => self.finish(slot, create, None),
            Taken::Bare(_) => {
                self.assemble(slot, &create.lower).and_then(|root| self.finish(slot, create, Some(&root)))
            }
        };
        match made {
            Ok(()) => {
                if let Some(sandbox) = self.sandboxes.get_mut(&slot) {
                    sandbox.phase = Phase::Live;
                }
                self.watch_created(slot, caller);
            }
            Err((stage, errno)) => self.fail_create(slot, Some(caller), failure::stage(stage, errno), now),
        }
        Ok(())
    }

    fn process_of(&self, slot: u32) -> Result<&Process, Failed> {
        self.sandboxes.get(&slot).and_then(|sandbox| sandbox.process.as_ref()).ok_or(("blank", Errno::SRCH))
    }

    /// Mounts what a blank stands on and its writable layer.
    fn assemble(&self, slot: u32, lower: &Lower) -> Result<OwnedFd, Failed> {
        let below = self.lowers.mount(lower).ok_or(("root", Errno::NOENT))?;
        let upper = self.node.volume.open_upper(&Node::slot_name(slot)).map_err(at("volume"))?;
        let user = clone::user_namespace_of(&self.process_of(slot)?.pidfd).map_err(at("user-namespace"))?;
        rootfs::assemble(below, user.as_fd(), &upper).map_err(at("root"))
    }

    /// Gives a blank what is the sandbox's own: limits, name, record and socket; and its root, if it has none yet.
    fn finish(&mut self, slot: u32, create: &Create, root: Option<&OwnedFd>) -> Result<(), Failed> {
        let name = Node::slot_name(slot);
        let node = &self.node;
        let process = self.process_of(slot)?;
        // First of all: its network is made as soon as it is written down, beside the rest.
        if let Some(sandbox) = self.sandboxes.get(&slot) {
            write_record(node, sandbox, None).map_err(at("record"))?;
        }
        node.cgroups.set_limits(&name, &create.limits).map_err(at("limits"))?;
        node.volume.set_limit(&name, create.limits.disk_bytes).map_err(at("volume"))?;
        let shm_bytes = shm_bytes(&create.limits);
        let shm_settings = [("size", shm_bytes.to_string()), ("nr_inodes", shm_inodes(shm_bytes).to_string())];
        self.inside(process, || {
            root.map_or(Ok(()), rootfs::enter_all)?;
            // The working directory is the root now.
            rootfs::name(CWD, &create.hostname, create.nameserver)?;
            rustix::system::sethostname(create.hostname.as_bytes())?;
            mount::reconfigure(CWD, "/dev/shm", &shm_settings)
        })
        .map_err(at("root"))?;
        if let Some(cpus) = node.cores_for(create.limits.cpu_millis, self.core_turn) {
            rustix::thread::sched_setaffinity(Some(process.pid), &cpus).map_err(at("limits"))?;
        }
        let sockets = &node.data.sockets;
        renameat(sockets, blank_socket_name(slot), sockets, socket_name_of(&create.id)).map_err(at("socket"))?;
        self.core_turn = self.core_turn.wrapping_add(1);
        Ok(())
    }

    /// Gives a blank a root filesystem ahead of any create.
    fn furnish(&mut self, slot: u32, lower: &Lower, now: Instant) {
        self.blanks.remove(slot);
        if let Err(failure) = self.lowers.acquire(lower) {
            self.blanks.add_bare(slot);
            self.give_up_blanks(now, |other| other == lower);
            let fields = json!({ "code": failure.code, "details": failure.details });
            return self.warn("blank-not-furnished", &fields);
        }
        if let Some(sandbox) = self.sandboxes.get_mut(&slot) {
            sandbox.lower.clone_from(lower);
        }
        let furnished = self.assemble(slot, lower).and_then(|root| {
            let process = self.process_of(slot)?;
            self.inside(process, || rootfs::enter_all(&root)).map_err(at("root"))
        });
        match furnished {
            Ok(()) => self.blanks.add_furnished(slot, lower),
            Err((stage, errno)) => self.fail_create(slot, None, failure::stage(stage, errno), now),
        }
    }

    /// Removes blanks that stand on what is meant, and foresees no more creates with it.
    pub fn give_up_blanks(&mut self, now: Instant, is_meant: impl Fn(&Lower) -> bool) {
        for slot in self.blanks.forget(is_meant) {
            self.begin_ending(slot, Ending::new(now));
        }
    }

    /// Does something in the mount and uts namespaces of a process that has not run anybody's program yet.
    fn inside(&self, process: &Process, work: impl FnOnce() -> Result<(), Errno>) -> Result<(), Errno> {
        process::enter(process.pidfd.as_fd(), libc::CLONE_NEWNS | libc::CLONE_NEWUTS)?;
        let outcome = work();
        let is_back = process::enter(self.node.mount_namespace.as_fd(), libc::CLONE_NEWNS)
            .and_then(|()| process::enter(self.node.uts_namespace.as_fd(), libc::CLONE_NEWUTS));
        if is_back.is_err() {
            // To go on in a sandbox's namespaces would be worse than to be started anew: the sandboxes are adopted.
            process::exit_now(70);
        }
        outcome
    }

    /// Fills the pools, one step at a time, in the pauses between requests. Returns the time until it may go on.
    pub fn refill(&mut self, now: Instant) -> Option<Duration> {
        let step = self
            .blanks
            .next_step(self.starting)
            .filter(|step| *step != Step::Make || self.starting < MAX_STARTING_BLANKS);
        if step.is_none() && !self.namespaces.wants_more() {
            return None;
        }
        if self.refill_after > now {
            return Some(self.refill_after - now);
        }
        let pause = Duration::from_millis(PAUSES_MS[self.blanks.level(PAUSES_MS.len() - 1).min(PAUSES_MS.len() - 1)]);
        let quiet_for = now.saturating_duration_since(self.last_request);
        if !self.waiting.is_empty() || quiet_for < pause {
            return Some(pause.saturating_sub(quiet_for).max(Duration::from_millis(1)));
        }
        if self.blanks.len() >= EAGER_BLANKS && step == Some(Step::Make) {
            self.refill_after = now + UNHURRIED;
        }
        match step {
            Some(Step::Make) => self.start_blank(now),
            Some(Step::Furnish(slot, lower)) => self.furnish(slot, &lower, now),
            Some(Step::Retire(slot)) => {
                self.blanks.remove(slot);
                self.begin_ending(slot, Ending::new(now));
            }
            None => {}
        }
        self.ask_for_namespaces(now);
        // What comes in goes first; then the next step.
        self.blanks.next_step(self.starting).filter(|step| *step != Step::Make).map(|_| Duration::ZERO)
    }

    fn ask_for_namespaces(&mut self, now: Instant) {
        while self.namespaces.wants_more() {
            let Some(slot) = self.free_slots.pop_front() else { return };
            if let Err(errno) = self.namespaces.ask(slot, self.node.uids.root_of(slot)) {
                self.free_slots.push_back(slot);
                return self.rest("namespace-helper-unreachable", errno, now);
            }
        }
    }

    /// The helper has made a pair, or not.
    pub fn helper_ready(&mut self) {
        match self.namespaces.receive() {
            Answer::Ready | Answer::Nothing => {}
            Answer::Failed(slot, errno) => {
                self.free_slots.push_back(slot);
                self.rest("namespaces-not-made", errno, Instant::now());
            }
            Answer::Gone(socket, slots) => {
                self.poller.remove(&socket);
                self.free_slots.extend(slots);
                self.warn("namespace-helper-gone", &json!({}));
            }
        }
    }

    fn rest(&mut self, event: &str, errno: Errno, now: Instant) {
        self.refill_after = now + REST;
        self.warn(event, &json!({ "errno": errno_name(errno) }));
    }
}
