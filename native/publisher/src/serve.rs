//! `publisher serve`: who may ask, and a thread for each connection. It ends when its standard input does; what is not finished then is removed at the next
//! start.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use daemon::log::{Level, Log};
use daemon::{link, socket};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{AtFlags, FlockOperation, Mode, OFlags, chmodat, flock, openat};
use rustix::net::sockopt::socket_peercred;
use rustix::net::{SocketFlags, SocketType, accept_with};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};
use serde_json::{Value, json};
use wire::server::{Event, Limits, READ_SIZE, Server};

use crate::failure::{Failure, errno_name};
use crate::node::Node;
use crate::options::Options;
use crate::request::{self, Asker, Request};
use crate::{Errno, Result, draft, layers, sets};

const SOCKET_NAME: &str = "publisher.sock";
const BACKLOG: i32 = 64;
/// Connections of one user: neither the edge nor the packer can keep the other out.
const MAX_CONNECTIONS: usize = 16;
const MAX_STREAMS: usize = 4;
/// A connection on which nothing happens for so long is closed.
const IDLE: Timespec = Timespec { tv_sec: 60, tv_nsec: 0 };

struct Publisher {
    options: Options,
    node: Node,
    log: Log,
    /// The user of each connection.
    connected: Mutex<Vec<u32>>,
}

/// Serves until standard input ends.
pub fn serve(options: &Options) -> std::result::Result<(), String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    // What is made is for others to read, whoever has started this.
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let node = Node::open(&options.data)?;
    let lock = lock(&node).map_err(failed("publisher.lock"))?;
    draft::sweep(node.layers.as_fd()).map_err(failed("layers"))?;
    draft::sweep(node.sets.as_fd()).map_err(failed("sets"))?;
    let listener = listen(&node).map_err(failed(SOCKET_NAME))?;
    give_up_privileges().map_err(failed("capabilities"))?;
    let log = Log::new("publisher", None);
    let publisher = Arc::new(Publisher { options: options.clone(), node, log, connected: Mutex::new(Vec::new()) });
    publisher.log.write(Level::Info, "serving", &json!({}));
    loop {
        let stdin = std::io::stdin();
        let mut fds = [PollFd::new(&stdin, PollFlags::IN), PollFd::new(&listener, PollFlags::IN)];
        match poll(&mut fds, None) {
            Ok(_) | Err(Errno::INTR) => {}
            Err(errno) => return Err(failed("poll")(errno)),
        }
        let [is_over, is_asked] = fds.map(|fd| !fd.revents().is_empty());
        if is_over && has_ended(&stdin) {
            publisher.log.write(Level::Info, "stopped", &json!({}));
            drop(lock);
            return Ok(());
        }
        if is_asked {
            accept(&publisher, &listener);
        }
    }
}

/// One publisher at a time: what is unfinished is nobody's then.
fn lock(node: &Node) -> Result<OwnedFd> {
    let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(&node.run, "publisher.lock", flags, Mode::from_raw_mode(0o600))?;
    loop {
        match flock(&file, FlockOperation::LockExclusive) {
            Err(Errno::INTR) => {}
            other => return other.map(|()| file),
        }
    }
}

/// Everybody may connect, and is asked for their user.
fn listen(node: &Node) -> Result<OwnedFd> {
    let listener = socket::listen_at(node.run.as_fd(), SOCKET_NAME, SocketType::STREAM, (0, 0), BACKLOG)?;
    chmodat(&node.run, SOCKET_NAME, Mode::from_raw_mode(0o666), AtFlags::empty())?;
    Ok(listener)
}

/// Reads what is others', removes what was theirs, and no more.
fn give_up_privileges() -> Result<()> {
    let kept = capabilities(None)?.permitted & CapabilitySet::DAC_OVERRIDE;
    set_capabilities(None, CapabilitySets { effective: kept, permitted: kept, inheritable: CapabilitySet::empty() })
}

fn has_ended(stdin: impl AsFd) -> bool {
    match rustix::io::read(stdin, &mut [0; 256]) {
        Ok(length) => length == 0,
        Err(Errno::AGAIN | Errno::INTR) => false,
        Err(_) => true,
    }
}

