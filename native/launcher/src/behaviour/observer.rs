//! The observer: a process beside the launcher that answers calls and openings which programs of sandboxes wait in, and tells what is worth telling. It is
//! apart so that nothing of that, however much there is of it, keeps a create waiting.
//!
//! It takes one thing at a time, and none before its turn has come ([`super::bounds`]): the queue is the kernel's, and who stands in it has been put
//! there by itself. When it dies, the launcher starts another.

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::epoll::{self, CreateFlags, EventData, EventFlags};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, Mode, OFlags, flock, openat};
use rustix::net::{RecvFlags, SendFlags, recv, send};
use rustix::process::Pid;

use super::argv_reader::ArgvReader;
use super::bounds::{ANSWERS, ANSWERS_AT_ONCE, CALLS, CALLS_AT_ONCE, MAX_LATE_ARGV, MAX_PATH_BYTES, OBSERVER_NICE};
use super::denied;
use super::facts::{self, Facts};
use super::marks::{Marked, Marks, Object, object_of};
use super::order::{self, Order, Told, Watch};
use super::rate::Allowance;
use super::tally::{Alike, Tally};
use crate::init::REFUSALS_FD;
use crate::record::now_ms;
use crate::sys::clone;
use crate::sys::seccomp_notify::{self, Notification, Pending};
use crate::sys::shared_page::SharedPage;
use crate::sys::{Errno, Result, process};

const SOCKET: i32 = 3;
const PROC: i32 = 4;
const PAGE: i32 = 5;

const CAP_SYS_PTRACE: u32 = 19;

/// The key of the group among those of listeners, which are slots.
const OPENINGS: u64 = u64::MAX;
const BATCH: usize = 64;

/// What it is given.
pub struct Start<'a> {
    pub socket: BorrowedFd<'a>,
    pub proc: BorrowedFd<'a>,
    /// Where the call that is being answered is noted.
    pub page: BorrowedFd<'a>,
    /// The launcher's cgroup.
    pub group: &'a str,
    /// The program that sandboxes begin with.
    pub aether: Object,
}

/// Becomes the observer, until the launcher is gone. Must be called in a new process only.
pub fn run(start: &Start<'_>) -> Result<()> {
    let [socket, proc, page] = [start.socket, start.proc, start.page].map(|fd| process::above_fixed(fd.as_raw_fd()));
    for (from, to) in [(socket?, SOCKET), (proc?, PROC), (page?, PAGE)] {
        process::place_fd(from, to, true)?;
    }
    process::close_from(PAGE + 1)?;
    process::die_with_parent()?;
    // Not allowed to be nice is no reason to stop.
    let _ = rustix::process::nice(OBSERVER_NICE);
    let proc = process::borrow_fixed(PROC);
    // One whose launcher was killed may be at its last answer.
    flock(process::borrow_fixed(PAGE), FlockOperation::LockExclusive)?;
    let mut observer = Observer::new(proc, start)?;
    process::keep_only_capabilities(&[process::CAP_DAC_READ_SEARCH, CAP_SYS_PTRACE, process::CAP_SYS_ADMIN])?;
    while observer.turn()? {}
    Ok(())
}

struct Watched {
    /// Of its first process, on the host.
    pid: u32,
    root_uid: u32,
    tripwires: Vec<String>,
    listener: Option<OwnedFd>,
    calls: Allowance,
    /// It is not listened to before.
    rests_until: Option<Instant>,
    late_argv: u32,
}

struct Observer {
    socket: BorrowedFd<'static>,
    proc: BorrowedFd<'static>,
    page: SharedPage<Pending>,
    /// The call that the observer before has taken last, and maybe not answered.
    left_over: Pending,
    group: String,
    aether: Object,
    /// Listeners, and the group of openings.
    epoll: OwnedFd,
    ready: Vec<epoll::Event>,
    watched: HashMap<u32, Watched>,
    marks: Option<Marks>,
    answers: Allowance,
    rests_until: Option<Instant>,
    tally: Tally,
    reader: ArgvReader,
    /// An execution is followed by an opening of the same file.
    last_execution: Option<(u32, Object)>,
    buffer: Vec<u8>,
}

