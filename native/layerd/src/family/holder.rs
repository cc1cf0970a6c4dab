//! The holder: starts the worker and the standby, starts them again, and ends when it is no longer needed.

use std::os::fd::OwnedFd;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open, pidfd_send_signal};
use serde_json::json;

use super::roles::{Role, Roles};
use super::shared::Shared;
use super::{handover, keep};
use crate::failure::errno_name;
use crate::options::Serve;
use crate::source::account::VARIABLES;
use crate::sys::{Errno, Result, process};
use daemon::log::{Level, Log};

/// A child that ends sooner than this is started again only after it: the time between starts is the point, there is nothing to wait for.
const SHORTEST_LIFE: Duration = Duration::from_millis(100);
/// Between two looks at whether anything is open.
const IDLE_PERIOD: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };
/// Between two kills of whoever has a role: others may take it meanwhile, and only the lock says when nobody has.
const KILL_PAUSE: Duration = Duration::from_millis(2);
/// An event is noted some microseconds after it has been read, and a process stops some after it is told to. Nothing tells of either: a stop is told
/// to the parent, which need not be this process.
const SETTLE_PAUSE: Duration = Duration::from_millis(1);
const SETTLE_TRIES: u32 = 50;
const STOP_TRIES: u32 = 100;

/// Starts another process of the family.
pub fn spawn(command: &str, options: &Serve) -> std::io::Result<Child> {
    use std::os::unix::process::CommandExt;
    Command::new("/proc/self/exe")
        .arg0("layerd")
        .arg(command)
        .args(options.arguments())
        .env_clear()
        // Where secrets are that must not be arguments.
        .envs(VARIABLES.iter().filter_map(|name| Some((*name, std::env::var_os(name)?))))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        // What is sent to the group of the first process is not meant for the others.
        .process_group(0)
        .spawn()
}

/// Children that may still be started, and those that were.
#[derive(Default)]
struct Children {
    is_ending: bool,
    pids: Vec<u32>,
}

pub struct Holder {
    options: Serve,
    roles: Roles,
    shared: Shared,
    log: Log,
    children: Mutex<Children>,
}

/// `layerd hold`: waits to become the holder, and is it from then on.
pub fn stand_by(options: &Serve, roles: Roles) -> std::result::Result<(), String> {
    let failed = |errno: Errno| format!("layerd.lock: {}", errno_name(errno));
    // The name differs from that of the others, so that who kills all of that name does not let go of the group.
    process::set_name(c"layer-keeper");
    process::ignore_signals(&[libc::SIGINT, libc::SIGTERM, libc::SIGHUP]);
    roles.join().map_err(failed)?;
    if !roles.try_take(Role::Standby).map_err(failed)? {
        return Ok(());
    }
    let shared = Shared::map(super::shared()).map_err(failed)?;
    shared.pid(Role::Standby).store(std::process::id(), Ordering::Relaxed);
    roles.take(Role::Holder).map_err(failed)?;
    roles.leave(Role::Standby).map_err(failed)?;
    process::set_name(c"layerd");
    Holder::new(options, roles, shared).hold(false)
}

impl Holder {
    pub fn new(options: &Serve, roles: Roles, shared: Shared) -> Arc<Self> {
        shared.pid(Role::Holder).store(std::process::id(), Ordering::Relaxed);
        let (options, log) = (options.clone(), Log::new("layerd", Some("holder")));
        Arc::new(Self { options, roles, shared, log, children: Mutex::new(Children::default()) })
    }

    /// Holds until nobody needs it. One that was started by people ends with its standard input, or by SIGTERM.
    pub fn hold(self: Arc<Self>, has_stdin: bool) -> std::result::Result<(), String> {
        for (name, role, command) in [("worker", Role::Worker, "work"), ("standby", Role::Standby, "hold")] {
            let holder = self.clone();
            let thread = std::thread::Builder::new().name(name.to_owned());
            thread
                .spawn(move || holder.keep_child(role, command))
                .map_err(|error| format!("thread {name}: {error}"))?;
        }
        if has_stdin {
            process::note_termination();
        }
        self.wake_worker();
        self.log.write(Level::Info, "holding", &json!({ "isFirst": has_stdin }));
        loop {
            let (input, request) = self.wait(has_stdin);
            if request && handover::give(&self.log) {
                self.end_others();
                return Ok(());
            }
            let is_idle = self.shared.layer_count().load(Ordering::Relaxed) == 0;
            if has_stdin && (process::is_told_to_end() || (input && is_over())) {
                if is_idle {
                    self.end_others();
                }
                // Else the standby goes on, for whatever is mounted.
                return Ok(());
            }
            if !has_stdin && is_idle {
                self.end_others();
                return Ok(());
            }
        }
    }

