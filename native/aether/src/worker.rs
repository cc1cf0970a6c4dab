//! Work that may block for long is done by a forked copy of aether: reading and writing big files, whole trees, and files of /proc,
//! which must not be read by aether itself. What is forked has one thread and a copy of the memory, so it may allocate.

use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use serde_json::{Value, json};
use wire::SendError;

use crate::connection::StreamKey;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Source};
use crate::identity::Identity;
use crate::outside;
use crate::reaper::Child;
use crate::slab::Key;
use crate::streams::After;
use crate::sys::fd;
use crate::sys::{Errno, poll, signals};

/// A report is an answer or an error.
const MAX_REPORT: usize = 64 << 10;
const CHUNK: usize = 64 << 10;

/// A worker and the two pipes to it.
#[derive(Debug)]
pub struct Worker {
    route: Key,
    pid: i32,
    /// Bytes from or to it.
    data: Option<OwnedFd>,
    data_is_watched: bool,
    report: Option<OwnedFd>,
    report_text: Vec<u8>,
}

/// Which way the bytes go.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    FromWorker,
    ToWorker,
}

/// Starts `work` in a worker; it gets its end of the data pipe and returns what is to be answered.
pub fn start(
    aether: &mut Aether,
    at: StreamKey,
    direction: Direction,
    keep: &[RawFd],
    work: impl FnOnce(&OwnedFd) -> Outcome<Value>,
) -> Outcome<Worker> {
    let internal = |errno| Failure::internal(errno, "A worker could not be started");
    let (read, write) = fd::pipe().map_err(internal)?;
    let (report, report_theirs) = fd::pipe().map_err(internal)?;
    let (ours, theirs) = match direction {
        Direction::FromWorker => (read, write),
        Direction::ToWorker => (write, read),
    };
    fd::make_pipe_end_nonblocking(&ours).map_err(internal)?;
    fd::make_pipe_end_nonblocking(&report).map_err(internal)?;
    let kept: Vec<RawFd> = keep.iter().copied().chain([theirs.as_raw_fd(), report_theirs.as_raw_fd()]).collect();
    let mut work = Some(work);
    let pid = outside::fork(&mut || {
        become_worker(&kept);
        let Some(work) = work.take() else { return };
        let report = match work(&theirs) {
            Ok(value) => json!({ "ok": value }),
            Err(failure) => json!({ "code": failure.code, "message": failure.message, "details": failure.details }),
        };
        let _ = fd::write_all(&report_theirs, report.to_string().as_bytes());
    })
    .map_err(internal)?;
    let route = aether.routes.insert(at);
    aether.children.insert(pid, Child::Worker);
    let _ = aether.poll.add(&report, poll::READ, Source::Stream(route).token());
    let mut worker =
        Worker { route, pid, data: Some(ours), data_is_watched: false, report: Some(report), report_text: Vec::new() };
    if direction == Direction::FromWorker {
        worker.watch_data(aether, true, poll::READ);
    }
    Ok(worker)
}

fn become_worker(keep: &[RawFd]) {
    let mut keep = keep.to_vec();
    keep.extend([0, 1, 2]);
    keep.sort_unstable();
    // SAFETY: plain calls in a process of its own.
    unsafe {
        libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
        for pair in keep.windows(2) {
            if pair[0] + 1 < pair[1] {
                libc::syscall(libc::SYS_close_range, pair[0] + 1, pair[1] - 1, 0);
            }
        }
        if let Some(&last) = keep.last() {
            libc::syscall(libc::SYS_close_range, last + 1, u32::MAX, 0);
        }
        signals::reset();
    }
}

/// Becomes the user for good: the kernel's own checks then hold for everything, also in /proc.
pub fn become_user(identity: &Identity) -> Outcome<()> {
    // SAFETY: raw calls in a process of its own; the list is valid for its length.
    let is_done = unsafe {
        libc::syscall(libc::SYS_setgroups, identity.groups.len(), identity.groups.as_ptr()) == 0
            && libc::syscall(libc::SYS_setresgid, identity.gid, identity.gid, identity.gid) == 0
            && libc::syscall(libc::SYS_setresuid, identity.uid, identity.uid, identity.uid) == 0
            && libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0) == 0
    };
    if is_done {
        return Ok(());
    }
    let message = format!("The user {} is outside of the ids of the sandbox.", identity.name);
    Err(Failure::new("user_not_found", message).with("user", identity.name.as_str()))
}