impl Observer {
    fn new(proc: BorrowedFd<'static>, start: &Start<'_>) -> Result<Self> {
        let now = Instant::now();
        let mut page = SharedPage::<Pending>::map(process::borrow_fixed(PAGE))?;
        let left_over = *page.get();
        let epoll = epoll::create(CreateFlags::CLOEXEC)?;
        // Not before the reader, which holds nothing: each would keep openings waiting when this process is gone.
        let reader = ArgvReader::start(proc);
        let marks = Marks::new().ok();
        if let Some(marks) = &marks {
            epoll::add(&epoll, &marks.group, EventData::new_u64(OPENINGS), EventFlags::IN)?;
        }
        Ok(Self {
            socket: process::borrow_fixed(SOCKET),
            proc,
            page,
            left_over,
            group: start.group.to_owned(),
            aether: start.aether,
            epoll,
            ready: Vec::with_capacity(BATCH),
            watched: HashMap::new(),
            marks,
            answers: Allowance::new(ANSWERS, now),
            rests_until: None,
            tally: Tally::new(now),
            reader,
            last_execution: None,
            buffer: vec![0; order::MAX_BYTES],
        })
    }

    /// Waits for something and does it. False: the launcher is gone.
    fn turn(&mut self) -> Result<bool> {
        let now = Instant::now();
        let pause = self.wake(now)?;
        let timeout =
            pause.map(|pause| Timespec { tv_sec: pause.as_secs() as i64, tv_nsec: i64::from(pause.subsec_nanos()) });
        let (socket, epoll) = (self.socket, self.epoll.as_fd());
        let mut waits =
            [PollFd::from_borrowed_fd(socket, PollFlags::IN), PollFd::from_borrowed_fd(epoll, PollFlags::IN)];
        let count = if self.rests_until.is_some() { 1 } else { 2 };
        match poll(&mut waits[..count], timeout.as_ref()) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        let [has_order, has_question] = waits.map(|wait| !wait.revents().is_empty());
        let now = Instant::now();
        if has_order && !self.take_order(now)? {
            return Ok(false);
        }
        if has_question && self.rests_until.is_none() {
            self.take_questions(now)?;
        }
        for event in self.tally.ended(now, now_ms()) {
            self.tell(&Told::Event(event))?;
        }
        Ok(true)
    }

    /// Listens again to whoever has rested long enough. Returns how long nothing is to be done by itself.
    fn wake(&mut self, now: Instant) -> Result<Option<Duration>> {
        if self.rests_until.is_some_and(|until| until <= now) {
            self.rests_until = None;
        }
        let mut next = self.rests_until;
        for (slot, watched) in &mut self.watched {
            match watched.rests_until {
                Some(until) if until <= now => {
                    watched.rests_until = None;
                    if let Some(listener) = &watched.listener {
                        epoll::add(&self.epoll, listener, EventData::new_u64((*slot).into()), EventFlags::IN)?;
                    }
                }
                Some(until) => next = Some(next.map_or(until, |next| next.min(until))),
                None => {}
            }
        }
        let rest = next.map(|next| next.saturating_duration_since(now));
        Ok([rest, self.tally.rest(now)].into_iter().flatten().min())
    }

    fn tell(&self, told: &Told) -> Result<()> {
        let bytes = serde_json::to_vec(told).map_err(|_| Errno::INVAL)?;
        send(self.socket, &bytes, SendFlags::NOSIGNAL).map(drop)
    }

    fn take_order(&mut self, now: Instant) -> Result<bool> {
        let (length, _) = recv(self.socket, self.buffer.as_mut_slice(), RecvFlags::empty())?;
        if length == 0 {
            return Ok(false);
        }
        let orders: Vec<Order> = serde_json::from_slice(&self.buffer[..length]).map_err(|_| Errno::PROTO)?;
        for order in orders {
            match order {
                Order::Watch(watch) => self.watch(watch, now)?,
                Order::Forget { slot } => self.forget(slot),
            }
        }
        Ok(true)
    }

    fn watch(&mut self, watch: Watch, now: Instant) -> Result<()> {
        self.forget(watch.slot);
        let first = open_first(&watch).ok();
        let listener = first.as_ref().and_then(|first| listener_of(self.proc, first));
        if let Some(listener) = &listener {
            if self.left_over.slot == watch.slot {
                let Notification { id, call, arguments, .. } = self.left_over.notification;
                // It was answered, or is of a sandbox that is gone.
                let _ = seccomp_notify::refuse(listener, id, denied::describe(call, &arguments).errno);
            }
            epoll::add(&self.epoll, listener, EventData::new_u64(watch.slot.into()), EventFlags::IN)?;
        }
        self.tally.begin(watch.slot, watch.id.clone(), now);
        self.mark(&watch, first.as_ref())?;
        self.watched.insert(
            watch.slot,
            Watched {
                pid: watch.pid,
                root_uid: watch.root_uid,
                tripwires: watch.tripwires,
                listener,
                calls: Allowance::new(CALLS, now),
                rests_until: None,
                late_argv: 0,
            },
        );
        Ok(())
    }

