//! The golden vectors, which the TypeScript end runs too.

use std::collections::{BTreeMap, VecDeque};

use serde::Deserialize;
use serde_json::{Value, json};
use wire::ProtocolError;
use wire::client::{self, Client};
use wire::frame::{Decoder, FrameType, encode};
use wire::server::{self, Limits, Server};

const TYPES: [&str; 11] = ["", "hello", "open", "data", "message", "end", "close", "reset", "window", "ping", "pong"];

fn kind(name: &str) -> FrameType {
    let byte = TYPES.iter().position(|known| *known == name).unwrap();
    FrameType::from_byte(byte as u8).unwrap()
}

fn unhex(text: &str) -> Vec<u8> {
    assert!(text.len().is_multiple_of(2));
    (0..text.len()).step_by(2).map(|at| u8::from_str_radix(&text[at..at + 2], 16).unwrap()).collect()
}

fn vectors<T: for<'de> Deserialize<'de>>(name: &str) -> Vec<T> {
    let path = format!("{}/vectors/{name}.json", env!("CARGO_MANIFEST_DIR"));
    serde_json::from_slice(&std::fs::read(path).unwrap()).unwrap()
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct FrameVector {
    name: String,
    hex: String,
    r#type: String,
    channel: u8,
    stream: u32,
    payload_hex: String,
}

#[derive(Deserialize)]
struct Invalid {
    name: String,
    hex: String,
    error: String,
}

#[test]
fn frames_decode_and_encode() {
    for vector in vectors::<FrameVector>("frames") {
        let bytes = unhex(&vector.hex);
        let payload = unhex(&vector.payload_hex);
        let mut again = Vec::new();
        encode(&mut again, kind(&vector.r#type), vector.channel, vector.stream, &payload);
        assert_eq!(again, bytes, "{}", vector.name);
        for split in 0..=bytes.len() {
            let mut decoder = Decoder::new();
            decoder.push(&bytes[..split]);
            if split < bytes.len() {
                assert_eq!(decoder.next(), Ok(None), "{}", vector.name);
            }
            decoder.push(&bytes[split..]);
            let frame = decoder.next().unwrap().unwrap();
            assert_eq!(
                (frame.kind, frame.channel, frame.stream, frame.payload),
                (kind(&vector.r#type), vector.channel, vector.stream, payload.as_slice()),
                "{}",
                vector.name
            );
            assert_eq!(decoder.next(), Ok(None));
            assert_eq!(decoder.buffered(), 0);
        }
    }
}

#[test]
fn invalid_frames_are_refused_for_good() {
    for vector in vectors::<Invalid>("invalid") {
        let mut decoder = Decoder::new();
        decoder.push(&unhex(&vector.hex));
        assert_eq!(decoder.next().map_err(ProtocolError::kind), Err(vector.error.as_str()), "{}", vector.name);
        decoder.push(&unhex("00000000050000000100000000"));
        assert_eq!(decoder.next().map_err(ProtocolError::kind), Err(vector.error.as_str()), "{}", vector.name);
    }
}

#[derive(Deserialize)]
struct Conversation {
    name: String,
    side: String,
    steps: Vec<Value>,
}

/// The bytes that a description stands for: payload of a frame, or what to write.
fn payload(value: &Value) -> Vec<u8> {
    if let Some(json) = value.get("json") {
        serde_json::to_vec(json).unwrap()
    } else if let Some(text) = value.get("text") {
        text.as_str().unwrap().as_bytes().to_vec()
    } else if let Some(hex) = value.get("hex") {
        unhex(hex.as_str().unwrap())
    } else if let Some(repeat) = value.get("repeat") {
        vec![repeat[0].as_u64().unwrap() as u8; repeat[1].as_u64().unwrap() as usize]
    } else if let Some(grant) = value.get("grant") {
        (grant.as_u64().unwrap() as u32).to_le_bytes().to_vec()
    } else {
        Vec::new()
    }
}

fn stream_of(value: &Value) -> u32 {
    value.get("stream").map_or(0, |stream| stream.as_u64().unwrap() as u32)
}

fn channel_of(value: &Value) -> u8 {
    value.get("channel").map_or(0, |channel| channel.as_u64().unwrap() as u8)
}

enum End {
    Server(Server),
    Client(Client),
}

macro_rules! both {
    ($end:expr, $name:ident => $call:expr) => {
        match $end {
            End::Server($name) => $call,
            End::Client($name) => $call,
        }
    };
}

struct Runner {
    end: End,
    events: VecDeque<(Value, usize)>,
    writes: BTreeMap<u32, Vec<(u8, Vec<u8>)>>,
    outcome: Result<(), ProtocolError>,
}

/// Data is compared by its bytes, whatever way the vector writes them.
fn data(stream: u32, channel: u8, bytes: &[u8]) -> Value {
    json!({ "event": "data", "stream": stream, "channel": channel, "bytes": bytes })
}

fn parsed(json: &wire::json::Json) -> Value {
    serde_json::from_str(json.get()).unwrap()
}

impl Runner {
    fn new(side: &str) -> Self {
        let end = match side {
            "server" => End::Server(Server::new("test", Limits::default())),
            "client" => End::Client(Client::new("test")),
            _ => panic!("side {side}"),
        };
        Self { end, events: VecDeque::new(), writes: BTreeMap::new(), outcome: Ok(()) }
    }

    fn drain(&mut self) {
        loop {
            let event = match &mut self.end {
                End::Server(server) => server.next_event().map(|event| match event {
                    server::Event::Open { stream, method, params } => {
                        (json!({ "event": "open", "stream": stream, "method": method, "params": parsed(&params) }), 0)
                    }
                    server::Event::Data { stream, channel, bytes } => (data(stream, channel, &bytes), bytes.len()),
                    server::Event::Message { stream, value, size } => {
                        (json!({ "event": "message", "stream": stream, "value": parsed(&value) }), size)
                    }
                    server::Event::End { stream } => (json!({ "event": "end", "stream": stream }), 0),
                    server::Event::Reset { stream } => (json!({ "event": "reset", "stream": stream }), 0),
                    server::Event::Writable { stream } => (json!({ "event": "writable", "stream": stream }), 0),
                }),
                End::Client(client) => client.next_event().map(|event| match event {
                    client::Event::Data { stream, channel, bytes } => (data(stream, channel, &bytes), bytes.len()),
                    client::Event::Message { stream, value, size } => {
                        (json!({ "event": "message", "stream": stream, "value": parsed(&value) }), size)
                    }
                    client::Event::End { stream } => (json!({ "event": "end", "stream": stream }), 0),
                    client::Event::Closed { stream, result: Ok(ok) } => {
                        (json!({ "event": "closed", "stream": stream, "ok": parsed(&ok) }), 0)
                    }
                    client::Event::Closed { stream, result: Err(error) } => {
                        let error = if error.code == "protocol_error" {
                            json!(error.code)
                        } else {
                            json!({ "code": error.code, "message": error.message, "details": error.details })
                        };
                        (json!({ "event": "closed", "stream": stream, "error": error }), 0)
                    }
                    client::Event::Writable { stream } => (json!({ "event": "writable", "stream": stream }), 0),
                }),
            };
            let Some((event, size)) = event else { return };
            if event["event"] == "writable" {
                self.write(stream_of(&event));
            } else {
                self.events.push_back((event, size));
            }
        }
    }

    fn write(&mut self, stream: u32) {
        let Some(waiting) = self.writes.get_mut(&stream) else { return };
        while let Some((channel, bytes)) = waiting.first_mut() {
            let sent = both!(&mut self.end, end => end.send_data(stream, *channel, bytes));
            bytes.drain(..sent);
            if !bytes.is_empty() {
                return;
            }
            waiting.remove(0);
        }
    }

    /// All frames that go out, with DATA that follows DATA of the same stream and channel joined.
    fn sent(&mut self) -> Vec<((FrameType, u8, u32), Vec<u8>)> {
        let mut frames: Vec<((FrameType, u8, u32), Vec<u8>)> = Vec::new();
        let mut decoder = Decoder::new();
        loop {
            let n = both!(&mut self.end, end => {
                let n = end.output().len();
                decoder.push(end.output());
                end.advance_output(n);
                n
            });
            while let Some(frame) = decoder.next().unwrap() {
                let head = (frame.kind, frame.channel, frame.stream);
                match frames.last_mut() {
                    Some((last, bytes)) if *last == head && frame.kind == FrameType::Data => {
                        bytes.extend_from_slice(frame.payload)
                    }
                    _ => frames.push((head, frame.payload.to_vec())),
                }
            }
            if n == 0 {
                assert_eq!(decoder.buffered(), 0);
                return frames;
            }
            self.drain();
        }
    }

    fn act(&mut self, step: &Value) {
        let stream = stream_of(step);
        match (step["do"].as_str().unwrap(), &mut self.end) {
            ("open", End::Client(client)) => {
                assert_eq!(client.open(step["method"].as_str().unwrap(), &step["params"]), Some(stream));
            }
            ("reset", End::Client(client)) => client.reset(stream),
            ("close", End::Server(server)) => server.close_ok(stream, &step["ok"]),
            ("fail", End::Server(server)) => {
                let error = &step["error"];
                server.close_err(
                    stream,
                    error["code"].as_str().unwrap(),
                    error["message"].as_str().unwrap(),
                    &error["details"],
                );
            }
            ("write", _) => {
                self.writes.entry(stream).or_default().push((channel_of(step), payload(step)));
                self.write(stream);
            }
            ("message", end) => both!(end, end => end.send_message(stream, &step["value"])).unwrap(),
            ("end", end) => both!(end, end => end.send_end(stream)),
            (other, _) => panic!("do {other}"),
        }
    }

    fn step(&mut self, name: &str, step: &Value) {
        if let Some(frames) = step.get("in") {
            let mut bytes = Vec::new();
            for frame in frames.as_array().unwrap() {
                encode(
                    &mut bytes,
                    kind(frame["type"].as_str().unwrap()),
                    channel_of(frame),
                    stream_of(frame),
                    &payload(frame),
                );
            }
            self.outcome = both!(&mut self.end, end => end.receive(&bytes));
            self.drain();
        } else if let Some(events) = step.get("take") {
            for wanted in events.as_array().unwrap() {
                let (event, size) = self.events.pop_front().unwrap_or_else(|| panic!("{name}: no {wanted}"));
                let wanted = match wanted["event"].as_str() {
                    Some("data") => data(stream_of(wanted), channel_of(wanted), &payload(wanted)),
                    _ => wanted.clone(),
                };
                assert!(event == wanted, "{name}: {}, {} bytes", event["event"], size);
                both!(&mut self.end, end => end.consumed(stream_of(&event), size));
            }
        } else if step.get("do").is_some() {
            self.act(step);
        } else if let Some(frames) = step.get("out") {
            let mut sent = self.sent().into_iter();
            for wanted in frames.as_array().unwrap() {
                let (head, bytes) = sent.next().unwrap_or_else(|| panic!("{name}: no {wanted}"));
                assert_eq!(
                    head,
                    (kind(wanted["type"].as_str().unwrap()), channel_of(wanted), stream_of(wanted)),
                    "{name}"
                );
                match wanted.get("json") {
                    Some(json) => assert_eq!(&serde_json::from_slice::<Value>(&bytes).unwrap(), json, "{name}"),
                    None => assert!(bytes == payload(wanted), "{name}: {} bytes instead of {wanted}", bytes.len()),
                }
            }
            assert!(sent.next().is_none(), "{name}");
        } else {
            assert_eq!(self.outcome.map_err(ProtocolError::kind), Err(step["error"].as_str().unwrap()), "{name}");
        }
    }
}

#[test]
fn conversations_go_as_written() {
    for conversation in vectors::<Conversation>("conversations") {
        let mut runner = Runner::new(&conversation.side);
        for step in &conversation.steps {
            runner.step(&conversation.name, step);
        }
        let wants_error = conversation.steps.last().unwrap().get("error").is_some();
        assert_eq!(runner.outcome.is_err(), wants_error, "{}: {:?}", conversation.name, runner.outcome);
        if !wants_error {
            assert!(runner.events.is_empty(), "{}: {:?}", conversation.name, runner.events);
        }
    }
}
