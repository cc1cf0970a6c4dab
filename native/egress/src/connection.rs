//! One client: bytes of its socket in and out of the wire protocol.

use std::os::fd::OwnedFd;

use daemon::failure::Failure;
use daemon::link::{self, Over};
use serde_json::Value;
use wire::SendError;
use wire::server::{Limits, READ_SIZE, Server};

use crate::denials::Waiting;

pub struct Connection {
    pub socket: OwnedFd,
    pub server: Server,
    told: Vec<(u32, Waiting)>,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self { socket, server: Server::new("egressd", Limits::default()), told: Vec::new() }
    }

    /// A buffer for [`Self::read`].
    pub fn buffer() -> Vec<u8> {
        vec![0; READ_SIZE]
    }

    /// Takes what has come in.
    pub fn read(&mut self, buffer: &mut [u8]) -> Result<(), Over> {
        link::receive(&self.socket, &mut self.server, buffer)
    }

    /// Writes what can be written now.
    pub fn write(&mut self) -> Result<(), Over> {
        loop {
            let is_filled = self.fill();
            link::send(&self.socket, &mut self.server)?;
            if !is_filled || !self.server.output().is_empty() {
                return Ok(());
            }
        }
    }

    /// Gives streams what they have credit and room for. Whether that was anything.
    fn fill(&mut self) -> bool {
        let mut is_filled = false;
        let server = &mut self.server;
        self.told.retain_mut(|(stream, waiting)| {
            while let Some(message) = waiting.next() {
                match server.send_message(*stream, &message) {
                    Ok(()) | Err(SendError::TooLarge) => {
                        waiting.taken();
                        is_filled = true;
                    }
                    Err(SendError::Blocked) => break,
                    Err(SendError::Gone) => return false,
                }
            }
            true
        });
        is_filled
    }

    pub fn answer(&mut self, stream: u32, answer: Result<Value, Failure>) {
        link::answer(&mut self.server, stream, answer);
    }

    pub fn watch(&mut self, stream: u32) {
        self.told.push((stream, Waiting::default()));
    }

    pub fn forget(&mut self, stream: u32) {
        self.told.retain(|(other, _)| *other != stream);
    }

    pub fn tell(&mut self, message: &Value) {
        for (_, waiting) in &mut self.told {
            waiting.push(message.clone());
        }
    }
}