/// Copies a file into a pipe, up to `limit` bytes; returns how many.
pub fn copy_to_pipe(file: &OwnedFd, pipe: &OwnedFd, limit: u64) -> Result<u64, Errno> {
    let mut copied = 0;
    while copied < limit {
        let want = (limit - copied).min(1 << 20) as usize;
        let (from, to) = (file.as_raw_fd(), pipe.as_raw_fd());
        // SAFETY: null offsets: the positions of the descriptors count.
        let moved = crate::sys::retry(|| unsafe {
            libc::splice(from, std::ptr::null_mut(), to, std::ptr::null_mut(), want, libc::SPLICE_F_MOVE) as i64
        });
        match moved {
            Ok(0) => break,
            Ok(n) => copied += n as u64,
            // Files that cannot be spliced, such as those of /proc.
            Err(libc::EINVAL) => return copy_by_hand(file, pipe, limit - copied).map(|n| copied + n),
            Err(errno) => return Err(errno),
        }
    }
    Ok(copied)
}

fn copy_by_hand(file: &OwnedFd, pipe: &OwnedFd, limit: u64) -> Result<u64, Errno> {
    let mut buffer = vec![0; CHUNK];
    let mut copied = 0;
    while copied < limit {
        let want = (limit - copied).min(CHUNK as u64) as usize;
        match fd::read(file, &mut buffer[..want])? {
            0 => break,
            n => {
                fd::write_all(pipe, &buffer[..n])?;
                copied += n as u64;
            }
        }
    }
    Ok(copied)
}

/// What the worker had to say at its end.
pub type Report = Outcome<Value>;

fn parse_report(text: &[u8]) -> Report {
    // It is a process like any other of the sandbox, whose root may have killed it: no fault of the platform.
    let lost = || Failure::new("file_error", "The process that worked on the file was killed.").with("errno", "EINTR");
    let mut value: Value = serde_json::from_slice(text).map_err(|_| lost())?;
    if let Some(ok) = value.get_mut("ok") {
        return Ok(ok.take());
    }
    let code = value["code"].as_str().and_then(crate::errors::known_code).ok_or_else(lost)?;
    let mut failure = Failure::new(code, value["message"].as_str().unwrap_or_default());
    if let Some(details) = value["details"].as_object() {
        failure.details = details.clone();
    }
    Err(failure)
}

impl Worker {
    fn watch_data(&mut self, aether: &Aether, wanted: bool, events: u32) {
        let Some(data) = &self.data else { return };
        if wanted == self.data_is_watched {
            return;
        }
        self.data_is_watched = wanted;
        if wanted {
            let _ = aether.poll.add(data, events, Source::Stream(self.route).token());
        } else {
            aether.poll.remove(data);
        }
    }

    fn close_data(&mut self, aether: &Aether) {
        self.watch_data(aether, false, 0);
        self.data = None;
    }

    /// The report, once it is whole.
    pub fn take_report(&mut self, aether: &Aether) -> Option<Report> {
        let report = self.report.as_ref()?;
        let mut buffer = [0; 1024];
        loop {
            match fd::read(report, &mut buffer) {
                Ok(0) => break,
                Ok(n) if self.report_text.len() + n <= MAX_REPORT => self.report_text.extend_from_slice(&buffer[..n]),
                Err(libc::EAGAIN) => return None,
                _ => break,
            }
        }
        aether.poll.remove(report);
        self.report = None;
        Some(parse_report(&self.report_text))
    }

    /// Ends the worker, if it has not ended.
    pub fn release(mut self, aether: &mut Aether) {
        self.close_data(aether);
        if let Some(report) = self.report.take() {
            aether.poll.remove(&report);
        }
        aether.routes.remove(self.route);
        // It is in the table until it was waited for, so the pid is its own.
        if matches!(aether.children.get(&self.pid), Some(Child::Worker)) {
            outside::kill(self.pid);
        }
    }
}

