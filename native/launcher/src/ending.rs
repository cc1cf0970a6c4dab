//! The end of a sandbox: its processes, groups, writable layer, socket and record, in this order, again and again until nothing is left. Nothing
//! here waits, so that many end at once.

use std::os::fd::AsFd;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, unlinkat};
use rustix::process::{Signal, pidfd_send_signal};
use serde_json::json;

use crate::create::write_record;
use crate::failure::Failure;
use crate::launcher::{Launcher, QUIET};
use crate::node::Node;
use crate::record::{self, Exit};
use crate::remove_tree::Removal;
use crate::request::SandboxId;
use crate::sandbox::{Caller, Ending, Phase, Sandbox, blank_socket_name};
use crate::sys::Errno;
use crate::sys::clone::{self, Reaped};

/// The first pause between two tries, and the longest.
const FIRST_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);
/// After so long a caller hears what is left; the removal goes on.
const ANSWER_AFTER: Duration = Duration::from_secs(10);
/// How often callers of sandboxes that do not end are looked at.
const LATE_CHECK: Duration = Duration::from_secs(1);
/// One turn of the loop spends no more on removals, so that requests go first.
const TURN: Duration = Duration::from_millis(2);
/// How long the parent of an adopted process may take to wait for it, and how often that is looked at.
const PARENT_PATIENCE: Duration = Duration::from_secs(5);
const ZOMBIE_CHECK: Duration = Duration::from_millis(10);
/// A removal that takes so many tries is worth a line in the log.
const LOG_AFTER_TRIES: u32 = 12;
/// Quota groups are removed some time after their subvolumes, whose space the kernel frees in the background, and a few at once.
const SWEEP_AFTER: Duration = Duration::from_secs(2);
const SWEEP_BATCH: usize = 64;

impl Launcher {
    pub fn destroy(&mut self, caller: Caller, id: &SandboxId, now: Instant) {
        if let Some(at) = self.waiting.iter().position(|(_, create)| create.id == *id)
            && let Some((creator, _)) = self.waiting.remove(at)
        {
            self.answers
                .push((creator, Err(Failure::new("cancelled", "the sandbox was destroyed before it was made"))));
        }
        let Some(slot) = self.slots_by_id.get(id).copied() else {
            self.answers.push((caller, Ok(json!({}))));
            return;
        };
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        match &mut sandbox.phase {
            Phase::Ending(ending) => ending.callers.push((caller, now + ANSWER_AFTER)),
            Phase::Starting(starting) => {
                self.poller.remove(&starting.channel);
                self.starting -= 1;
                let mut ending = Ending::new(now);
                ending.failed = starting
                    .caller
                    .map(|creator| (creator, Failure::new("cancelled", "the sandbox was destroyed while it was made")));
                ending.callers.push((caller, now + ANSWER_AFTER));
                self.begin_ending(slot, ending);
            }
            Phase::Blank | Phase::Live | Phase::Exited(_) => {
                let mut ending = Ending::new(now);
                ending.callers.push((caller, now + ANSWER_AFTER));
                self.begin_ending(slot, ending);
            }
        }
    }

    /// Kills what runs in a slot; the rest follows when it has ended.
    pub fn begin_ending(&mut self, slot: u32, ending: Ending) {
        self.end_holding(slot);
        if self.sandboxes.get(&slot).is_some_and(|sandbox| sandbox.phase.is_live()) {
            self.stop_watching(slot, &Failure::new("cancelled", "the sandbox was destroyed while it was made"));
        }
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        sandbox.phase = Phase::Ending(ending);
        match &sandbox.process {
            Some(process) => {
                // Gone already is what is wanted.
                let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
                self.node.cgroups.thaw(&Node::slot_name(slot));
                self.killed.push(slot);
            }
            None => self.ending.push_back(slot),
        }
    }

    /// The first process of a slot has ended, by itself or killed.
    pub fn process_ended(&mut self, slot: u32, now: Instant) {
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        let Some(process) = &sandbox.process else { return };
        let is_wanted = matches!(sandbox.phase, Phase::Ending(_));
        let ending = match clone::reap(process.pidfd.as_fd()) {
            Reaped::Alive => return,
            Reaped::Ended(ending) => ending,
            // All that it had is gone, and nobody asks how it ended.
            Reaped::Zombie if is_wanted => clone::Ending::Unknown,
            // How it ended is known once its parent has waited for it.
            Reaped::Zombie => {
                self.poller.remove(&process.pidfd);
                self.zombies.push((slot, now + PARENT_PATIENCE));
                return;
            }
        };
        self.process_gone(slot, ending, now);
    }

