//! What programs try and are denied, and which tripwires they touch: told as events, with the process that did it.
//!
//! Refused calls are verdicts of a sandbox's own filter, which asks its listener instead of answering ([`crate::sandbox_filter`]). Whoever makes one waits, so
//! all of its facts are there to be read, and a flood of them is slow for who makes it. aether holds the listener, closed to programs, and can do
//! nothing with it: its requests are none that a sandbox may make. So it lives exactly as long as the sandbox, and a launcher that begins copies it from there.
//!
//! Tripwires, and covers of /proc and /sys, are marked so that whoever opens one waits too (fanotify).
//!
//! Both are answered by the [`observer`], a process of its own; the launcher starts it, tells it of sandboxes, and passes on what it says.

mod argv_reader;
mod bounds;
mod denied;
pub mod facts;
mod marks;
mod observer;
mod order;
mod rate;
mod subscribers;
mod tally;

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, SendFlags, SocketFlags, SocketType, socketpair};
use serde_json::json;

pub use self::subscribers::{Subscribers, Waiting};

use self::bounds::{OBSERVER_REST, ORDERS_AFTER};
use self::order::{MAX_BYTES, Order, Told, Watch};
use crate::covers;
use crate::failure::{Failure, errno_name};
use crate::launcher::Launcher;
use crate::poller::Token;
use crate::refusals::Refusals;
use crate::sandbox::{Caller, Phase};
use crate::sys::clone::{self, Fork, Process};
use crate::sys::{Errno, Result, process, seccomp_notify};

/// In the run directory.
const PAGE: &str = "launcher.answering";
/// So often may the observer die while somebody waits for tripwires.
const MAX_DEATHS: u32 = 3;

#[derive(Default)]
pub struct Behaviour {
    observer: Option<(OwnedFd, Process)>,
    began_at: Option<Instant>,
    /// Orders that are not sent yet, and when they are: together, since each wakes it.
    outgoing: VecDeque<Order>,
    due: Option<Instant>,
    /// It is waited for that its socket has room.
    is_full: bool,
    /// Creates that are answered when their tripwires are laid, by slot.
    waiting: HashMap<u32, Laying>,
    pub subscribers: Subscribers,
    buffer: Vec<u8>,
}

#[derive(Default)]
struct Laying {
    callers: Vec<Caller>,
    deaths: u32,
}

impl Launcher {
    /// Starts the observer. Where calls cannot be answered by it, filters answer by themselves.
    pub fn start_behaviour(&mut self, now: Instant) {
        self.behaviour.buffer = vec![0; MAX_BYTES];
        self.start_observer(now);
        let Some((_, process)) = &self.behaviour.observer else { return };
        // What is done later with aether is tried now: where it is not allowed, calls would wait for ever once this launcher is gone.
        let can_copy = clone::copy_descriptor(&process.pidfd, 0).is_ok();
        let refusals = if can_copy && seccomp_notify::is_available() { Refusals::Told } else { Refusals::Silent };
        if refusals == Refusals::Silent {
            self.warn("refusals-not-told", &json!({ "message": "the kernel lets nobody answer refused calls" }));
        }
        self.node.set_refusals(refusals);
    }

    fn start_observer(&mut self, now: Instant) {
        self.behaviour.began_at = Some(now);
        match self.fork_observer() {
            Ok(observer) => self.behaviour.observer = Some(observer),
            Err(errno) => self.warn("observer-not-started", &json!({ "errno": errno_name(errno) })),
        }
    }

