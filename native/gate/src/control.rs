//! One who feeds the gate: bytes of its socket in and out of the wire protocol.

use std::os::fd::OwnedFd;

use daemon::failure::Failure;
use daemon::link::{self, Over};
use serde_json::Value;
use wire::SendError;
use wire::server::{Limits, Server};

use crate::events::Pending;
use crate::poller::Interest;

pub struct Feeder {
    pub socket: OwnedFd,
    pub server: Server,
    pub watched: Interest,
    listeners: Vec<(u32, Pending)>,
}

impl Feeder {
    pub fn new(socket: OwnedFd) -> Self {
        let server = Server::new("gate", Limits::default());
        Self { socket, server, watched: Interest::INPUT, listeners: Vec::new() }
    }

    /// Takes what has come in.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<(), Over> {
        link::receive(&self.socket, &mut self.server, buffer)
    }

    /// Writes what can be written now.
    pub fn write(&mut self) -> Result<(), Over> {
        link::send(&self.socket, &mut self.server)
    }

    pub fn answer(&mut self, stream: u32, answer: Result<Value, Failure>) {
        link::answer(&mut self.server, stream, answer);
    }

    pub fn listen(&mut self, stream: u32) {
        self.listeners.push((stream, Pending::default()));
    }

    pub fn forget(&mut self, stream: u32) {
        self.listeners.retain(|(of, _)| *of != stream);
    }

    /// Tells all who listen on this connection.
    pub fn tell(&mut self, messages: &[Value]) {
        for (_, pending) in &mut self.listeners {
            messages.iter().cloned().for_each(|message| pending.push(message));
        }
        self.flush_events();
    }

    /// Sends events that had to wait.
    pub fn flush_events(&mut self) {
        let server = &mut self.server;
        self.listeners.retain_mut(|(stream, pending)| {
            while let Some(message) = pending.next() {
                match server.send_message(*stream, &message) {
                    Ok(()) => pending.sent(),
                    Err(SendError::Blocked) => break,
                    Err(SendError::Gone | SendError::TooLarge) => return false,
                }
            }
            true
        });
    }

    pub fn interest(&self) -> Interest {
        Interest { input: self.server.wants_input(), output: !self.server.output().is_empty() }
    }
}
