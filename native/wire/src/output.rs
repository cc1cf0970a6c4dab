//! The bytes that wait to be written.

use serde::Serialize;

use crate::MAX_JSON_DEPTH;
use crate::frame::{self, FrameType, HEADER_LEN, Header};
use crate::json;

/// DATA and MESSAGE are taken only while less than this waits to be written (so at most one frame more than this waits). Frames that
/// end or steer streams always are: there is at most one CLOSE for each open stream, and one WINDOW for each half window that was taken.
pub const OUTPUT_LIMIT: usize = 128 << 10;
/// Room at which streams that waited for room may write again.
pub(crate) const OUTPUT_RESUME: usize = OUTPUT_LIMIT / 2;
/// Capacity that an empty buffer keeps; more is given back.
const KEEP_CAPACITY: usize = 4 << 10;
/// Written bytes in front of waiting ones that are moved away rather than kept.
const COMPACT_AT: usize = 64 << 10;

#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    start: usize,
}

/// The JSON is larger or deeper than its frame may carry.
#[derive(Debug)]
pub(crate) struct TooLarge;

impl Output {
    pub fn waiting(&self) -> &[u8] {
        &self.buffer[self.start..]
    }

    pub fn len(&self) -> usize {
        self.buffer.len() - self.start
    }

    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    /// Bytes that streams may still add.
    pub fn room(&self) -> usize {
        OUTPUT_LIMIT.saturating_sub(self.len())
    }

    pub fn advance(&mut self, n: usize) {
        self.start = (self.start + n).min(self.buffer.len());
        if self.start == self.buffer.len() {
            self.buffer.clear();
            self.start = 0;
            self.buffer.shrink_to(KEEP_CAPACITY);
        } else if self.start >= COMPACT_AT {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
    }

    pub fn frame(&mut self, kind: FrameType, channel: u8, stream: u32, payload: &[u8]) {
        frame::encode(&mut self.buffer, kind, channel, stream, payload);
    }

    /// Appends a frame with a JSON payload of at most `limit` bytes, or nothing.
    pub fn json(
        &mut self,
        kind: FrameType,
        stream: u32,
        value: &impl Serialize,
        limit: usize,
    ) -> Result<usize, TooLarge> {
        let at = self.buffer.len();
        self.buffer.extend_from_slice(&[0; HEADER_LEN]);
        let written = serde_json::to_writer(&mut self.buffer, value);
        let payload = &self.buffer[at + HEADER_LEN..];
        let length = payload.len();
        if written.is_err() || length > limit || json::depth(payload) > MAX_JSON_DEPTH {
            self.buffer.truncate(at);
            return Err(TooLarge);
        }
        self.buffer[at..at + HEADER_LEN].copy_from_slice(&Header { kind, channel: 0, stream, length }.to_bytes());
        Ok(length)
    }

    /// Takes back the last frame, which `json` appended with this payload length.
    pub fn take_back(&mut self, length: usize) {
        self.buffer.truncate(self.buffer.len() - HEADER_LEN - length);
    }
}
