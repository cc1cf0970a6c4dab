//! `run/layerd.sock`: one thread that answers clients.

use std::os::fd::OwnedFd;
use std::sync::atomic::Ordering;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::net::{SocketFlags, accept_with};
use serde_json::{Map, Value, json};
use wire::server::{Event, Limits, READ_SIZE, Server};

use super::Loader;
use crate::failure::Failure;
use crate::family;
use crate::family::roles::Role;
use crate::family::shared::COUNTER_NAMES;
use crate::request::{self, Request};
use daemon::link::{self, Over};
use daemon::log::Level;

const MAX_CONNECTIONS: usize = 64;

struct Connection {
    socket: OwnedFd,
    server: Server,
}

impl Loader {
    /// Answers for ever.
    pub fn control(&self) -> ! {
        let mut connections: Vec<Connection> = Vec::new();
        let mut buffer = vec![0; READ_SIZE];
        loop {
            let ready = {
                let listener = family::control();
                let mut fds = vec![PollFd::from_borrowed_fd(listener, PollFlags::IN)];
                for connection in &connections {
                    let mut flags = PollFlags::empty();
                    flags.set(PollFlags::IN, connection.server.wants_input());
                    flags.set(PollFlags::OUT, !connection.server.output().is_empty());
                    fds.push(PollFd::new(&connection.socket, flags));
                }
                // What is not known to be ready is looked at in vain.
                let _ = poll(&mut fds, None);
                fds.iter().map(|fd| !fd.revents().is_empty()).collect::<Vec<_>>()
            };
            let mut turn = ready.iter().skip(1);
            connections.retain_mut(|connection| {
                let is_ready = turn.next().copied().unwrap_or_default();
                !is_ready || self.serve(connection, &mut buffer).is_ok()
            });
            if ready.first() == Some(&true) {
                self.accept(&mut connections);
            }
        }
    }

    fn accept(&self, connections: &mut Vec<Connection>) {
        let Ok(socket) = accept_with(family::control(), SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        let uid = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid.as_raw());
        let is_allowed = uid.is_ok_and(|uid| uid == 0 || uid == self.options.edge_uid);
        if !is_allowed || connections.len() >= MAX_CONNECTIONS {
            let fields = json!({ "uid": uid.ok(), "open": connections.len() });
            return self.log.write(Level::Warn, "connection-refused", &fields);
        }
        let mut connection = Connection { socket, server: Server::new("layerd", Limits::default()) };
        if link::send(&connection.socket, &mut connection.server).is_ok() {
            connections.push(connection);
        }
    }

    fn serve(&self, connection: &mut Connection, buffer: &mut [u8]) -> Result<(), Over> {
        link::receive(&connection.socket, &mut connection.server, buffer)?;
        while let Some(event) = connection.server.next_event() {
            match event {
                Event::Open { stream, method, params } => {
                    let answer = request::parse(&method, params.get()).and_then(|request| self.request(request));
                    link::answer(&mut connection.server, stream, answer);
                }
                // No method takes anything after its params.
                Event::Data { stream, bytes, .. } => connection.server.consumed(stream, bytes.len()),
                Event::Message { stream, size, .. } => connection.server.consumed(stream, size),
                Event::End { .. } | Event::Reset { .. } | Event::Writable { .. } => {}
            }
        }
        link::send(&connection.socket, &mut connection.server)
    }

    fn request(&self, request: Request) -> Result<Value, Failure> {
        match request {
            Request::Open(layer) => self.open_layer(&layer, true),
            Request::Close(layer) => self.close_layer(&layer),
            Request::Prefetch(layer, which) => self.prefetch(&layer, &which),
            Request::CancelPrefetch(layer) => self.cancel_prefetch(&layer),
            Request::Trace(layer, opening) => self.trace(&layer, opening),
            Request::Stats => Ok(self.stats()),
        }
    }

    fn stats(&self) -> Value {
        let mut stats = Map::new();
        for (name, counter) in COUNTER_NAMES {
            stats.insert(name.to_owned(), self.shared.counter(counter).load(Ordering::Relaxed).into());
        }
        stats.insert("allocatedBytes".to_owned(), self.allocated.load(Ordering::Relaxed).into());
        stats.insert("cacheBytes".to_owned(), self.options.cache_bytes.into());
        stats.insert("freeBytes".to_owned(), self.free_bytes().into());
        stats.insert("freeLowBytes".to_owned(), self.options.free_marks.map(|marks| marks.low_bytes).into());
        stats.insert("freeHighBytes".to_owned(), self.options.free_marks.map(|marks| marks.high_bytes).into());
        stats.insert("isFull".to_owned(), self.is_full.load(Ordering::Relaxed).into());
        stats.insert("prefetchWaiting".to_owned(), self.prefetch_waiting().into());
        stats.insert("layers".to_owned(), self.layer_count().into());
        stats.insert("waiting".to_owned(), self.waiting().into());
        stats.insert("store".to_owned(), self.source.name().into());
        for (name, role) in [("holderPid", Role::Holder), ("standbyPid", Role::Standby), ("workerPid", Role::Worker)] {
            stats.insert(name.to_owned(), self.shared.pid(role).load(Ordering::Relaxed).into());
        }
        Value::Object(stats)
    }
}
