//! `session.open`, `session.close`, `session.list`, and the end of a session's shell.

use std::collections::VecDeque;
use std::ffi::CString;
use std::os::fd::AsRawFd;

use serde::Deserialize;
use serde_json::json;

use super::room::Room;
use super::session::Session;
use super::shell_loop;
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::doom::Then;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Source};
use crate::exec::environment::{self, Variables};
use crate::exec::program;
use crate::exec::record::Ending;
use crate::exec::spawn::{self, Launch, Stdio};
use crate::exec::start::shell_path;
use crate::exec::tree::{self, Family};
use crate::identity;
use crate::info::NoParams;
use crate::params;
use crate::reaper::Child;
use crate::slab::Key;
use crate::streams::Stream;
use crate::sys::{fd, poll};

/// Each costs a shell.
const MAX_SESSIONS: usize = 256;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct OpenParams {
    session_id: String,
    #[serde(default)]
    env: Variables,
    cwd: Option<String>,
    user: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct CloseParams {
    session_id: String,
}

pub fn not_found(id: &str) -> Failure {
    Failure::new("session_not_found", format!("The sandbox has no session {id:?}.")).with("sessionId", id)
}

pub fn open(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: OpenParams = params::parse(text)?;
    params::check_id("sessionId", &params.session_id)?;
    environment::check(&params.env)?;
    if let Some(session) = aether.sessions.find(&params.session_id).and_then(|key| aether.sessions.get(key)) {
        if session.opened_with == text {
            return Ok(Reply::Value(json!({ "pid": session.pid })));
        }
        let message = format!("The session {} is open with other params.", params.session_id);
        return Err(Failure::new("idempotency_conflict", message).with("sessionId", params.session_id));
    }
    if aether.sessions.len() >= MAX_SESSIONS {
        let message = "The sandbox has as many sessions as it may.";
        return Err(Failure::new("too_many_requests", message).with("limit", MAX_SESSIONS));
    }
    let pid = launch(aether, params, text)?;
    Ok(Reply::Value(json!({ "pid": pid })))
}

fn launch(aether: &mut Aether, params: OpenParams, text: &str) -> Outcome<i32> {
    let internal = |errno| Failure::internal(errno, "The session could not be prepared");
    let user = params.user.as_deref().unwrap_or("root");
    let identity = identity::resolve(&mut aether.accounts, user)?;
    let (path, name) = shell_path();
    let numbers = if name == "bash" { shell_loop::BASH } else { shell_loop::POSIX };
    let env = environment::build(&params.env, &identity, false);
    let cwd = params.cwd.as_deref().unwrap_or(&identity.home);
    let c_cwd = CString::new(cwd).map_err(|_| Failure::invalid("cwd", "cwd contains a NUL byte"))?;
    let room = Room::new(&identity).map_err(internal)?;
    let (control_theirs, control) = fd::pipe().map_err(internal)?;
    let (status, status_theirs) = fd::pipe().map_err(internal)?;
    fd::make_pipe_end_nonblocking(&control).map_err(internal)?;
    fd::make_pipe_end_nonblocking(&status).map_err(internal)?;
    let null = aether.null.as_raw_fd();
    let argv = [name, "-c", &shell_loop::text(numbers)].map(|argument| CString::new(argument).unwrap_or_default());
    let pid = spawn::spawn(&Launch {
        candidates: &[CString::new(path).unwrap_or_default()],
        argv: &argv,
        env: &env,
        cwd: &c_cwd,
        cwd_or_root: params.cwd.is_none(),
        uid: identity.uid,
        gid: identity.gid,
        groups: &identity.groups,
        stdio: Stdio { stdin: null, stdout: null, stderr: null, terminal: false },
        pass: &[
            (status_theirs.as_raw_fd(), numbers.status),
            (room.fd().as_raw_fd(), numbers.room),
            (control_theirs.as_raw_fd(), numbers.control),
        ],
        open_files: aether.open_files,
    })
    .map_err(|error| match program::start_failure(error, path, cwd, user) {
        failure if failure.code == "command_not_found" => {
            Failure::new("shell_not_found", "The sandbox has neither /bin/bash nor /bin/sh.")
        }
        failure => failure,
    })?;
    let key = aether.sessions.insert(Session {
        id: params.session_id,
        opened_with: text.to_owned(),
        pid,
        numbers,
        room,
        control,
        status,
        line: Vec::new(),
        is_ready: false,
        queue: VecDeque::new(),
        current: None,
        next_run: 1,
        last_exit: 0,
    });
    aether.children.insert(pid, Child::Session(key));
    if let Some(session) = aether.sessions.get(key) {
        aether.poll.add(&session.status, poll::READ, Source::Session(key).token()).map_err(internal)?;
    }
    Ok(pid)
}

/// Answers once every process of the session is gone.
pub fn close(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: CloseParams = params::parse(text)?;
    let key = aether.sessions.find(&params.session_id).ok_or_else(|| not_found(&params.session_id))?;
    aether.keep_stream(at, Stream::Answered);
    aether.kill_session(key, Then::Answer(at, json!({})));
    Ok(Reply::Taken)
}

pub fn list(aether: &Aether, text: &str) -> Outcome<Reply> {
    let NoParams {} = params::parse(text)?;
    let sessions: Vec<_> = aether
        .sessions
        .listed()
        .map(|session| json!({ "sessionId": session.id, "pid": session.pid, "busy": session.current.is_some() }))
        .collect();
    Ok(Reply::Value(json!({ "sessions": sessions })))
}

impl Aether {
    /// Ends all processes of a session; its id is free at once.
    pub fn kill_session(&mut self, key: Key, then: Then) {
        let Some(session) = self.sessions.get(key) else { return };
        let family = Family { roots: vec![session.pid], ..Family::default() };
        let killed = tree::kill(&self.proc, &family);
        self.sessions.release_id(key);
        self.doom(killed, then);
    }

    /// The shell has ended and was not waited for, so its pid is still its own: who stayed in its session goes too.
    pub fn on_session_shell_dead(&mut self, key: Key, pid: i32) {
        let killed = tree::kill(&self.proc, &Family { roots: vec![pid], ..Family::default() });
        let Some(run) = self.sessions.get(key).and_then(|session| session.current.as_ref()) else { return };
        // The end of the run is told when they are gone.
        let exec = run.exec;
        if let Some(exec) = self.execs.get_mut(exec) {
            exec.is_doomed = true;
        }
        self.doom(killed, Then::EndExec(exec));
    }

    /// What ran ends with the shell; what waited never began.
    pub fn on_session_ended(&mut self, key: Key, ending: Ending) {
        let Some(session) = self.sessions.remove(key) else { return };
        self.poll.remove(&session.status);
        if let Some(run) = &session.current {
            session.room.clear(run.number);
            // One that was to be stopped counts as stopped, whatever the shell made of it.
            let signal = self.execs.get(run.exec).and_then(|exec| exec.abort_signal);
            let aborted = |signal| Ending { exit_code: None, signal: Some(signal), ..ending };
            self.on_exec_ended(run.exec, signal.map_or(ending, aborted));
        }
        for waiting in &session.queue {
            let message = format!("The shell of the session {} ended before the command began.", session.id);
            let failure = Failure::new("session_lost", message).with("sessionId", session.id.as_str());
            self.discard_queued(waiting.exec, &failure);
        }
    }
}