    /// Looks again at processes whose parent, not this one, had not waited for them. Returns the time until the next look.
    pub fn look_at_zombies(&mut self, now: Instant) -> Option<Duration> {
        for (slot, until) in std::mem::take(&mut self.zombies) {
            let pidfd =
                self.sandboxes.get(&slot).and_then(|sandbox| sandbox.process.as_ref()).map(|process| &process.pidfd);
            match pidfd.map(|pidfd| clone::reap(pidfd.as_fd())) {
                None => {}
                Some(Reaped::Ended(ending)) => self.process_gone(slot, ending, now),
                Some(Reaped::Alive | Reaped::Zombie) if until > now => self.zombies.push((slot, until)),
                Some(Reaped::Alive | Reaped::Zombie) => self.process_gone(slot, clone::Ending::Unknown, now),
            }
        }
        (!self.zombies.is_empty()).then_some(ZOMBIE_CHECK)
    }

    fn process_gone(&mut self, slot: u32, ending: clone::Ending, now: Instant) {
        let Some(sandbox) = self.sandboxes.get_mut(&slot) else { return };
        if let Some(process) = sandbox.process.take() {
            self.poller.remove(&process.pidfd);
        }
        match &mut sandbox.phase {
            Phase::Ending(_) => self.ending.push_back(slot),
            // The channel tells more; it ends in the same moment.
            Phase::Starting(_) => {}
            Phase::Blank => {
                self.blanks.remove(slot);
                self.warn("blank-died", &json!({ "slot": slot, "ending": format!("{ending:?}") }));
                self.refill_after = now + LONGEST_PAUSE;
                self.begin_ending(slot, Ending::new(now));
            }
            Phase::Live | Phase::Exited(_) => {
                let is_live = sandbox.phase.is_live();
                let exit = Exit::new(ending, self.node.cgroups.oom_kills(&Node::slot_name(slot)).unwrap_or(0));
                sandbox.phase = Phase::Exited(exit);
                let written = write_record(&self.node, sandbox, Some(exit));
                if let Some(id) = sandbox.id.clone() {
                    self.events.push((id, exit));
                }
                if let Err(errno) = written {
                    let fields = json!({ "slot": slot, "errno": crate::failure::errno_name(errno) });
                    self.warn("record-not-written", &fields);
                }
                if is_live {
                    let failure = Failure::new("create_failed", "the process died before its tripwires were laid");
                    self.stop_watching(slot, &failure.with("stage", "tripwires"));
                }
            }
        }
    }

    /// Tries what is due, for a bounded time. Returns the time until more is.
    pub fn advance_endings(&mut self, now: Instant) -> Option<Duration> {
        let until = Instant::now() + TURN;
        let mut next: Option<Instant> = None;
        for _ in 0..self.ending.len() {
            if Instant::now() >= until {
                return Some(Duration::ZERO);
            }
            let Some(slot) = self.ending.pop_front() else { break };
            if let Some(again) = self.advance_ending(slot, now) {
                next = Some(next.map_or(again, |next| next.min(again)));
                self.ending.push_back(slot);
            }
        }
        self.answer_late(now);
        let deadline = (!self.killed.is_empty()).then_some(LATE_CHECK);
        next.map(|next| next.saturating_duration_since(now)).into_iter().chain(deadline).min()
    }

    /// One try for one slot whose processes are gone. Returns when to try again; `None`: nothing is left.
    fn advance_ending(&mut self, slot: u32, now: Instant) -> Option<Instant> {
        let Phase::Ending(ending) = &self.sandboxes.get(&slot)?.phase else { return None };
        if ending.next_try > now {
            return Some(ending.next_try);
        }
        let left = self.remove_remains(slot);
        if left.is_empty() {
            self.finish_ending(slot, now);
            return None;
        }
        self.postpone_ending(slot, &left, now)
    }

    /// Answers those who wait for processes that do not end.
    fn answer_late(&mut self, now: Instant) {
        let is_killed = |sandbox: &Sandbox| matches!(sandbox.phase, Phase::Ending(_)) && sandbox.process.is_some();
        self.killed.retain(|slot| self.sandboxes.get(slot).is_some_and(is_killed));
        for slot in self.killed.clone() {
            self.answer_waiting(slot, &["process"], now);
        }
    }

