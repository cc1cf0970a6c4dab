//! Frames: a header of 12 bytes and a payload whose size is checked before any of it is kept.

use crate::error::ProtocolError;
use crate::{MAX_CONTROL, MAX_DATA};

/// Bytes of a header.
pub const HEADER_LEN: usize = 12;
/// Capacity that an empty decoder keeps; more is given back.
const KEEP_CAPACITY: usize = 4 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum FrameType {
    Hello = 1,
    Open = 2,
    Data = 3,
    Message = 4,
    End = 5,
    Close = 6,
    Reset = 7,
    Window = 8,
    Ping = 9,
    Pong = 10,
}

impl FrameType {
    pub fn from_byte(byte: u8) -> Option<Self> {
        Some(match byte {
            1 => Self::Hello,
            2 => Self::Open,
            3 => Self::Data,
            4 => Self::Message,
            5 => Self::End,
            6 => Self::Close,
            7 => Self::Reset,
            8 => Self::Window,
            9 => Self::Ping,
            10 => Self::Pong,
            _ => return None,
        })
    }

    /// Smallest and greatest payload.
    fn lengths(self) -> (usize, usize) {
        match self {
            Self::Hello | Self::Data | Self::Message => (1, MAX_DATA),
            Self::Open | Self::Close => (1, MAX_CONTROL),
            Self::End | Self::Reset => (0, 0),
            Self::Window => (4, 4),
            Self::Ping | Self::Pong => (8, 8),
        }
    }

    fn of_connection(self) -> bool {
        matches!(self, Self::Hello | Self::Ping | Self::Pong)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub kind: FrameType,
    /// Meaningful for DATA, 0 otherwise.
    pub channel: u8,
    /// 0 for frames of the connection.
    pub stream: u32,
    pub length: usize,
}

impl Header {
    /// Reads and checks a header. The order of the checks is part of the golden vectors: type, reserved, channel, stream, length.
    pub fn parse(bytes: &[u8; HEADER_LEN]) -> Result<Self, ProtocolError> {
        let kind = FrameType::from_byte(bytes[4]).ok_or(ProtocolError::BadType)?;
        if bytes[6] != 0 || bytes[7] != 0 {
            return Err(ProtocolError::BadReserved);
        }
        let channel = bytes[5];
        if channel != 0 && kind != FrameType::Data {
            return Err(ProtocolError::BadChannel);
        }
        let stream = u32::from_le_bytes([bytes[8], bytes[9], bytes[10], bytes[11]]);
        if (stream == 0) != kind.of_connection() {
            return Err(ProtocolError::BadStream);
        }
        let length = u32::from_le_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]) as usize;
        let (least, most) = kind.lengths();
        if length < least || length > most {
            return Err(ProtocolError::BadLength);
        }
        Ok(Self { kind, channel, stream, length })
    }

    pub fn to_bytes(self) -> [u8; HEADER_LEN] {
        let mut bytes = [0; HEADER_LEN];
        bytes[..4].copy_from_slice(&(self.length as u32).to_le_bytes());
        bytes[4] = self.kind as u8;
        bytes[5] = self.channel;
        bytes[8..].copy_from_slice(&self.stream.to_le_bytes());
        bytes
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame<'a> {
    pub kind: FrameType,
    pub channel: u8,
    pub stream: u32,
    pub payload: &'a [u8],
}

/// Appends a frame to `out`. The payload must be within the bounds of its type.
pub fn encode(out: &mut Vec<u8>, kind: FrameType, channel: u8, stream: u32, payload: &[u8]) {
    debug_assert!(payload.len() <= kind.lengths().1);
    out.extend_from_slice(&Header { kind, channel, stream, length: payload.len() }.to_bytes());
    out.extend_from_slice(payload);
}

/// Cuts a byte stream into frames. Push a chunk, then take frames until there is none: then it holds less than one frame, and
/// a length beyond the bounds of its type is an error before its payload is kept.
#[derive(Debug, Default)]
pub struct Decoder {
    buffer: Vec<u8>,
    start: usize,
    failed: Option<ProtocolError>,
}

impl Decoder {
    pub fn new() -> Self {
        Self::default()
    }

    pub fn push(&mut self, bytes: &[u8]) {
        if self.failed.is_some() {
            return;
        }
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        self.buffer.extend_from_slice(bytes);
    }

    /// The next whole frame; `None` when more bytes are needed. After an error every call returns it again.
    #[allow(clippy::should_implement_trait)] // Frames borrow from the decoder: an Iterator cannot say so.
    pub fn next(&mut self) -> Result<Option<Frame<'_>>, ProtocolError> {
        if let Some(error) = self.failed {
            return Err(error);
        }
        let Some(head) = self.buffer[self.start..].first_chunk::<HEADER_LEN>() else {
            self.compact();
            return Ok(None);
        };
        let header = match Header::parse(head) {
            Ok(header) => header,
            Err(error) => {
                self.failed = Some(error);
                self.buffer = Vec::new();
                self.start = 0;
                return Err(error);
            }
        };
        let from = self.start + HEADER_LEN;
        if self.buffer.len() - from < header.length {
            self.compact();
            return Ok(None);
        }
        self.start = from + header.length;
        let payload = &self.buffer[from..self.start];
        Ok(Some(Frame { kind: header.kind, channel: header.channel, stream: header.stream, payload }))
    }

    /// Bytes that are kept for a frame that is not whole yet.
    pub fn buffered(&self) -> usize {
        self.buffer.len() - self.start
    }

    /// Bytes of memory that are held.
    pub fn capacity(&self) -> usize {
        self.buffer.capacity()
    }

    fn compact(&mut self) {
        if self.start > 0 {
            self.buffer.drain(..self.start);
            self.start = 0;
        }
        if self.buffer.capacity() > KEEP_CAPACITY && self.buffer.len() <= KEEP_CAPACITY / 2 {
            self.buffer.shrink_to(KEEP_CAPACITY);
        }
    }
}