    fn fork_observer(&self) -> Result<(OwnedFd, Process)> {
        let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Opened for it alone: the lock on it goes with it.
        let page = openat(&self.node.data.run, PAGE, flags, Mode::RUSR | Mode::WUSR)?;
        let aether = marks::object_of(&self.node.aether)?;
        let group = self.node.data.group_name();
        // SAFETY: the launcher has one thread.
        match unsafe { clone::fork(0, None) }? {
            Fork::Parent(process) => {
                rustix::io::ioctl_fionbio(&near, true)?;
                self.poller.add(&near, Token::Observer)?;
                Ok((near, process))
            }
            Fork::Child => {
                let start = observer::Start {
                    socket: far.as_fd(),
                    proc: self.node.proc.as_fd(),
                    page: page.as_fd(),
                    group: &group,
                    aether,
                };
                process::exit_now(i32::from(observer::run(&start).is_err()))
            }
        }
    }

    /// The observer has something to say, has room for orders, or is gone.
    pub fn observer_ready(&mut self, now: Instant) {
        self.send_orders();
        loop {
            let Some((socket, _)) = &self.behaviour.observer else { return };
            let told =
                match rustix::net::recv(socket, self.behaviour.buffer.as_mut_slice(), rustix::net::RecvFlags::DONTWAIT)
                {
                    Err(Errno::AGAIN) => return,
                    Err(Errno::INTR) => continue,
                    Ok((length, _)) if length > 0 => serde_json::from_slice(&self.behaviour.buffer[..length]).ok(),
                    _ => None,
                };
            match told {
                Some(Told::Event(event)) => self.behaviour.subscribers.publish(event),
                Some(Told::Watched { slot, pid, absent }) => self.tripwires_laid(slot, pid, &absent),
                Some(Told::Blind { slot, pid }) => self.tripwires_impossible(slot, pid, now),
                None => return self.observer_gone(now),
            }
        }
    }

    fn observer_gone(&mut self, now: Instant) {
        if let Some((socket, process)) = self.behaviour.observer.take() {
            self.poller.remove(&socket);
            clone::end(&process);
        }
        self.warn("observer-gone", &json!({}));
        self.behaviour.outgoing.clear();
        self.behaviour.is_full = false;
        self.behaviour.due = None;
        let mut given_up = Vec::new();
        for (slot, laying) in &mut self.behaviour.waiting {
            laying.deaths += 1;
            if laying.deaths >= MAX_DEATHS {
                given_up.push(*slot);
            }
        }
        for slot in given_up {
            self.fail_laying(slot, now);
        }
    }

    /// Sends what is due, or starts the observer again. Returns the time until there is more to do.
    pub fn advance_behaviour(&mut self, now: Instant) -> Option<Duration> {
        if self.behaviour.observer.is_some() {
            if self.behaviour.due.is_some_and(|due| due <= now) {
                self.send_orders();
            }
            return self.behaviour.due.map(|due| due.saturating_duration_since(now));
        }
        let until = self.behaviour.began_at? + OBSERVER_REST;
        if until > now {
            return Some(until - now);
        }
        self.start_observer(now);
        if self.behaviour.observer.is_none() {
            return Some(OBSERVER_REST);
        }
        let live = self.sandboxes.values().filter(|sandbox| sandbox.id.is_some() && sandbox.phase.is_live());
        for slot in live.map(|sandbox| sandbox.slot).collect::<Vec<_>>() {
            self.watch(slot);
        }
        self.send_orders();
        None
    }

    /// Has a sandbox watched that lives now; whoever waits for it is answered once its tripwires are laid, or at once.
    pub fn watch_created(&mut self, slot: u32, caller: Caller) {
        let has_tripwires = self.sandboxes.get(&slot).is_some_and(|sandbox| !sandbox.tripwires.is_empty());
        if has_tripwires {
            self.behaviour.waiting.entry(slot).or_default().callers.push(caller);
        } else {
            // Whoever is refused something before it is watched waits until then.
            self.answer_created(slot, caller);
        }
        self.watch(slot);
        if has_tripwires {
            self.send_orders();
        }
    }

    /// Whether somebody who asks for it again has to wait as well.
    pub fn wait_for_tripwires(&mut self, slot: u32, caller: Caller) -> bool {
        let laying = self.behaviour.waiting.get_mut(&slot);
        laying.map(|laying| laying.callers.push(caller)).is_some()
    }