/// Bytes from a worker to the client, then its report.
#[derive(Debug)]
pub struct Pull {
    pub worker: Worker,
    /// Read and not taken by the stream yet.
    pending: Vec<u8>,
    /// A message that comes before all bytes.
    prelude: Option<Value>,
    report: Option<Report>,
}

impl Pull {
    pub fn new(worker: Worker, prelude: Option<Value>) -> Self {
        Self { worker, pending: Vec::new(), prelude, report: None }
    }

    /// A pipe is ready, or the stream is writable again.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if self.report.is_none() {
            self.report = self.worker.take_report(aether);
        }
        self.move_data(aether, at);
        if self.worker.data.is_none()
            && self.pending.is_empty()
            && let Some(report) = self.report.take()
        {
            aether.answer(at, report);
            return After::Done;
        }
        After::Keep
    }

    fn move_data(&mut self, aether: &mut Aether, at: StreamKey) {
        let Some(connection) = aether.connections.get_mut(at.connection) else { return };
        connection.is_dirty = true;
        if let Some(prelude) = &self.prelude {
            if connection.server.send_message(at.stream, prelude) == Err(SendError::Blocked) {
                self.worker.watch_data(aether, false, 0);
                return;
            }
            self.prelude = None;
        }
        if !self.pending.is_empty() {
            let sent = connection.server.send_data(at.stream, 0, &self.pending);
            self.pending.drain(..sent);
        }
        let mut is_closed = false;
        if self.pending.is_empty()
            && let Some(data) = &self.worker.data
        {
            match fd::read(data, &mut aether.scratch[..CHUNK]) {
                Ok(0) => is_closed = true,
                Ok(n) => {
                    let sent = connection.server.send_data(at.stream, 0, &aether.scratch[..n]);
                    self.pending.extend_from_slice(&aether.scratch[sent..n]);
                }
                Err(_) => {}
            }
        }
        if is_closed {
            self.worker.close_data(aether);
        }
        let wants_more = self.pending.is_empty();
        self.worker.watch_data(aether, wants_more, poll::READ);
    }
}

/// Bytes from the client to a worker, then its report.
#[derive(Debug)]
pub struct Push {
    pub worker: Worker,
    pending: Vec<u8>,
    at_end: bool,
}

impl Push {
    pub fn new(worker: Worker) -> Self {
        Self { worker, pending: Vec::new(), at_end: false }
    }

    pub fn on_data(&mut self, aether: &mut Aether, at: StreamKey, bytes: &[u8]) {
        self.pending.extend_from_slice(bytes);
        self.write(aether, at);
    }

    pub fn on_end(&mut self, aether: &mut Aether, at: StreamKey) {
        self.at_end = true;
        self.write(aether, at);
    }

    /// The report, once the worker has made it.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> Option<Report> {
        let report = self.worker.take_report(aether);
        self.write(aether, at);
        report
    }

    /// Bounded by the window of the stream: credit is given back for what the worker's pipe has taken.
    fn write(&mut self, aether: &mut Aether, at: StreamKey) {
        let mut taken = 0;
        let mut is_broken = self.worker.data.is_none();
        while let Some(data) = &self.worker.data
            && taken < self.pending.len()
        {
            match fd::write(data, &self.pending[taken..]) {
                Ok(n) => taken += n,
                Err(libc::EAGAIN) => break,
                Err(_) => {
                    // It has seen enough and reports why.
                    is_broken = true;
                    break;
                }
            }
        }
        if is_broken {
            taken = self.pending.len();
        }
        self.pending.drain(..taken);
        if let Some(connection) = aether.connections.get_mut(at.connection) {
            connection.server.consumed(at.stream, taken);
            connection.is_dirty = true;
        }
        if is_broken || (self.at_end && self.pending.is_empty()) {
            self.worker.close_data(aether);
        }
        let wants_room = !self.pending.is_empty();
        self.worker.watch_data(aether, wants_room, poll::WRITE);
    }
}
