//! One client: bytes of its socket in and out of the wire protocol.

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::rc::Rc;

use daemon::link::{self, Over};
use serde_json::{Value, json};
use wire::SendError;
use wire::server::{Limits, READ_SIZE, Server};

use crate::behaviour::Waiting;
use crate::failure::Failure;
use crate::record::Exit;
use crate::request::SandboxId;

/// Events that wait for a subscriber who does not read; one who lets more pile up has to list instead.
const MAX_PENDING_EVENTS: usize = 16_384;

pub struct Connection {
    pub socket: OwnedFd,
    pub server: Server,
    /// Whether its socket is waited on for input and for output.
    pub watched: (bool, bool),
    subscribers: Vec<Subscriber>,
    /// Those who are told of behaviour.
    observers: Vec<(u32, Waiting)>,
}

struct Subscriber {
    stream: u32,
    pending: VecDeque<Value>,
}

impl Connection {
    pub fn new(socket: OwnedFd) -> Self {
        Self {
            socket,
            server: Server::new("launcher", Limits::default()),
            watched: (true, false),
            subscribers: Vec::new(),
            observers: Vec::new(),
        }
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

    /// One message before the answer: a fresh stream has credit for more.
    pub fn tell(&mut self, stream: u32, message: &Value) {
        let _ = self.server.send_message(stream, message);
    }

    pub fn subscribe(&mut self, stream: u32) {
        self.subscribers.push(Subscriber { stream, pending: VecDeque::new() });
    }

    /// Tells every subscriber of this connection.
    pub fn publish(&mut self, id: &SandboxId, exit: &Exit) {
        let mut message = json!(exit);
        message["id"] = json!(id.as_str());
        let message = json!({ "exited": message });
        for subscriber in &mut self.subscribers {
            subscriber.pending.push_back(message.clone());
        }
        self.flush_events();
    }

    /// Sends events that had to wait.
    pub fn flush_events(&mut self) {
        let server = &mut self.server;
        self.subscribers.retain_mut(|subscriber| {
            while let Some(message) = subscriber.pending.front() {
                match server.send_message(subscriber.stream, message) {
                    Ok(()) => {}
                    Err(SendError::Blocked) => break,
                    Err(SendError::Gone | SendError::TooLarge) => return false,
                }
                subscriber.pending.pop_front();
            }
            if subscriber.pending.len() > MAX_PENDING_EVENTS {
                let message = "events were not read: list the sandboxes and subscribe again";
                server.close_err(subscriber.stream, "too_many_requests", message, &json!({}));
                return false;
            }
            true
        });
    }

    /// Tells of behaviour from here on, after what has waited for somebody.
    pub fn observe(&mut self, stream: u32, kept: Waiting) {
        self.observers.push((stream, kept));
        self.flush_behaviour();
    }

    /// Tells everybody of this connection who wants to hear it. Returns whether there is anybody.
    pub fn tell_behaviour(&mut self, event: &Rc<Value>) -> bool {
        self.observers.iter_mut().for_each(|(_, waiting)| waiting.push(Rc::clone(event)));
        self.flush_behaviour();
        !self.observers.is_empty()
    }

    /// Sends what had to wait.
    pub fn flush_behaviour(&mut self) {
        let server = &mut self.server;
        self.observers.retain_mut(|(stream, waiting)| {
            while let Some(message) = waiting.next() {
                match server.send_message(*stream, &message) {
                    Ok(()) => waiting.sent(),
                    Err(SendError::Blocked) => return true,
                    // One that is too large cannot be, and would block the others for ever.
                    Err(SendError::TooLarge) => waiting.sent(),
                    Err(SendError::Gone) => return false,
                }
            }
            true
        });
    }

    /// One who listens no more.
    pub fn forget(&mut self, gone: u32) {
        self.observers.retain(|(stream, _)| *stream != gone);
    }

    /// A buffer for [`Self::read`].
    pub fn buffer() -> Vec<u8> {
        vec![0; READ_SIZE]
    }
}
