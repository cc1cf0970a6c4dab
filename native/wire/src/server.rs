//! The server end: it answers streams that the other side opens.

use serde::Serialize;

use crate::core::Core;
use crate::error::ProtocolError;
use crate::event::{CoreEvent, SendError, Side};
use crate::json::Json;
use crate::{MAX_CONTROL, MAX_DATA, MAX_STREAMS, frame};

pub use crate::output::OUTPUT_LIMIT;

/// Bytes that are kept of the message of an error that is too large.
const SHORT_MESSAGE: usize = 1_024;

#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Streams that may be live; one more is answered with `too_many_streams`.
    pub max_streams: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { max_streams: MAX_STREAMS }
    }
}

/// What happened on a stream.
#[derive(Debug)]
pub enum Event {
    /// `params` is the text of a JSON object: `serde_json::from_str::<P>(params.get())`.
    Open { stream: u32, method: String, params: Json },
    /// Say [`Server::consumed`] with the length once the bytes are where they belong.
    Data { stream: u32, channel: u8, bytes: Vec<u8> },
    /// Say [`Server::consumed`] with `size` once the message is dealt with.
    Message { stream: u32, value: Json, size: usize },
    /// The client sends no more DATA.
    End { stream: u32 },
    /// The client has lost interest or the connection ended: the stream is over and gets no answer. It may be one that was
    /// closed here in the meantime.
    Reset { stream: u32 },
    /// A stream that was not allowed to send all it wanted may go on.
    Writable { stream: u32 },
}

/// A connection on which the other side opens streams.
///
/// The loop of its owner: read when [`wants_input`](Self::wants_input), [`receive`](Self::receive), take events until there
/// is none, write [`output`](Self::output), [`advance_output`](Self::advance_output), and take events again: room in the
/// output makes `Writable` events. What is sent to a stream that is over is dropped.
#[derive(Debug)]
pub struct Server {
    core: Core,
}

impl Server {
    /// `role` is what HELLO calls this program.
    pub fn new(role: &str, limits: Limits) -> Self {
        Self { core: Core::new(Side::Server, role, limits.max_streams) }
    }

    /// Takes bytes that the client sent. After an error the connection must be closed, and every call returns that error again.
    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        self.core.receive(bytes)
    }

    pub fn next_event(&mut self) -> Option<Event> {
        Some(match self.core.next_event()? {
            CoreEvent::Open { stream, method, params } => Event::Open { stream, method, params },
            CoreEvent::Data { stream, channel, bytes } => Event::Data { stream, channel, bytes },
            CoreEvent::Message { stream, value, size } => Event::Message { stream, value, size },
            CoreEvent::End { stream } => Event::End { stream },
            CoreEvent::Reset { stream } | CoreEvent::Closed { stream, .. } => Event::Reset { stream },
            CoreEvent::Writable { stream } => Event::Writable { stream },
        })
    }

    /// False while so much waits to be written that the socket should not be read: else a client that only writes would fill the memory.
    pub fn wants_input(&self) -> bool {
        self.core.wants_input()
    }

    /// What the client called itself, once its HELLO is here.
    pub fn peer_role(&self) -> Option<&str> {
        self.core.peer_role()
    }

    pub fn is_open(&self, stream: u32) -> bool {
        self.core.is_open(stream)
    }

    /// The ids of the live streams.
    pub fn streams(&self) -> impl Iterator<Item = u32> + '_ {
        self.core.streams()
    }

    /// Bytes that `send_data` would take now; it may take up to one frame more.
    pub fn sendable(&self, stream: u32) -> usize {
        self.core.sendable(stream)
    }

    /// Takes as many bytes as credit and [`OUTPUT_LIMIT`] allow and returns how many. When these are not all, `Writable` follows.
    pub fn send_data(&mut self, stream: u32, channel: u8, bytes: &[u8]) -> usize {
        self.core.send_data(stream, channel, bytes)
    }

    /// Takes a message whole or not at all. After `Blocked`, `Writable` follows.
    pub fn send_message(&mut self, stream: u32, value: &impl Serialize) -> Result<(), SendError> {
        self.core.send_message(stream, value)
    }

    /// No more DATA from this side.
    pub fn send_end(&mut self, stream: u32) {
        self.core.send_end(stream);
    }

    /// Ends the stream with a result. One that is larger or deeper than CLOSE may carry becomes the error `internal`.
    pub fn close_ok(&mut self, stream: u32, result: &impl Serialize) {
        #[derive(Serialize)]
        struct Ok<'a, T> {
            ok: &'a T,
        }
        if !self.core.send_close(stream, &Ok { ok: result }, MAX_CONTROL) {
            self.close_err(stream, "internal", "The result is larger than a frame may be.", &serde_json::json!({}));
        }
    }

    /// Ends the stream with an error of the error table. `details` is a flat JSON object; when all of it is larger than an error may be,
    /// only the code and the beginning of the message are sent.
    pub fn close_err(&mut self, stream: u32, code: &str, message: &str, details: &impl Serialize) {
        #[derive(Serialize)]
        struct Error<'a, T> {
            error: Body<'a, T>,
        }
        #[derive(Serialize)]
        struct Body<'a, T> {
            code: &'a str,
            message: &'a str,
            details: T,
        }
        if !self.core.send_close(stream, &Error { error: Body { code, message, details } }, MAX_DATA) {
            let message = &message[..message.floor_char_boundary(SHORT_MESSAGE)];
            let body = Body { code, message, details: serde_json::json!({}) };
            self.core.send_close(stream, &Error { error: body }, MAX_DATA);
        }
    }

    /// Says that the owner is done with `n` more bytes of the stream's DATA and MESSAGE, so that the client may send more.
    pub fn consumed(&mut self, stream: u32, n: usize) {
        self.core.consumed(stream, n);
    }

    /// Asks the client for a sign of life.
    pub fn ping(&mut self, token: [u8; 8]) {
        self.core.ping(token);
    }

    /// The connection is gone: every live stream ends with `Reset`.
    pub fn disconnect(&mut self) {
        for stream in self.core.disconnect() {
            self.core.push_event(CoreEvent::Reset { stream });
        }
    }

    /// Bytes that wait to be written.
    pub fn output(&self) -> &[u8] {
        self.core.output()
    }

    /// Says that the first `n` bytes of the output were written.
    pub fn advance_output(&mut self, n: usize) {
        self.core.advance_output(n);
    }

    /// Bytes of memory that the buffers hold: at most two small ones when nothing is under way.
    pub fn capacity(&self) -> usize {
        self.core.capacity()
    }
}

/// Bytes that one read from the socket should ask for at most: one greatest DATA frame.
pub const READ_SIZE: usize = crate::MAX_DATA + frame::HEADER_LEN;
