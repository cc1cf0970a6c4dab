//! Who feeds the gate.

use std::io::{ErrorKind, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::time::Duration;

use serde_json::{Value, json};
use wire::client::{Client, Event};

const PATIENCE: Duration = Duration::from_secs(30);

pub struct Feeder {
    socket: UnixStream,
    client: Client,
    closed: Vec<(u32, Result<Value, Value>)>,
    /// What was told of refusals.
    pub told: Vec<Value>,
    /// The port that the connection of the last refusal came from.
    pub refused_from: Option<u64>,
}

impl Feeder {
    pub fn connect(path: &Path) -> Self {
        let socket = UnixStream::connect(path).expect("connected");
        socket.set_read_timeout(Some(PATIENCE)).expect("set");
        Self { socket, client: Client::new("test"), closed: Vec::new(), told: Vec::new(), refused_from: None }
    }

    pub fn call(&mut self, method: &str, params: &Value) -> Result<Value, Value> {
        let stream = self.client.open(method, params).expect("opened");
        self.flush();
        loop {
            if let Some(at) = self.closed.iter().position(|(closed, _)| *closed == stream) {
                return self.closed.swap_remove(at).1;
            }
            assert!(self.turn(), "no answer in time");
        }
    }

    pub fn ok(&mut self, method: &str, params: &Value) -> Value {
        self.call(method, params).unwrap_or_else(|error| panic!("{method}: {error}"))
    }

    /// Listens from now on.
    pub fn listen(&mut self) -> u32 {
        let stream = self.client.open("events", &json!({})).expect("opened");
        self.flush();
        // The answer to what comes behind says that it was heard.
        self.ok("gate.info", &json!({}));
        stream
    }

    /// The next refusal: reason, and name where there is one.
    pub fn refusal(&mut self) -> (String, Option<String>) {
        while self.told.is_empty() {
            assert!(self.turn(), "no event in time");
        }
        let refused = self.told.remove(0)["refused"].clone();
        assert_eq!(refused["id"], "a1");
        self.refused_from = refused["from"].as_u64();
        let text = |name: &str| refused[name].as_str().map(str::to_owned);
        (text("reason").expect("a reason"), text("name"))
    }

    /// False when nothing came in time.
    fn turn(&mut self) -> bool {
        let mut buffer = vec![0; 1 << 16];
        let length = match self.socket.read(&mut buffer) {
            Ok(length) => length,
            Err(error) if error.kind() == ErrorKind::WouldBlock => return false,
            Err(error) => panic!("{error}"),
        };
        assert!(length > 0, "the gate closed the connection");
        self.client.receive(&buffer[..length]).expect("sound frames");
        while let Some(event) = self.client.next_event() {
            match event {
                Event::Closed { stream, result } => {
                    let result = result.map(|ok| serde_json::from_str(ok.get()).expect("JSON"));
                    let result = result.map_err(|error| json!({ "code": error.code, "message": error.message }));
                    self.closed.push((stream, result));
                }
                Event::Message { stream, value, size } => {
                    self.told.push(serde_json::from_str(value.get()).expect("JSON"));
                    self.client.consumed(stream, size);
                }
                _ => {}
            }
        }
        self.flush();
        true
    }

    fn flush(&mut self) {
        while !self.client.output().is_empty() {
            let length = self.socket.write(self.client.output()).expect("written");
            self.client.advance_output(length);
        }
    }
}
