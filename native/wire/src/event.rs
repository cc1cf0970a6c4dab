//! What a connection says to its owner, at either end.

use crate::json::{Json, WireError};

/// Why a message was not taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SendError {
    /// No credit or no room: try again after `Writable`.
    Blocked,
    /// Larger than `MAX_DATA`, deeper than `MAX_JSON_DEPTH`, or not serializable to an object.
    TooLarge,
    /// The stream is over.
    Gone,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Side {
    Client,
    Server,
}

/// The union of the events of both sides.
#[derive(Debug)]
pub(crate) enum CoreEvent {
    Open { stream: u32, method: String, params: Json },
    Data { stream: u32, channel: u8, bytes: Vec<u8> },
    Message { stream: u32, value: Json, size: usize },
    End { stream: u32 },
    Reset { stream: u32 },
    Closed { stream: u32, result: Result<Json, WireError> },
    Writable { stream: u32 },
}
