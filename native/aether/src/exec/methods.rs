//! The methods that concern a command that was started before, and its end.

use serde::Deserialize;
use serde_json::json;

use super::attach::Reader;
use super::oom;
use super::record::{Ending, Exec};
use super::tree::{self, Family};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::doom::Then;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Deadline};
use crate::info::NoParams;
use crate::params;
use crate::pty;
use crate::slab::Key;
use crate::streams::{After, Stream};

/// Highest signal number of Linux.
const MAX_SIGNAL: i32 = 64;

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ExecParams {
    exec_id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct AttachParams {
    exec_id: String,
    #[serde(default)]
    stdout_from: u64,
    #[serde(default)]
    stderr_from: u64,
    follow: Option<bool>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct SignalParams {
    exec_id: String,
    signal: i32,
    #[serde(default)]
    tree: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct ResizeParams {
    exec_id: String,
    rows: u16,
    cols: u16,
    client_id: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct StdinParams {
    exec_id: String,
    #[serde(default)]
    keep_open: bool,
}

fn find(aether: &Aether, id: &str) -> Outcome<Key> {
    aether
        .execs
        .find(id)
        .ok_or_else(|| Failure::new("exec_not_found", format!("The sandbox has no exec {id:?}.")).with("execId", id))
}

fn record(aether: &Aether, key: Key) -> Outcome<&Exec> {
    aether.execs.get(key).ok_or_else(|| Failure::new("exec_not_found", "The exec is gone."))
}

/// How `exec.resize` names an attached client: unique while aether runs, told in `started`.
pub fn client_id(at: StreamKey) -> String {
    format!("{:x}.{}", at.connection.to_bits(), at.stream)
}

pub fn attach(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: AttachParams = params::parse(text)?;
    let key = find(aether, &params.exec_id)?;
    let mut reader = Reader::new(at, [params.stdout_from, params.stderr_from], None);
    reader.client_id = Some(client_id(at));
    if let Some(exec) = aether.execs.get_mut(key) {
        if params.follow == Some(false) || exec.ending.is_some() {
            reader.stop_at_present(exec);
        }
        exec.readers.push(reader);
    }
    aether.keep_stream(at, Stream::Attached(key));
    if aether.pump_reader(key, at) == After::Done {
        aether.drop_stream(at);
    }
    Ok(Reply::Taken)
}

pub fn signal(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: SignalParams = params::parse(text)?;
    if !(1..=MAX_SIGNAL).contains(&params.signal) {
        return Err(Failure::invalid("signal", format!("signal must be 1 to {MAX_SIGNAL}")));
    }
    let key = find(aether, &params.exec_id)?;
    let exec = record(aether, key)?;
    let (pid, session, is_queued) = (exec.pid, exec.session, exec.is_queued);
    let is_fatal = matches!(params.signal, libc::SIGKILL | libc::SIGTERM | libc::SIGINT | libc::SIGHUP | libc::SIGQUIT);
    let delivered = match session {
        _ if exec.ending.is_some() => false,
        Some(_) if is_queued => is_fatal && aether.cancel_queued(key),
        // The shell itself must live on for the session: a signal that ends commands ends the run.
        Some(session) if is_fatal => {
            aether.abort_run(session, params.signal);
            true
        }
        Some(session) => aether.signal_run(session, params.signal),
        None if params.tree && params.signal == libc::SIGKILL => {
            let killed = aether.kill_exec(key);
            aether.keep_stream(at, Stream::Answered);
            aether.doom(killed, Then::Answer(at, json!({ "delivered": true })));
            return Ok(Reply::Taken);
        }
        None if params.tree => tree::signal(&aether.proc, &family(exec), params.signal),
        // SAFETY: plain call; the process was not waited for, so the pid is its own.
        None => unsafe { libc::kill(pid, params.signal) == 0 },
    };
    Ok(Reply::Value(json!({ "delivered": delivered })))
}

fn family(exec: &Exec) -> Family {
    Family { roots: vec![exec.pid], ..Family::default() }
}

pub fn resize(aether: &mut Aether, _at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: ResizeParams = params::parse(text)?;
    if params.rows == 0 || params.cols == 0 {
        return Err(Failure::invalid("rows", "rows and cols must be 1 or more"));
    }
    let key = find(aether, &params.exec_id)?;
    let exec = aether.execs.get_mut(key).filter(|exec| exec.pty);
    let Some(exec) = exec else { return Err(Failure::invalid("execId", "The exec has no pty.")) };
    let size = (params.rows, params.cols);
    match params.client_id {
        Some(client) => {
            let reader = exec.readers.iter_mut().find(|reader| reader.client_id.as_ref() == Some(&client));
            let Some(reader) = reader else {
                return Err(Failure::invalid("clientId", "No client with this id is attached to the exec."));
            };
            reader.size = Some(size);
        }
        None => {
            exec.base_size = size;
            // The only client needs not say who it is.
            if let [reader] = exec.readers.as_mut_slice() {
                reader.size = Some(size);
            }
        }
    }
    aether.apply_size(key);
    Ok(Reply::Value(json!({})))
}

pub fn get(aether: &Aether, text: &str) -> Outcome<Reply> {
    let params: ExecParams = params::parse(text)?;
    let exec = record(aether, find(aether, &params.exec_id)?)?;
    Ok(Reply::Value(json!(exec.status())))
}

pub fn list(aether: &Aether, text: &str) -> Outcome<Reply> {
    let NoParams {} = params::parse(text)?;
    let execs: Vec<_> = aether.execs.listed().into_iter().map(Exec::status).collect();
    Ok(Reply::Value(json!({ "execs": execs })))
}

/// A stream of `exec.stdin`.
#[derive(Debug)]
pub struct StdinStream {
    exec: Key,
    bytes: u64,
    /// More will come by another stream.
    keep_open: bool,
}

pub fn stdin(aether: &mut Aether, text: &str) -> Outcome<Reply> {
    let params: StdinParams = params::parse(text)?;
    let key = find(aether, &params.exec_id)?;
    if !record(aether, key)?.stdin.is_open() {
        return Err(Failure::new("stdin_closed", "The stdin of the command is closed or was not asked for."));
    }
    Ok(Reply::Stream(Stream::Stdin(StdinStream { exec: key, bytes: 0, keep_open: params.keep_open })))
}

impl StdinStream {
    pub fn on_data(&mut self, aether: &mut Aether, at: StreamKey, bytes: Vec<u8>) {
        self.bytes += bytes.len() as u64;
        aether.write_stdin(self.exec, at, bytes);
    }

    pub fn on_end(&mut self, aether: &mut Aether, at: StreamKey) {
        if self.keep_open {
            aether.finish_stdin(self.exec, at, self.bytes);
        } else {
            aether.end_stdin(self.exec, at, Some(self.bytes));
        }
    }
}

impl Aether {
    pub fn is_terminal(&self, key: Key) -> bool {
        self.execs.get(key).is_some_and(|exec| exec.pty)
    }

    /// The client at `at` is no longer attached; the command goes on.
    pub fn detach(&mut self, key: Key, at: StreamKey) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        let before = exec.readers.len();
        exec.readers.retain(|reader| reader.at != at);
        if exec.readers.len() != before {
            self.resume_outputs(key);
            self.apply_size(key);
        }
    }

    /// The size of a terminal: the smallest of those of its clients, so that all see all of it.
    pub fn apply_size(&mut self, key: Key) {
        let Some(exec) = self.execs.get(key).filter(|exec| exec.pty) else { return };
        let sizes = exec.readers.iter().filter_map(|reader| reader.size);
        let smallest = sizes.reduce(|a, b| (a.0.min(b.0), a.1.min(b.1))).unwrap_or(exec.base_size);
        if let Some(master) = &exec.outputs[0].source {
            pty::set_size(master, smallest);
        }
    }

    pub fn on_exec_timeout(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key).filter(|exec| exec.ending.is_none()) else { return };
        exec.timed_out = true;
        exec.deadline = None;
        match exec.session {
            Some(session) => self.abort_run(session, libc::SIGKILL),
            None => {
                self.kill_exec(key);
            }
        }
    }

    /// Kills the tree of a command; its end is told when all of it is gone.
    fn kill_exec(&mut self, key: Key) -> Vec<i32> {
        let Some(exec) = self.execs.get_mut(key) else { return Vec::new() };
        exec.is_doomed = true;
        let killed = tree::kill(&self.proc, &family(exec));
        self.doom(killed.clone(), Then::EndExec(key));
        killed
    }

    /// What was killed with the command is gone.
    pub fn release_ending(&mut self, key: Key) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        exec.is_doomed = false;
        if let Some(ending) = exec.held_ending.take() {
            self.on_exec_ended(key, ending);
        }
    }

    /// Its first process has ended.
    pub fn on_exec_ended(&mut self, key: Key, ending: Ending) {
        let Some(exec) = self.execs.get_mut(key) else { return };
        if exec.is_doomed {
            exec.held_ending = Some(ending);
            return;
        }
        exec.ending = Some(ending);
        if ending.looks_killed()
            && let (Some(base), Some(now)) = (exec.oom_base, oom::kills())
        {
            exec.oom_killed = now > base;
        }
        if let Some(when) = exec.deadline.take() {
            self.deadlines.remove(&(when, Deadline::ExecTimeout(key)));
        }
        self.close_stdin(key);
        self.mark_output_ends(key);
        self.pump_readers(key);
        self.retire(key);
    }
}
