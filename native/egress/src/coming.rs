//! Sandboxes that are on their way. Their policy is in force, in the gate too, before they are there; their device is made as soon as the launcher has written them down,
//! beside all else that makes a sandbox.
//!
//! Invariants:
//! 1. A slot that is kept for one has no device until the sandbox of that very id is there: nobody else can send by it.
//! 2. Every one that is waited for is answered once: when its device is made and the gate knows its policy, when that fails, when it is closed, or when its time is over.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use launcher::request::SandboxId;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use serde_json::Value;

use crate::namespace::{self, Namespace};
use crate::node::{Caller, Node, refused};
use crate::request::NewPolicy;
use crate::sys::Result;
use daemon::failure::{Failure, errno_name};

/// A few events of the kernel, with the names of files.
const BUFFER_BYTES: usize = 4_096;

/// Hears when the launcher writes a record; only while somebody is waited for.
pub struct Arrivals {
    inotify: OwnedFd,
    watch: Option<i32>,
}

impl Arrivals {
    pub fn open() -> Result<Self> {
        Ok(Self { inotify: inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?, watch: None })
    }

    fn listen(&mut self, records: &Path) -> Result<()> {
        if self.watch.is_none() {
            // A record that is whole is moved to its place.
            self.watch = Some(inotify::add_watch(&self.inotify, records, WatchFlags::MOVED_TO)?);
        }
        Ok(())
    }

    fn stop(&mut self) {
        if let Some(watch) = self.watch.take() {
            // With the directory it is gone by itself.
            let _ = inotify::remove_watch(&self.inotify, watch);
        }
    }

    /// Whether anything was told since; what it was is looked for.
    fn take(&self) -> bool {
        let mut buffer = [0; BUFFER_BYTES];
        let mut is_told = false;
        while rustix::io::read(&self.inotify, &mut buffer).is_ok_and(|length| length > 0) {
            is_told = true;
        }
        is_told
    }
}

impl AsFd for Arrivals {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inotify.as_fd()
    }
}

/// One that is waited for.
pub struct Coming {
    id: SandboxId,
    slot: u32,
    caller: Caller,
    until: Instant,
    is_wired: bool,
    /// What is answered; there when the gate knows the policy.
    answer: Option<Value>,
}

fn is_to_come(failure: &Failure) -> bool {
    // The first record of one that was not made ahead says nothing of its network yet.
    matches!(failure.code, "sandbox_not_found" | "sandbox_not_ready")
}

impl Node {
    /// Gives a sandbox an uplink that has its policy from the first packet on.
    pub fn open_with(&mut self, caller: Caller, policy: NewPolicy, wait: Duration) {
        let id = policy.id.clone();
        match self.begin(caller, policy, wait) {
            Ok(None) => self.look_for_arrivals(),
            Ok(Some((slot, namespace))) => self.arrive(slot, &namespace),
            Err(failure) => self.answers.push((caller, Err(failure))),
        }
        debug_assert!(self.coming.iter().filter(|coming| coming.id == id).count() <= 1);
    }

    fn begin(
        &mut self,
        caller: Caller,
        policy: NewPolicy,
        wait: Duration,
    ) -> std::result::Result<Option<(u32, Namespace)>, Failure> {
        let id = policy.id.clone();
        let namespace = match namespace::open(&self.place.records(), &self.boot, &id) {
            Ok(namespace) => Some(namespace),
            Err(failure) if wait.is_zero() || !is_to_come(&failure) => return Err(failure),
            Err(_) => None,
        };
        if namespace.is_none() {
            let failed =
                |errno| Failure::internal(format!("the records of sandboxes cannot be watched: {}", errno_name(errno)));
            self.arrivals.listen(&self.place.records()).map_err(failed)?;
        }
        let slot = self.reserve(&id, namespace.as_ref().map_or(0, |namespace| namespace.inode))?;
        match self.change_policy(policy) {
            Ok(answer) => {
                let until = Instant::now() + wait;
                self.coming.push(Coming { id: id.clone(), slot, caller, until, is_wired: false, answer: None });
                self.feeder.changed(&id, Some((caller, answer)));
                Ok(namespace.map(|namespace| (slot, namespace)))
            }
            Err(failure) => {
                self.shut(slot);
                // It has no device.
                self.uplinks.free(slot);
                Err(failure)
            }
        }
    }

