//! A blocking client of the wire protocol.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::{Value, json};
use wire::client::{Client, Event};

use super::PATIENCE;

pub struct TestClient {
    socket: UnixStream,
    client: Client,
    messages: std::collections::VecDeque<(u32, Value)>,
}

impl TestClient {
    /// Nothing when nobody answers.
    pub fn connect(path: &Path) -> Option<Self> {
        let socket = UnixStream::connect(path).ok()?;
        socket.set_read_timeout(Some(PATIENCE)).expect("timeout");
        let mut client = Self { socket, client: Client::new("resolver"), messages: Default::default() };
        client.try_call("node.info", &json!({}))?.ok()?;
        Some(client)
    }

    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        self.try_call(method, params).expect("the connection stays")
    }

    /// Nothing when the connection ends first.
    fn try_call(&mut self, method: &str, params: &Value) -> Option<Result<Value, Value>> {
        let stream = self.open(method, params);
        let mut closed = None;
        while closed.is_none() {
            closed = self.turn(stream)?;
        }
        closed
    }

    /// Opens a stream of messages.
    pub fn open(&mut self, method: &str, params: &Value) -> u32 {
        self.client.open(method, params).expect("a stream")
    }

    /// The next message of a stream, or nothing for so long.
    pub fn message(&mut self, stream: u32, within: Duration) -> Option<Value> {
        let until = Instant::now() + within;
        loop {
            if let Some(at) = self.messages.iter().position(|(other, _)| *other == stream) {
                return self.messages.remove(at).map(|(_, message)| message);
            }
            let left = until.checked_duration_since(Instant::now()).filter(|left| !left.is_zero())?;
            self.socket.set_read_timeout(Some(left)).expect("timeout");
            if let Some(Some(closed)) = self.turn(stream) {
                panic!("the stream is over: {closed:?}");
            }
        }
    }

    fn turn(&mut self, stream: u32) -> Option<Option<Result<Value, Value>>> {
        let mut buffer = vec![0; 1 << 16];
        while !self.client.output().is_empty() {
            let length = self.socket.write(self.client.output()).ok()?;
            self.client.advance_output(length);
        }
        let length = self.socket.read(&mut buffer).ok().filter(|length| *length > 0)?;
        self.client.receive(&buffer[..length]).expect("sound frames");
        let mut outcome = None;
        while let Some(event) = self.client.next_event() {
            match event {
                Event::Closed { stream: closed, result } if closed == stream => {
                    let result = result.map(|ok| serde_json::from_str(ok.get()).expect("JSON"));
                    outcome = Some(result.map_err(
                        |error| json!({ "code": error.code, "message": error.message, "details": error.details }),
                    ));
                }
                Event::Message { stream, value, size } => {
                    self.client.consumed(stream, size);
                    self.messages.push_back((stream, serde_json::from_str(value.get()).expect("JSON")));
                }
                _ => {}
            }
        }
        Some(outcome)
    }
}