    fn wait(&self, has_stdin: bool) -> (bool, bool) {
        let (stdin, keep) = (std::io::stdin(), keep());
        let flags = if has_stdin { PollFlags::IN } else { PollFlags::empty() };
        let mut fds = [PollFd::from_borrowed_fd(keep, PollFlags::IN), PollFd::new(&stdin, flags)];
        // What is not known to be ready is looked at in vain.
        let _ = poll(&mut fds, Some(&IDLE_PERIOD));
        (!fds[1].revents().is_empty(), !fds[0].revents().is_empty())
    }

    fn children(&self) -> std::sync::MutexGuard<'_, Children> {
        self.children.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Sees to it that somebody has the role, until the end.
    fn keep_child(&self, role: Role, command: &str) {
        loop {
            let begun = Instant::now();
            let outcome = self.roles.wait_until_vacant(role).map_err(std::io::Error::from).and_then(|()| {
                let mut child = {
                    let mut children = self.children();
                    if children.is_ending {
                        return Ok(false);
                    }
                    let child = spawn(command, &self.options)?;
                    children.pids.push(child.id());
                    child
                };
                let status = child.wait();
                self.children().pids.retain(|pid| *pid != child.id());
                self.log.write(
                    Level::Warn,
                    "ended",
                    &json!({ "process": command, "status": status.map_or_else(|e| e.to_string(), |s| s.to_string()) }),
                );
                Ok(true)
            });
            match outcome {
                Ok(true) => {}
                Ok(false) => return,
                Err(error) => {
                    let fields = json!({ "process": command, "message": error.to_string() });
                    self.log.write(Level::Error, "not-started", &fields);
                }
            }
            std::thread::sleep(SHORTEST_LIFE.saturating_sub(begun.elapsed()));
        }
    }

    /// Ends the rest of the family.
    fn end_others(&self) {
        let started = {
            let mut children = self.children();
            children.is_ending = true;
            children.pids.clone()
        };
        // The standby first: it would take the place of this process.
        for role in [Role::Standby, Role::Worker] {
            if let Err(errno) = self.end(role) {
                self.log.write(Level::Error, "not-ended", &json!({ "errno": errno_name(errno) }));
            }
        }
        for pid in started {
            // One that had no role yet.
            if let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) {
                let _ = kill_process(pid, Signal::KILL);
            }
        }
        self.log.write(Level::Info, "ended-others", &json!({}));
    }

    fn end(&self, role: Role) -> Result<()> {
        loop {
            let pid = self.shared.pid(role).load(Ordering::Relaxed);
            let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
            let handle = process.and_then(|pid| pidfd_open(pid, PidfdFlags::empty()).ok());
            // Whoever has the role now has had it since before the handle was made, so the handle is of that process.
            if self.roles.try_take(role)? {
                return self.roles.leave(role);
            }
            if let (Some(handle), Some(process)) = (handle, process) {
                if role == Role::Worker {
                    self.settle(&handle, process);
                }
                let _ = pidfd_send_signal(handle, Signal::KILL);
            }
            std::thread::sleep(KILL_PAUSE);
        }
    }

    /// Stops the worker where each event that it has read is noted with its layer, so that the next one can answer it. One that does not come
    /// there in time costs a reader an error, as any sudden end may.
    fn settle(&self, worker: &OwnedFd, pid: Pid) {
        for _ in 0..SETTLE_TRIES {
            let is_stopping = pidfd_send_signal(worker, Signal::STOP).is_ok();
            let is_stopped = is_stopping
                && (0..STOP_TRIES).any(|_| {
                    let is_stopped = process::is_stopped(pid);
                    if !is_stopped {
                        std::thread::sleep(SETTLE_PAUSE);
                    }
                    is_stopped
                });
            if !is_stopping || (is_stopped && !self.shared.has_unnoted()) {
                return;
            }
            let _ = pidfd_send_signal(worker, Signal::CONT);
            std::thread::sleep(SETTLE_PAUSE);
        }
    }

    /// A holder before this one may have died when it had just stopped the worker.
    fn wake_worker(&self) {
        let pid = self.shared.pid(Role::Worker).load(Ordering::Relaxed);
        let process = i32::try_from(pid).ok().and_then(Pid::from_raw);
        let Some(pid) = process else { return };
        // The number may be another process's by now: the handle is taken first, and the name is that of the handle's process or of none.
        if let Ok(handle) = pidfd_open(pid, PidfdFlags::empty())
            && process::is_named(pid, "layerd")
        {
            let _ = pidfd_send_signal(handle, Signal::CONT);
        }
    }
}

fn is_over() -> bool {
    let mut buffer = [0_u8; 256];
    !matches!(rustix::io::read(std::io::stdin(), &mut buffer), Ok(1..) | Err(Errno::INTR | Errno::AGAIN))
}
