//! One connected client: its socket, its protocol state and its open streams.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use serde_json::Value;
use wire::server::{Event, Limits, READ_SIZE, Server};

use crate::dispatch;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Source};
use crate::slab::Key;
use crate::streams::{After, Stream};
use crate::sys::{fd, poll, socket};

/// Connections at once: the edge has one, and a second while it restarts.
const MAX_CONNECTIONS: usize = 8;
/// Streams that one connection may have open.
const MAX_STREAMS: usize = 256;
/// Written to one socket before the others have their turn.
const WRITE_BUDGET: usize = 1 << 20;

/// A stream of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct StreamKey {
    pub connection: Key,
    pub stream: u32,
}

#[derive(Debug)]
pub struct Connection {
    socket: OwnedFd,
    pub server: Server,
    pub streams: BTreeMap<u32, Stream>,
    interest: u32,
    /// Something may wait to be written.
    pub is_dirty: bool,
}

impl Aether {
    pub fn on_listener(&mut self) {
        while self.connections.len() < MAX_CONNECTIONS
            && let Ok(socket) = socket::accept(&self.listener)
        {
            let server = Server::new("aether", Limits { max_streams: MAX_STREAMS });
            let connection =
                Connection { socket, server, streams: BTreeMap::new(), interest: poll::READ, is_dirty: true };
            let key = self.connections.insert(connection);
            let Some(connection) = self.connections.get(key) else { continue };
            if self.poll.add(&connection.socket, poll::READ, Source::Connection(key).token()).is_err() {
                self.connections.remove(key);
            }
        }
        // One more waits in the backlog until another goes.
        if self.connections.len() >= MAX_CONNECTIONS && !self.is_full {
            self.is_full = true;
            self.poll.remove(&self.listener);
        }
    }

    pub fn on_connection(&mut self, key: Key, events: u32) {
        if events & (poll::READ | poll::HANGUP) != 0 {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.server.wants_input() || events & poll::HANGUP != 0 {
                match fd::read(&connection.socket, &mut self.scratch[..READ_SIZE]) {
                    Ok(0) => return self.disconnect(key),
                    Ok(n) => {
                        if connection.server.receive(&self.scratch[..n]).is_err() {
                            return self.disconnect(key);
                        }
                        connection.is_dirty = true;
                    }
                    Err(libc::EAGAIN) => {}
                    Err(_) => return self.disconnect(key),
                }
            }
            self.take_events(key);
        }
        if events & poll::WRITE != 0
            && let Some(connection) = self.connections.get_mut(key)
        {
            connection.is_dirty = true;
        }
    }

    fn take_events(&mut self, key: Key) {
        while let Some(event) = self.connections.get_mut(key).and_then(|connection| connection.server.next_event()) {
            let at = |stream| StreamKey { connection: key, stream };
            match event {
                Event::Open { stream, method, params } => dispatch::open(self, at(stream), &method, params.get()),
                Event::Data { stream, channel, bytes } => {
                    self.with_stream(at(stream), |aether, live| live.on_data(aether, at(stream), channel, bytes));
                }
                Event::Message { stream, size, .. } => {
                    // No method takes messages.
                    if let Some(connection) = self.connections.get_mut(key) {
                        connection.server.consumed(stream, size);
                    }
                }
                Event::End { stream } => self.with_stream(at(stream), |aether, live| live.on_end(aether, at(stream))),
                Event::Writable { stream } => {
                    self.with_stream(at(stream), |aether, live| live.on_writable(aether, at(stream)));
                }
                Event::Reset { stream } => self.drop_stream(at(stream)),
            }
        }
    }

    /// Runs `act` on a live stream; the stream is outside of the table meanwhile, so that `act` may use all of aether.
    pub fn with_stream(&mut self, at: StreamKey, act: impl FnOnce(&mut Self, &mut Stream) -> After) {
        let Some(connection) = self.connections.get_mut(at.connection) else { return };
        connection.is_dirty = true;
        let Some(mut stream) = connection.streams.remove(&at.stream) else { return };
        let after = act(self, &mut stream);
        match self.connections.get_mut(at.connection) {
            Some(connection) if after == After::Keep && connection.server.is_open(at.stream) => {
                connection.streams.insert(at.stream, stream);
            }
            _ => stream.release(self, at),
        }
    }

    /// Puts a new stream into the table.
    pub fn keep_stream(&mut self, at: StreamKey, stream: Stream) {
        match self.connections.get_mut(at.connection) {
            Some(connection) if connection.server.is_open(at.stream) => {
                connection.streams.insert(at.stream, stream);
            }
            _ => stream.release(self, at),
        }
    }

    /// Forgets a stream and what it holds.
    pub fn drop_stream(&mut self, at: StreamKey) {
        let stream =
            self.connections.get_mut(at.connection).and_then(|connection| connection.streams.remove(&at.stream));
        if let Some(stream) = stream {
            stream.release(self, at);
        }
    }

    /// Answers a stream and forgets it.
    pub fn finish(&mut self, at: StreamKey, outcome: Outcome<Value>) {
        self.answer(at, outcome);
        self.drop_stream(at);
    }

    /// Sends the CLOSE of a stream.
    pub fn answer(&mut self, at: StreamKey, outcome: Outcome<Value>) {
        let Some(connection) = self.connections.get_mut(at.connection) else { return };
        connection.is_dirty = true;
        match outcome {
            Ok(value) => connection.server.close_ok(at.stream, &value),
            Err(Failure { code, message, details }) => connection.server.close_err(at.stream, code, &message, &details),
        }
    }

    pub fn disconnect(&mut self, key: Key) {
        let Some(mut connection) = self.connections.remove(key) else { return };
        self.poll.remove(&connection.socket);
        if self.is_full {
            self.is_full = self.poll.add(&self.listener, poll::READ, Source::Listener.token()).is_err();
        }
        connection.server.disconnect();
        for (stream, live) in std::mem::take(&mut connection.streams) {
            live.release(self, StreamKey { connection: key, stream });
        }
    }

    /// Writes what the connections have to say; what does not fit goes when the socket is writable again.
    pub fn flush_all(&mut self) {
        for key in self.connections.keys() {
            if self.connections.get(key).is_some_and(|connection| connection.is_dirty) {
                self.flush(key);
            }
        }
    }

    fn flush(&mut self, key: Key) {
        let mut budget = WRITE_BUDGET;
        loop {
            let Some(connection) = self.connections.get_mut(key) else { return };
            if connection.server.output().is_empty() {
                connection.is_dirty = false;
                break;
            }
            match socket::send(&connection.socket, connection.server.output()) {
                Ok(n) => {
                    connection.server.advance_output(n);
                    budget = budget.saturating_sub(n);
                    // Room in the output lets streams go on.
                    self.take_events(key);
                    if budget == 0 {
                        break;
                    }
                }
                Err(libc::EAGAIN) => {
                    connection.is_dirty = false;
                    break;
                }
                Err(_) => return self.disconnect(key),
            }
        }
        let Some(connection) = self.connections.get_mut(key) else { return };
        let mut interest = 0;
        if connection.server.wants_input() {
            interest |= poll::READ;
        }
        if !connection.server.output().is_empty() {
            interest |= poll::WRITE;
        }
        if interest != connection.interest {
            connection.interest = interest;
            self.poll.change(&connection.socket, interest, Source::Connection(key).token());
        }
    }
}