    /// Removes what can be removed now and names what is left.
    fn remove_remains(&mut self, slot: u32) -> Vec<&'static str> {
        let Some(sandbox) = self.sandboxes.get(&slot) else { return Vec::new() };
        if sandbox.process.is_some() {
            return vec!["process"];
        }
        if self.changes.is_held(slot) {
            return vec!["changes"];
        }
        let name = Node::slot_name(slot);
        if !self.node.cgroups.remove(&name) {
            self.kill_group(&name);
            return vec!["cgroup"];
        }
        let group = self.node.volume.group_of(&name);
        match self.node.volume.remove(&name) {
            Ok(Removal::Done) => self.stale_groups.extend(group.ok().flatten()),
            Ok(Removal::More) | Err(_) => return vec!["volume"],
        }
        // One that was to become a sandbox and failed on the way may still have the name of a blank.
        for name in [sandbox.socket_name(), blank_socket_name(slot)] {
            let removed = unlinkat(&self.node.data.sockets, name, AtFlags::empty());
            if !matches!(removed, Ok(()) | Err(Errno::NOENT)) {
                return vec!["socket"];
            }
        }
        // Last: as long as it is there, the next launcher finishes what this one does not.
        match sandbox.id.as_ref().map(|id| record::remove(&self.node.data.records, id)) {
            None | Some(Ok(())) => Vec::new(),
            Some(Err(_)) => vec!["record"],
        }
    }

    /// Processes in a group whose sandbox has no first process: remains of a launcher that died.
    fn kill_group(&self, name: &str) {
        self.node.cgroups.thaw(name);
        for pid in self.node.cgroups.processes(name) {
            let Some(pid) = i32::try_from(pid).ok().and_then(rustix::process::Pid::from_raw) else { continue };
            if let Ok(pidfd) = clone::open_process(pid) {
                let _ = pidfd_send_signal(pidfd, Signal::KILL);
            }
        }
    }

    fn postpone_ending(&mut self, slot: u32, left: &[&'static str], now: Instant) -> Option<Instant> {
        self.answer_waiting(slot, left, now);
        let Phase::Ending(ending) = &mut self.sandboxes.get_mut(&slot)?.phase else { return None };
        let pause = FIRST_PAUSE.saturating_mul(1 << ending.attempts.min(16)).min(LONGEST_PAUSE);
        let again = now + pause;
        ending.next_try = again;
        ending.attempts += 1;
        if ending.attempts == LOG_AFTER_TRIES {
            self.warn("removal-slow", &json!({ "slot": slot, "left": left }));
        }
        Some(again)
    }

    /// Tells callers that have waited long enough what is left.
    fn answer_waiting(&mut self, slot: u32, left: &[&'static str], now: Instant) {
        let Some(Phase::Ending(ending)) = self.sandboxes.get_mut(&slot).map(|sandbox| &mut sandbox.phase) else {
            return;
        };
        let late = ending.callers.extract_if(.., |(_, deadline)| *deadline <= now);
        self.answers.extend(late.map(|(caller, _)| {
            let failure =
                Failure::new("cleanup_incomplete", "the sandbox is not wholly removed yet").with("left", left.to_vec());
            (caller, Err(failure))
        }));
    }

    fn finish_ending(&mut self, slot: u32, now: Instant) {
        let Some(sandbox) = self.sandboxes.remove(&slot) else { return };
        self.lowers.release(&sandbox.lower, sandbox.is_adopted);
        if slot < self.node.uids.slots() {
            self.free_slots.push_back(slot);
        }
        if let Some(id) = &sandbox.id {
            self.slots_by_id.remove(id);
        }
        if let Phase::Ending(ending) = sandbox.phase {
            self.answers.extend(ending.callers.into_iter().map(|(caller, _)| (caller, Ok(json!({})))));
            self.answers.extend(ending.failed.map(|(caller, failure)| (caller, Err(failure))));
        }
        self.sweep_groups_at = now + SWEEP_AFTER;
        self.answer_forgets();
    }

    /// Removes quota groups of subvolumes that are gone, when nothing else is to be done. Returns the time until the next look.
    pub fn sweep_groups(&mut self, now: Instant) -> Option<Duration> {
        if self.stale_groups.is_empty() {
            return None;
        }
        if self.sweep_groups_at > now || !self.is_quiet(now) {
            return Some(self.sweep_groups_at.saturating_duration_since(now).max(QUIET));
        }
        for _ in 0..SWEEP_BATCH.min(self.stale_groups.len()) {
            let Some(id) = self.stale_groups.pop_front() else { break };
            if !self.node.volume.remove_group(id) {
                self.stale_groups.push_back(id);
            }
        }
        self.sweep_groups_at = now + SWEEP_AFTER;
        Some(SWEEP_AFTER)
    }
}