    fn mark(&mut self, watch: &Watch, first: Option<&OwnedFd>) -> Result<()> {
        let (slot, pid) = (watch.slot, watch.pid);
        let Some(marks) = &mut self.marks else {
            return if watch.tripwires.is_empty() { Ok(()) } else { self.tell(&Told::Blind { slot, pid }) };
        };
        let mut absent = (0..watch.tripwires.len()).collect();
        if watch.tripwires.is_empty() && watch.covered.is_empty() {
            return Ok(());
        }
        if let Some(root) = first.and_then(|first| root_of(self.proc, pid, first).ok()) {
            marks.watch_covers(self.proc, root.as_fd(), &watch.covered);
            absent = marks.lay(self.proc, root.as_fd(), slot, &watch.tripwires);
        }
        if watch.tripwires.is_empty() { Ok(()) } else { self.tell(&Told::Watched { slot, pid, absent }) }
    }

    fn forget(&mut self, slot: u32) {
        // Its listener leaves the epoll with its last descriptor, which this is unless aether still runs.
        if let Some(Watched { listener: Some(listener), rests_until: None, .. }) = self.watched.remove(&slot) {
            let _ = epoll::delete(&self.epoll, listener);
        }
        self.tally.end(slot);
        if let Some(marks) = &mut self.marks {
            marks.forget(slot);
        }
    }

    /// One of each listener that has some.
    fn take_questions(&mut self, now: Instant) -> Result<()> {
        self.ready.clear();
        let none = Timespec { tv_sec: 0, tv_nsec: 0 };
        match epoll::wait(&self.epoll, rustix::buffer::spare_capacity(&mut self.ready), Some(&none)) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(errno),
        }
        for event in std::mem::take(&mut self.ready) {
            let flags = event.flags;
            match (event.data.u64(), flags.contains(EventFlags::IN)) {
                (OPENINGS, _) => self.opening_ready(now)?,
                (slot, true) => self.call_ready(slot as u32, now)?,
                // The last process under the filter is gone.
                (slot, false) => self.close_listener(slot as u32),
            }
        }
        self.ready.reserve(BATCH);
        Ok(())
    }

    fn close_listener(&mut self, slot: u32) {
        if let Some(listener) = self.watched.get_mut(&slot).and_then(|watched| watched.listener.take()) {
            let _ = epoll::delete(&self.epoll, listener);
        }
    }

    /// Whether one more may be answered; else all rest.
    fn may_answer(&mut self, now: Instant) -> bool {
        let may = self.answers.take(now);
        if !may {
            self.rests_until = Some(now + self.answers.time_until(ANSWERS_AT_ONCE, now));
        }
        may
    }

    fn call_ready(&mut self, slot: u32, now: Instant) -> Result<()> {
        let Some(watched) = self.watched.get_mut(&slot) else { return Ok(()) };
        let Some(listener) = &watched.listener else { return Ok(()) };
        if !watched.calls.take(now) {
            epoll::delete(&self.epoll, listener)?;
            watched.rests_until = Some(now + watched.calls.time_until(CALLS_AT_ONCE, now));
            return Ok(());
        }
        if !self.may_answer(now) {
            return Ok(());
        }
        let pending = self.page.get();
        pending.slot = slot;
        let Some(watched) = self.watched.get_mut(&slot) else { return Ok(()) };
        let Some(listener) = &watched.listener else { return Ok(()) };
        if seccomp_notify::receive(listener, &mut pending.notification).is_err() {
            // Its caller is gone.
            return Ok(());
        }
        let Notification { id, pid, call, arguments, .. } = pending.notification;
        let denied = denied::describe(call, &arguments);
        let (outcome, errno) = (denied.outcome(), denied.errno);
        let alike = Alike {
            slot,
            id: pid,
            kind: "call",
            call: Some(denied.call),
            argument: denied.argument,
            path: None,
            outcome,
        };
        let who = WhoIsIt { proc: self.proc, reader: &mut self.reader };
        let (first, root_uid, late) = (watched.pid, watched.root_uid, &mut watched.late_argv);
        let event = self.tally.count(alike, now, now_ms(), || {
            let facts = who.ask(pid, first, root_uid, late);
            // A thread that waits no more may be gone, and its number another's.
            facts.filter(|_| seccomp_notify::is_valid(listener, id))
        });
        // Nobody waits any more where it was killed.
        let _ = seccomp_notify::refuse(listener, id, errno);
        event.map_or(Ok(()), |event| self.tell(&Told::Event(event)))
    }

    fn opening_ready(&mut self, now: Instant) -> Result<()> {
        if !self.may_answer(now) {
            return Ok(());
        }
        let Some(marks) = &self.marks else { return Ok(()) };
        let opening = match marks.group.take() {
            Ok(Some(opening)) => opening,
            Ok(None) | Err(Errno::AGAIN | Errno::INTR) => return Ok(()),
            Err(errno) => return Err(errno),
        };
        let (Some(pid), Ok(object)) = (opening.pid, object_of(&opening.object)) else { return Ok(()) };
        if !opening.is_execution && self.last_execution.take_if(|last| *last == (pid, object)).is_some() {
            return Ok(());
        }
        let Some(marked) = marks.find(object) else { return Ok(()) };
        if opening.is_execution {
            self.last_execution = Some((pid, object));
        } else if facts::is_platform(self.proc, pid, self.aether) {
            // What was asked for from outside: files of the SDK, and their like.
            return Ok(());
        }
        let slot = match marked {
            Marked::Tripwire { slot, .. } => Some(slot),
            Marked::Cover => facts::slot(self.proc, pid, &self.group),
        };
        let Some((slot, watched)) = slot.and_then(|slot| Some((slot, self.watched.get_mut(&slot)?))) else {
            return Ok(());
        };
        let (kind, outcome, path) = match marked {
            Marked::Tripwire { at, .. } => ("tripwire", "seen", watched.tripwires.get(at).cloned()),
            Marked::Cover => ("open", "covered", Some(shown_name(self.proc, &opening.object))),
        };
        let argument = opening.is_execution.then(|| "execute".to_owned());
        let alike = Alike { slot, id: pid, kind, call: None, argument, path, outcome };
        let who = WhoIsIt { proc: self.proc, reader: &mut self.reader };
        let (first, root_uid, late) = (watched.pid, watched.root_uid, &mut watched.late_argv);
        let event = self.tally.count(alike, now, now_ms(), || who.ask(pid, first, root_uid, late));
        drop(opening);
        event.map_or(Ok(()), |event| self.tell(&Told::Event(event)))
    }
}

