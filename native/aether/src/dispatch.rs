//! The methods by name.

use serde_json::Value;

use crate::connection::StreamKey;
use crate::errors::{Failure, Outcome};
use crate::event_loop::Aether;
use crate::exec::{methods, start};
use crate::files::{change, list, read, remove, write};
use crate::streams::Stream;
use crate::{chronus, info, port, processes, tree, watch};

/// What a method has to say at once.
pub enum Reply {
    /// The whole answer.
    Value(Value),
    /// The stream goes on.
    Stream(Stream),
    /// The method has put its stream into the table, or answered it, itself.
    Taken,
}

pub fn open(aether: &mut Aether, at: StreamKey, method: &str, params: &str) {
    let outcome: Outcome<Reply> = match method {
        "info" => info::info(aether, params),
        "exec.start" => start::start(aether, at, params),
        "exec.attach" => methods::attach(aether, at, params),
        "exec.stdin" => methods::stdin(aether, params),
        "exec.signal" => methods::signal(aether, at, params),
        "exec.resize" => methods::resize(aether, at, params),
        "exec.get" => methods::get(aether, params),
        "exec.list" => methods::list(aether, params),
        "session.open" => chronus::methods::open(aether, params),
        "session.close" => chronus::methods::close(aether, at, params),
        "session.list" => chronus::methods::list(aether, params),
        "file.stat" => change::stat(aether, params),
        "file.list" => list::list(aether, at, params),
        "file.read" => read::read(aether, at, params),
        "file.write" => write::write(aether, params),
        "file.mkdir" => change::mkdir(aether, params),
        "file.remove" => remove::remove(aether, at, params),
        "file.move" => change::rename(aether, params),
        "file.chmod" => change::chmod(aether, params),
        "file.chown" => change::chown(aether, params),
        "file.symlink" => change::symlink(aether, params),
        "file.watch" => watch::watch(aether, at, params),
        "tree.read" => tree::methods::read(aether, at, params),
        "tree.write" => tree::methods::write(aether, at, params),
        "port.connect" => port::connect(aether, at, params),
        "processes" => processes::processes(aether, at, params),
        _ => Err(Failure::new("unknown_method", format!("aether has no method {method:?}."))),
    };
    match outcome {
        Ok(Reply::Value(value)) => aether.answer(at, Ok(value)),
        Ok(Reply::Stream(stream)) => aether.keep_stream(at, stream),
        Ok(Reply::Taken) => {}
        Err(failure) => aether.answer(at, Err(failure)),
    }
}
