//! What both ends of a connection have in common: HELLO, streams and their credit, PING, and the buffer of what is to be written.

use std::collections::{BTreeMap, VecDeque};

use serde::Serialize;

use crate::error::ProtocolError;
use crate::event::{CoreEvent, SendError, Side};
use crate::frame::{Decoder, Frame, FrameType};
use crate::json::{self, WireError};
use crate::output::{OUTPUT_LIMIT, OUTPUT_RESUME, Output};
use crate::stream::{Stream, cost};
use crate::{MAX_CONTROL, MAX_DATA, MIN_COST, PROTOCOL, VERSION};

/// A PING is answered only while less than this waits to be written.
const PONG_LIMIT: usize = 2 * OUTPUT_LIMIT + 2 * MAX_CONTROL;
/// Entries that an empty queue keeps.
const KEEP_EVENTS: usize = 16;

#[derive(Debug)]
pub(crate) struct Core {
    decoder: Decoder,
    state: State,
}

#[derive(Debug)]
struct State {
    side: Side,
    max_streams: usize,
    output: Output,
    streams: BTreeMap<u32, Stream>,
    last_stream: u32,
    peer_role: Option<String>,
    events: VecDeque<CoreEvent>,
    /// Streams that wanted to send more than they could and now can, in the order in which they became so; one at a time is
    /// told, so that each gets the room in turn.
    ready: VecDeque<u32>,
    failed: Option<ProtocolError>,
}

impl Core {
    pub fn new(side: Side, role: &str, max_streams: usize) -> Self {
        let mut output = Output::default();
        let hello = serde_json::json!({ "protocol": PROTOCOL, "version": VERSION, "role": role });
        // A role is a short constant of the program: it always fits.
        let _ = output.json(FrameType::Hello, 0, &hello, MAX_DATA);
        Self {
            decoder: Decoder::new(),
            state: State {
                side,
                max_streams,
                output,
                streams: BTreeMap::new(),
                last_stream: 0,
                peer_role: None,
                events: VecDeque::new(),
                ready: VecDeque::new(),
                failed: None,
            },
        }
    }

    pub fn receive(&mut self, bytes: &[u8]) -> Result<(), ProtocolError> {
        let Self { decoder, state } = self;
        if let Some(error) = state.failed {
            return Err(error);
        }
        decoder.push(bytes);
        let outcome = loop {
            match decoder.next() {
                Ok(Some(frame)) => {
                    if let Err(error) = state.frame(frame) {
                        break Err(error);
                    }
                }
                Ok(None) => break Ok(()),
                Err(error) => break Err(error),
            }
        };
        state.failed = outcome.err();
        outcome
    }

    pub fn next_event(&mut self) -> Option<CoreEvent> {
        self.state.next_event()
    }

    pub fn peer_role(&self) -> Option<&str> {
        self.state.peer_role.as_deref()
    }

    pub fn is_open(&self, stream: u32) -> bool {
        self.state.streams.contains_key(&stream)
    }

