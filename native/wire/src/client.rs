//! The client end, for tests and tools: it opens streams.

use serde::Serialize;

use crate::MAX_STREAMS;
use crate::core::Core;
use crate::error::ProtocolError;
use crate::event::{CoreEvent, SendError, Side};
use crate::json::{Json, WireError};

/// What happened on a stream.
#[derive(Debug)]
pub enum Event {
    Data {
        stream: u32,
        channel: u8,
        bytes: Vec<u8>,
    },
    Message {
        stream: u32,
        value: Json,
        size: usize,
    },
    End {
        stream: u32,
    },
    /// The stream is over.
    Closed {
        stream: u32,
        result: Result<Json, WireError>,
    },
    Writable {
        stream: u32,
    },
}

/// A connection on which this side opens streams. Its owner's loop is that of a [`crate::server::Server`].
#[derive(Debug)]
pub struct Client {
    core: Core,
}

impl Client {
    pub fn new(role: &str) -> Self {
        Self { core: Core::new(Side::Client, role, MAX_STREAMS) }
    }

    /// Opens a stream; `None` when the params are larger than OPEN may carry. A unary call is this and then `Closed`.
    pub fn open(&mut self, method: &str, params: &impl Serialize) -> Option<u32> {
        #[derive(Serialize)]
        struct Open<'a, T> {
            method: &'a str,
            params: &'a T,
        }
        self.core.open(&Open { method, params })
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.core.receive(bytes)
    }

    pub fn next_event(&mut self) -> Option<Event> {
        loop {
            return Some(match self.core.next_event()? {
                CoreEvent::Data { stream, channel, bytes } => Event::Data { stream, channel, bytes },
                CoreEvent::Message { stream, value, size } => Event::Message { stream, value, size },
                CoreEvent::End { stream } => Event::End { stream },
                CoreEvent::Closed { stream, result } => Event::Closed { stream, result },
                CoreEvent::Writable { stream } => Event::Writable { stream },
                // A server sends neither.
                CoreEvent::Open { .. } | CoreEvent::Reset { .. } => continue,
            });
        }
    }

    pub fn wants_input(&self) -> bool {
        self.core.wants_input()
    }

    pub fn peer_role(&self) -> Option<&str> {
        self.core.peer_role()
    }

    pub fn is_open(&self, stream: u32) -> bool {
        self.core.is_open(stream)
    }

    pub fn sendable(&self, stream: u32) -> usize {
        self.core.sendable(stream)
    }

    pub fn send_data(&mut self, stream: u32, channel: u8, bytes: &[u8]) -> usize {
        self.core.send_data(stream, channel, bytes)
    }

    pub fn send_message(&mut self, stream: u32, value: &impl Serialize) -> Result<(), SendError> {
        self.core.send_message(stream, value)
    }

    pub fn send_end(&mut self, stream: u32) {
        self.core.send_end(stream);
    }

    /// Loses interest: nothing more comes for this stream.
    pub fn reset(&mut self, stream: u32) {
        self.core.send_reset(stream);
    }

    pub fn consumed(&mut self, stream: u32, n: usize) {
        self.core.consumed(stream, n);
    }

    pub fn ping(&mut self, token: [u8; 8]) {
        self.core.ping(token);
    }

    /// The connection is gone: every live stream ends with `connection_lost`.
    pub fn disconnect(&mut self) {
        for stream in self.core.disconnect() {
            let error = WireError {
                code: "connection_lost".to_owned(),
                message: "The connection ended before the answer came.".to_owned(),
                details: serde_json::Map::new(),
            };
            self.core.push_event(CoreEvent::Closed { stream, result: Err(error) });
        }
    }

    pub fn output(&self) -> &[u8] {
        self.core.output()
    }

    pub fn advance_output(&mut self, n: usize) {
        self.core.advance_output(n);
    }
}