    /// Whether a slot is kept for a sandbox that is not there yet.
    pub fn is_kept(&self, slot: u32) -> bool {
        self.coming.iter().any(|coming| coming.slot == slot && !coming.is_wired)
    }

    /// Records were written.
    pub fn hear_arrivals(&mut self) {
        if self.arrivals.take() {
            self.look_for_arrivals();
        }
    }

    fn look_for_arrivals(&mut self) {
        let kept: Vec<(u32, SandboxId)> = self
            .coming
            .iter()
            .filter(|coming| !coming.is_wired)
            .map(|coming| (coming.slot, coming.id.clone()))
            .collect();
        for (slot, id) in kept {
            match namespace::open(&self.place.records(), &self.boot, &id) {
                Ok(namespace) => self.arrive(slot, &namespace),
                Err(failure) if is_to_come(&failure) => {}
                Err(failure) => self.give_up(slot, failure),
            }
        }
        if self.coming.iter().all(|coming| coming.is_wired) {
            self.arrivals.stop();
        }
    }

    fn arrive(&mut self, slot: u32, namespace: &Namespace) {
        self.uplinks.identify(&self.kernel.maps.uplinks, slot, namespace.inode);
        if let Some(coming) = self.coming.iter_mut().find(|coming| coming.slot == slot) {
            coming.is_wired = true;
        }
        match self.wire(slot, namespace) {
            Ok(()) => self.answer_arrived(),
            Err((stage, errno)) => self.give_up(slot, refused(stage, errno)),
        }
    }

    /// What the gate has heard is answered; of one that is waited for only when it is there, too.
    pub fn take_fed(&mut self) {
        for (caller, answer) in std::mem::take(&mut self.feeder.answers) {
            match self.coming.iter_mut().find(|coming| coming.caller == caller) {
                Some(coming) => coming.answer = Some(answer),
                None => self.answers.push((caller, Ok(answer))),
            }
        }
        self.answer_arrived();
    }

    fn answer_arrived(&mut self) {
        let is_done = |coming: &mut Coming| coming.is_wired && coming.answer.is_some();
        for done in self.coming.extract_if(.., is_done) {
            if let Some(answer) = done.answer {
                self.answers.push((done.caller, Ok(answer)));
            }
        }
    }

    /// Nothing of it stays.
    fn give_up(&mut self, slot: u32, failure: Failure) {
        self.forget_coming(slot, failure);
        self.close_slot(slot);
    }

    /// Whoever waits for the one that the slot was kept for waits no more.
    pub fn forget_coming(&mut self, slot: u32, failure: Failure) {
        for forgotten in self.coming.extract_if(.., |coming| coming.slot == slot) {
            self.answers.push((forgotten.caller, Err(failure.clone())));
        }
    }

    /// Those whose time is over. When the next one's is.
    pub fn expire_coming(&mut self, now: Instant) -> Option<Duration> {
        // What has its device waits for the gate alone, which has a time of its own.
        let waiting = |coming: &&Coming| !coming.is_wired;
        let over: Vec<(u32, SandboxId)> = self
            .coming
            .iter()
            .filter(waiting)
            .filter(|coming| coming.until <= now)
            .map(|coming| (coming.slot, coming.id.clone()))
            .collect();
        for (slot, id) in over {
            self.give_up(slot, Failure::new("sandbox_not_found", format!("there was no sandbox {id} in time")));
        }
        if self.coming.iter().all(|coming| coming.is_wired) {
            self.arrivals.stop();
        }
        let due = self.coming.iter().filter(waiting).map(|coming| coming.until).min();
        due.map(|due| due.saturating_duration_since(now))
    }
}