    pub fn streams(&self) -> impl Iterator<Item = u32> + '_ {
        self.state.streams.keys().copied()
    }

    pub fn output(&self) -> &[u8] {
        self.state.output.waiting()
    }

    pub fn advance_output(&mut self, n: usize) {
        self.state.output.advance(n);
    }

    pub fn wants_input(&self) -> bool {
        let is_full = self.state.side == Side::Server && self.state.output.len() >= OUTPUT_LIMIT;
        self.state.failed.is_none() && !is_full
    }

    /// Bytes of memory that the buffers hold.
    pub fn capacity(&self) -> usize {
        self.decoder.capacity() + self.state.output.capacity()
    }

    pub fn disconnect(&mut self) -> Vec<u32> {
        self.state.ready.clear();
        std::mem::take(&mut self.state.streams).into_keys().collect()
    }

    pub fn push_event(&mut self, event: CoreEvent) {
        self.state.events.push_back(event);
    }

    /// Opens a stream; `None` when the params are too large or the ids are used up.
    pub fn open(&mut self, open: &impl Serialize) -> Option<u32> {
        let state = &mut self.state;
        let stream = state.last_stream.checked_add(1)?;
        state.output.json(FrameType::Open, stream, open, MAX_CONTROL).ok()?;
        state.last_stream = stream;
        state.streams.insert(stream, Stream::new());
        Some(stream)
    }

    pub fn sendable(&self, stream: u32) -> usize {
        match self.state.streams.get(&stream) {
            Some(state) if !state.end_sent && state.credit >= MIN_COST => {
                (state.credit as usize).min(self.state.output.room())
            }
            _ => 0,
        }
    }

    pub fn send_data(&mut self, stream: u32, channel: u8, bytes: &[u8]) -> usize {
        let Self { state: State { streams, output, ready, .. }, .. } = self;
        let Some(state) = streams.get_mut(&stream) else { return 0 };
        if state.end_sent {
            return 0;
        }
        let mut sent = 0;
        while sent < bytes.len() {
            if state.credit < MIN_COST {
                state.wants_credit = true;
                break;
            }
            if output.room() == 0 {
                mark_ready(ready, stream, state);
                break;
            }
            // The last frame may go beyond the limit: a frame that is cut short to fit would cost more than it carries.
            let n = (bytes.len() - sent).min(MAX_DATA).min(state.credit as usize);
            output.frame(FrameType::Data, channel, stream, &bytes[sent..sent + n]);
            state.credit -= cost(n);
            sent += n;
        }
        sent
    }

    pub fn send_message(&mut self, stream: u32, value: &impl Serialize) -> Result<(), SendError> {
        let Self { state: State { streams, output, ready, .. }, .. } = self;
        let Some(state) = streams.get_mut(&stream) else { return Err(SendError::Gone) };
        if output.room() == 0 {
            mark_ready(ready, stream, state);
            return Err(SendError::Blocked);
        }
        let length = output.json(FrameType::Message, stream, value, MAX_DATA).map_err(|_| SendError::TooLarge)?;
        match state.credit.checked_sub(cost(length)) {
            Some(left) => {
                state.credit = left;
                Ok(())
            }
            None => {
                output.take_back(length);
                state.wants_credit = true;
                Err(SendError::Blocked)
            }
        }
    }

    pub fn send_end(&mut self, stream: u32) {
        let state = &mut self.state;
        if let Some(open) = state.streams.get_mut(&stream)
            && !open.end_sent
        {
            open.end_sent = true;
            state.output.frame(FrameType::End, 0, stream, &[]);
        }
    }

    /// Sends the JSON that ends a stream; false when it is too large and nothing was sent.
    pub fn send_close(&mut self, stream: u32, value: &impl Serialize, limit: usize) -> bool {
        let state = &mut self.state;
        if !state.streams.contains_key(&stream) {
            return true;
        }
        if state.output.json(FrameType::Close, stream, value, limit).is_err() {
            return false;
        }
        state.streams.remove(&stream);
        true
    }

    pub fn send_reset(&mut self, stream: u32) {
        if self.state.streams.remove(&stream).is_some() {
            self.state.output.frame(FrameType::Reset, 0, stream, &[]);
        }
    }

    pub fn consumed(&mut self, stream: u32, n: usize) {
        let state = &mut self.state;
        if let Some(grant) = state.streams.get_mut(&stream).and_then(|open| open.take(n)) {
            state.output.frame(FrameType::Window, 0, stream, &grant.to_le_bytes());
        }
    }

    pub fn ping(&mut self, token: [u8; 8]) {
        self.state.output.frame(FrameType::Ping, 0, 0, &token);
    }
}

fn mark_ready(ready: &mut VecDeque<u32>, stream: u32, state: &mut Stream) {
    if !state.is_ready {
        state.is_ready = true;
        ready.push_back(stream);
    }
}

impl State {
    fn next_event(&mut self) -> Option<CoreEvent> {
        while let Some(event) = self.events.pop_front() {
            // What came in for a stream that was closed here in the meantime is of no interest.
            let is_stale = match &event {
                CoreEvent::Data { stream, .. } | CoreEvent::Message { stream, .. } | CoreEvent::End { stream } => {
                    self.side == Side::Server && !self.streams.contains_key(stream)
                }
                _ => false,
            };
            if !is_stale {
                return Some(event);
            }
        }
        if self.events.capacity() > KEEP_EVENTS {
            self.events.shrink_to(KEEP_EVENTS);
        }
        if OUTPUT_LIMIT - self.output.room() > OUTPUT_RESUME {
            return None;
        }
        while let Some(stream) = self.ready.pop_front() {
            if let Some(state) = self.streams.get_mut(&stream) {
                state.is_ready = false;
                return Some(CoreEvent::Writable { stream });
            }
        }
        None
    }