/// The first process of a sandbox, the very one that is meant.
fn open_first(watch: &Watch) -> Result<OwnedFd> {
    let pid = i32::try_from(watch.pid).ok().and_then(Pid::from_raw).ok_or(Errno::SRCH)?;
    let first = clone::open_process(pid)?;
    if clone::identity(&first)? == watch.identity { Ok(first) } else { Err(Errno::SRCH) }
}

/// The listener of a sandbox's filter, which its first process holds; none where the filter answers by itself.
fn listener_of(proc: BorrowedFd<'_>, first: &OwnedFd) -> Option<OwnedFd> {
    let listener = clone::copy_descriptor(first, REFUSALS_FD).ok()?;
    // Whoever has taken aether over could have put something else there.
    (facts::name_of_descriptor(proc, listener.as_raw_fd()) == seccomp_notify::NAME).then_some(listener)
}

/// The root directory of a sandbox, whose first process has this number as long as it lives.
fn root_of(proc: BorrowedFd<'_>, pid: u32, first: &OwnedFd) -> Result<OwnedFd> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let root = openat(proc, format!("{pid}/root"), flags, Mode::empty())?;
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    match poll(&mut [PollFd::new(first, PollFlags::IN)], Some(&now))? {
        0 => Ok(root),
        _ => Err(Errno::SRCH),
    }
}

fn shown_name(proc: BorrowedFd<'_>, object: &OwnedFd) -> String {
    let mut name = facts::name_of_descriptor(proc, object.as_raw_fd());
    name.truncate(MAX_PATH_BYTES);
    String::from_utf8_lossy(&name).into_owned()
}

struct WhoIsIt<'a> {
    proc: BorrowedFd<'static>,
    reader: &'a mut ArgvReader,
}

impl WhoIsIt<'_> {
    fn ask(self, id: u32, first: u32, root_uid: u32, late: &mut u32) -> Option<Facts> {
        let (process, mut facts) = facts::of(self.proc, id, first, root_uid).ok()?;
        if *late < MAX_LATE_ARGV {
            match self.reader.read(self.proc, process) {
                Ok(text) => facts.argv = facts::parse_arguments(&text),
                Err(_) => *late += 1,
            }
        }
        Some(facts)
    }
}