fn accept(publisher: &Arc<Publisher>, listener: &OwnedFd) {
    let Ok(socket) = accept_with(listener, SocketFlags::CLOEXEC) else { return };
    let Ok(uid) = socket_peercred(&socket).map(|peer| peer.uid.as_raw()) else { return };
    let Some(connected) = Connected::new(publisher, uid) else {
        return publisher.log.write(Level::Warn, "connection-refused", &json!({ "uid": uid }));
    };
    let thread = std::thread::Builder::new().name("publish".to_owned());
    // When there is no room for another thread, the connection closes, and the client tries again.
    let _ = thread.spawn(move || connected.converse(&socket));
}

/// One connection, which counts as long as it lives.
struct Connected {
    publisher: Arc<Publisher>,
    uid: u32,
}

impl Drop for Connected {
    fn drop(&mut self) {
        let mut connected = self.publisher.connected.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = connected.iter().position(|uid| *uid == self.uid) {
            connected.swap_remove(at);
        }
    }
}

impl Connected {
    fn new(publisher: &Arc<Publisher>, uid: u32) -> Option<Self> {
        let Options { edge_uid, packer_uid, .. } = publisher.options;
        let mut connected = publisher.connected.lock().unwrap_or_else(PoisonError::into_inner);
        let is_full = connected.iter().filter(|other| **other == uid).count() >= MAX_CONNECTIONS;
        if is_full || ![0, edge_uid, packer_uid].contains(&uid) {
            return None;
        }
        connected.push(uid);
        Some(Self { publisher: publisher.clone(), uid })
    }

    /// Answers one request after another, until the client goes away or breaks the protocol.
    fn converse(&self, socket: &OwnedFd) {
        let mut server = Server::new("publisher", Limits { max_streams: MAX_STREAMS });
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let is_over = link::send(socket, &mut server).is_err()
                || !is_ready(socket, &server)
                || link::receive(socket, &mut server, &mut buffer).is_err();
            if is_over {
                return;
            }
            while let Some(event) = server.next_event() {
                match event {
                    Event::Open { stream, method, params } => {
                        let answer = self.answer(&method, params.get());
                        link::answer(&mut server, stream, answer);
                    }
                    // No method takes anything after its params.
                    Event::Data { stream, bytes, .. } => server.consumed(stream, bytes.len()),
                    Event::Message { stream, size, .. } => server.consumed(stream, size),
                    Event::End { .. } | Event::Reset { .. } | Event::Writable { .. } => {}
                }
            }
        }
    }

    fn answer(&self, method: &str, params: &str) -> std::result::Result<Value, Failure> {
        let begun = Instant::now();
        let Publisher { options, node, log, .. } = &*self.publisher;
        let request = request::parse(method, params)?;
        let uid = match request.asker() {
            Asker::Edge => options.edge_uid,
            Asker::Packer => options.packer_uid,
        };
        if ![0, uid].contains(&self.uid) {
            return Err(Failure::new("permission_denied", "that is for another daemon to ask"));
        }
        let (kind, digest, done) = match &request {
            Request::Layer(layer, form) => ("layer", layer, layers::publish(node, layer, *form, self.uid)),
            Request::Set(set) => ("set", set, sets::publish(node, set, self.uid)),
            Request::RemoveSet(set) => ("set", set, sets::remove(node, set)),
        };
        let (level, outcome) = match &done {
            Ok(()) => (Level::Info, "ok"),
            Err(failure) => (Level::Warn, failure.code),
        };
        let duration = begun.elapsed().as_millis() as u64;
        let mut fields = json!({ "outcome": outcome, "durationMs": duration, "uid": self.uid });
        fields[kind] = digest.to_string().into();
        if let Err(failure) = &done {
            fields["message"] = failure.message.as_str().into();
        }
        log.write(level, method, &fields);
        done.map(|()| json!({}))
    }
}

/// Waits until there is something to read or to write. False when nothing came for too long.
fn is_ready(socket: &OwnedFd, server: &Server) -> bool {
    let mut flags = PollFlags::empty();
    flags.set(PollFlags::IN, server.wants_input());
    flags.set(PollFlags::OUT, !server.output().is_empty());
    match poll(&mut [PollFd::new(socket, flags)], Some(&IDLE)) {
        Ok(ready) => ready > 0,
        Err(errno) => errno == Errno::INTR,
    }
}