    fn frame(&mut self, frame: Frame<'_>) -> Result<(), ProtocolError> {
        let stream = frame.stream;
        if self.peer_role.is_none() {
            if frame.kind != FrameType::Hello {
                return Err(ProtocolError::HelloMissing);
            }
            self.peer_role = Some(json::hello(frame.payload)?);
            return Ok(());
        }
        match (frame.kind, self.side) {
            (FrameType::Hello, _) => return Err(ProtocolError::HelloTwice),
            (FrameType::Pong, _) => return Ok(()),
            (FrameType::Ping, _) => {
                if self.output.len() > PONG_LIMIT {
                    return Err(ProtocolError::Flood);
                }
                self.output.frame(FrameType::Pong, 0, 0, frame.payload);
                return Ok(());
            }
            (FrameType::Open, Side::Server) => return self.opened(stream, frame.payload),
            (FrameType::Open | FrameType::Reset, Side::Client) | (FrameType::Close, Side::Server) => {
                return Err(ProtocolError::WrongSide);
            }
            _ => {}
        }
        if stream > self.last_stream {
            return Err(ProtocolError::StreamUnknown);
        }
        let Some(open) = self.streams.get_mut(&stream) else { return Ok(()) };
        match frame.kind {
            FrameType::Data => {
                if open.end_received {
                    return Err(ProtocolError::AfterEnd);
                }
                open.charge(frame.payload.len())?;
                self.events.push_back(CoreEvent::Data {
                    stream,
                    channel: frame.channel,
                    bytes: frame.payload.to_vec(),
                });
            }
            FrameType::Message => {
                open.charge(frame.payload.len())?;
                match json::message(frame.payload) {
                    Ok(value) => self.events.push_back(CoreEvent::Message { stream, value, size: frame.payload.len() }),
                    Err(error) if self.side == Side::Server => return Err(error),
                    Err(error) => {
                        self.output.frame(FrameType::Reset, 0, stream, &[]);
                        self.unreadable(stream, error);
                    }
                }
            }
            FrameType::End => {
                if std::mem::replace(&mut open.end_received, true) {
                    return Err(ProtocolError::AfterEnd);
                }
                self.events.push_back(CoreEvent::End { stream });
            }
            FrameType::Window => {
                let grant = frame.payload.first_chunk::<4>().map_or(0, |bytes| u32::from_le_bytes(*bytes));
                open.granted(grant)?;
                if open.wants_credit && open.credit >= MIN_COST {
                    open.wants_credit = false;
                    mark_ready(&mut self.ready, stream, open);
                }
            }
            FrameType::Reset => {
                self.streams.remove(&stream);
                self.events.push_back(CoreEvent::Reset { stream });
            }
            FrameType::Close => match json::close(frame.payload) {
                Ok(result) => {
                    self.streams.remove(&stream);
                    self.events.push_back(CoreEvent::Closed { stream, result });
                }
                Err(error) => self.unreadable(stream, error),
            },
            // Handled above.
            FrameType::Hello | FrameType::Open | FrameType::Ping | FrameType::Pong => {}
        }
        Ok(())
    }

    /// JSON for a client does not parse: that ends its stream only, because whoever relayed it did not look into it.
    fn unreadable(&mut self, stream: u32, error: ProtocolError) {
        self.streams.remove(&stream);
        let mut details = serde_json::Map::new();
        details.insert("kind".to_owned(), error.kind().into());
        let message = format!("The other side broke the wire protocol: {error}.");
        let error = WireError { code: "protocol_error".to_owned(), message, details };
        self.events.push_back(CoreEvent::Closed { stream, result: Err(error) });
    }

    fn opened(&mut self, stream: u32, payload: &[u8]) -> Result<(), ProtocolError> {
        if stream <= self.last_stream {
            return Err(ProtocolError::StreamOrder);
        }
        let (method, params) = json::open(payload)?;
        self.last_stream = stream;
        if self.streams.len() >= self.max_streams {
            let message = "The connection has its greatest number of open streams.";
            let error = serde_json::json!({ "error": {
                "code": "too_many_streams", "message": message, "details": { "limit": self.max_streams },
            }});
            // Small and shallow: it always fits.
            let _ = self.output.json(FrameType::Close, stream, &error, MAX_CONTROL);
            return Ok(());
        }
        self.streams.insert(stream, Stream::new());
        self.events.push_back(CoreEvent::Open { stream, method, params });
        Ok(())
    }
}