    /// Has the observer told of a sandbox, soon.
    pub fn watch(&mut self, slot: u32) {
        let Some(sandbox) = self.sandboxes.get(&slot) else { return };
        let (Some(id), Some(_)) = (&sandbox.id, &sandbox.process) else { return };
        let covered: &[&str] = if sandbox.profile.rules().covered.is_empty() { &[] } else { &covers::SAMPLES };
        let watch = Watch {
            slot,
            id: id.as_str().to_owned(),
            pid: sandbox.pid,
            identity: sandbox.pid_identity,
            root_uid: self.node.uids.root_of(slot),
            tripwires: sandbox.tripwires.clone(),
            covered: covered.iter().map(|path| (*path).to_owned()).collect(),
        };
        self.order(Order::Watch(watch));
    }

    fn order(&mut self, order: Order) {
        if self.behaviour.observer.is_some() {
            self.behaviour.outgoing.push_back(order);
            self.behaviour.due.get_or_insert_with(|| Instant::now() + ORDERS_AFTER);
        }
    }

    /// It is gone, or about to go: nothing more of it is told. The failure is for whoever waits for its tripwires.
    pub fn stop_watching(&mut self, slot: u32, failure: &Failure) {
        for caller in self.behaviour.waiting.remove(&slot).into_iter().flat_map(|laying| laying.callers) {
            self.answers.push((caller, Err(failure.clone())));
        }
        let of_slot = |order: &Order| matches!(order, Order::Watch(watch) if watch.slot == slot);
        match self.behaviour.outgoing.iter().rposition(of_slot) {
            // It was never told.
            Some(at) => drop(self.behaviour.outgoing.remove(at)),
            None => self.order(Order::Forget { slot }),
        }
    }

    fn send_orders(&mut self) {
        self.behaviour.due = None;
        let Some((socket, _)) = &self.behaviour.observer else { return };
        while let Some((packet, count)) = order::pack(&self.behaviour.outgoing) {
            match rustix::net::send(socket, &packet, SendFlags::NOSIGNAL) {
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                // What else can be wrong is that it is gone, which is noticed when it is listened to.
                _ => drop(self.behaviour.outgoing.drain(..count)),
            }
        }
        let is_full = !self.behaviour.outgoing.is_empty();
        if is_full != self.behaviour.is_full {
            // A descriptor that cannot be waited for is one that ends soon.
            let _ = self.poller.set(socket, Token::Observer, true, is_full);
            self.behaviour.is_full = is_full;
        }
    }

    fn tripwires_laid(&mut self, slot: u32, pid: u32, absent: &[usize]) {
        let Some(sandbox) = self.sandboxes.get_mut(&slot).filter(|sandbox| sandbox.pid == pid) else { return };
        let names = absent.iter().filter_map(|at| sandbox.tripwires.get(*at).cloned()).collect();
        sandbox.absent_tripwires = names;
        if !matches!(sandbox.phase, Phase::Live) {
            return;
        }
        for caller in self.behaviour.waiting.remove(&slot).into_iter().flat_map(|laying| laying.callers) {
            self.answer_created(slot, caller);
        }
    }

    fn tripwires_impossible(&mut self, slot: u32, pid: u32, now: Instant) {
        if self.sandboxes.get(&slot).is_some_and(|sandbox| sandbox.pid == pid) {
            self.fail_laying(slot, now);
        }
    }

    /// Tells whoever waits that tripwires cannot be had, and removes the sandbox.
    fn fail_laying(&mut self, slot: u32, now: Instant) {
        let Some(laying) = self.behaviour.waiting.remove(&slot) else { return };
        let failure = || Failure::new("unavailable", "tripwires cannot be watched on this node");
        let mut callers = laying.callers.into_iter();
        let first = callers.next();
        self.answers.extend(callers.map(|caller| (caller, Err(failure()))));
        self.fail_create(slot, first, failure(), now);
    }
}
