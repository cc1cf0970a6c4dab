//! The wire protocol: the frame decoder, and both ends with owners that take, answer and write.

use serde_json::{Value, json};
use wire::client::{self, Client};
use wire::frame::{Decoder, FrameType, encode};
use wire::server::{Event, Limits, Server};
use wire::{INITIAL_WINDOW, ProtocolError};

use super::Target;
use crate::random::{Random, hash};

const VECTORS: [&str; 2] =
    [include_str!("../../../wire/vectors/frames.json"), include_str!("../../../wire/vectors/invalid.json")];
const CONVERSATIONS: &str = include_str!("../../../wire/vectors/conversations.json");
/// Live streams of the server under test: few, so that the limit is met.
const MAX_STREAMS: usize = 8;
/// Longest payload in the corpus: long ones only make mutation slow.
const MAX_PAYLOAD: usize = 4_096;

pub const FRAMES: Target = Target { name: "wire-frames", corpus, run: frames, max_memory: |input| 16_384 + 8 * input };
pub const SERVER: Target = Target { name: "wire-server", corpus, run: server, max_memory: end_memory };
pub const CLIENT: Target = Target { name: "wire-client", corpus, run: client, max_memory: end_memory };

/// Input, events and what the owner writes, but never what a frame only claims.
fn end_memory(input: usize) -> usize {
    (1 << 20) + 64 * input
}

fn corpus() -> Vec<Vec<u8>> {
    let mut corpus = Vec::new();
    for text in VECTORS {
        let vectors: Vec<Value> = serde_json::from_str(text).unwrap();
        corpus.extend(vectors.iter().map(|vector| crate::fuzzer::unhex(vector["hex"].as_str().unwrap()).unwrap()));
    }
    let conversations: Vec<Value> = serde_json::from_str(CONVERSATIONS).unwrap();
    for conversation in &conversations {
        let steps = conversation["steps"].as_array().unwrap();
        let frames = steps.iter().filter_map(|step| step.get("in")?.as_array()).flatten();
        corpus.push(frames.flat_map(frame).collect());
    }
    corpus
}

fn frame(frame: &Value) -> Vec<u8> {
    const TYPES: [&str; 11] =
        ["", "hello", "open", "data", "message", "end", "close", "reset", "window", "ping", "pong"];
    let kind = TYPES.iter().position(|name| frame["type"] == *name).unwrap();
    let number = |name: &str| frame.get(name).and_then(Value::as_u64).unwrap_or(0);
    let mut payload = if let Some(json) = frame.get("json") {
        serde_json::to_vec(json).unwrap()
    } else if let Some(text) = frame.get("text").and_then(Value::as_str) {
        text.as_bytes().to_vec()
    } else if let Some(hex) = frame.get("hex").and_then(Value::as_str) {
        crate::fuzzer::unhex(hex).unwrap()
    } else if let Some(repeat) = frame.get("repeat") {
        vec![repeat[0].as_u64().unwrap() as u8; repeat[1].as_u64().unwrap() as usize]
    } else if frame.get("grant").is_some() {
        (number("grant") as u32).to_le_bytes().to_vec()
    } else {
        Vec::new()
    };
    payload.truncate(MAX_PAYLOAD);
    let mut bytes = Vec::new();
    let kind = FrameType::from_byte(kind as u8).unwrap();
    encode(&mut bytes, kind, number("channel") as u8, number("stream") as u32, &payload);
    bytes
}

/// Cuts the input at places that depend on it alone.
fn chunks(input: &[u8]) -> Vec<&[u8]> {
    let mut random = Random::new(hash(input));
    let mut rest = input;
    let mut chunks = Vec::new();
    while !rest.is_empty() {
        let most = if random.chance(2) { 16 } else { rest.len() };
        let (chunk, tail) = rest.split_at((1 + random.below(most)).min(rest.len()));
        chunks.push(chunk);
        rest = tail;
    }
    chunks
}

fn outcome(result: Result<(), ProtocolError>, facts: &[u8]) -> u64 {
    hash(&[result.err().map_or("", ProtocolError::kind).as_bytes(), facts].concat())
}

/// What decodes encodes to the same bytes, however the input was cut, and an error stays.
fn frames(input: &[u8]) -> u64 {
    let mut again = Vec::new();
    let mut kinds = Vec::new();
    let mut decoder = Decoder::new();
    let mut result = Ok(());
    for chunk in chunks(input) {
        decoder.push(chunk);
        loop {
            match decoder.next() {
                Ok(Some(frame)) => {
                    encode(&mut again, frame.kind, frame.channel, frame.stream, frame.payload);
                    kinds.push(frame.kind as u8);
                }
                Ok(None) => break,
                Err(error) => {
                    assert!(result == Ok(()) || result == Err(error));
                    result = Err(error);
                    break;
                }
            }
        }
    }
    assert!(input.starts_with(&again));
    match result {
        Ok(()) => assert_eq!(again.len() + decoder.buffered(), input.len()),
        Err(_) => assert_eq!(decoder.buffered(), 0),
    }
    let mut whole = Decoder::new();
    whole.push(input);
    let mut count = 0;
    while let Ok(Some(_)) = whole.next() {
        count += 1;
    }
    assert_eq!(count, kinds.len());
    assert_eq!(whole.next().err(), result.err());
    kinds.truncate(8);
    outcome(result, &kinds)
}

/// The output of an end must itself be frames of the protocol.
fn check_output(bytes: &[u8]) {
    let mut decoder = Decoder::new();
    decoder.push(bytes);
    while decoder.next().expect("the output is well-formed").is_some() {}
    assert_eq!(decoder.buffered(), 0);
}

fn server(input: &[u8]) -> u64 {
    let mut server = Server::new("fuzz", Limits { max_streams: MAX_STREAMS });
    let mut random = Random::new(hash(input));
    let mut facts = Vec::new();
    let mut held = [0u64; 2];
    let mut result = Ok(());
    for chunk in chunks(input) {
        result = server.receive(chunk);
        while let Some(event) = server.next_event() {
            let (fact, stream) = match event {
                Event::Open { stream, params, .. } => {
                    let value: Result<serde_json::Map<String, Value>, _> = serde_json::from_str(params.get());
                    (b'o' + u8::from(value.is_err()), stream)
                }
                Event::Data { stream, bytes, .. } => {
                    assert!(!bytes.is_empty());
                    held[0] += bytes.len() as u64;
                    if random.chance(2) {
                        server.consumed(stream, bytes.len());
                    }
                    (b'd', stream)
                }
                Event::Message { stream, value, size } => {
                    assert!(value.get().len() <= size);
                    held[1] += size as u64;
                    server.consumed(stream, 1 + random.below(2 * size));
                    (b'm', stream)
                }
                Event::End { stream } => (b'e', stream),
                Event::Reset { stream } => {
                    assert!(!server.is_open(stream));
                    (b'r', stream)
                }
                Event::Writable { stream } => (b'w', stream),
            };
            facts.push(fact);
            match random.below(8) {
                0 => server.close_ok(stream, &json!({ "a": 1 })),
                1 => server.close_err(stream, "not_found", "no", &json!({})),
                2 => server.send_end(stream),
                3 => drop(server.send_message(stream, &json!({ "m": "x".repeat(random.below(70_000)) }))),
                _ => {
                    let sendable = server.sendable(stream);
                    let sent = server.send_data(stream, 1, &[7; 40_000]);
                    assert!(sent >= sendable.min(40_000) && sent <= INITIAL_WINDOW.max(40_000) as usize);
                }
            }
        }
        if random.chance(2) {
            check_output(server.output());
            server.advance_output(server.output().len());
        }
        assert!(server.streams().count() <= MAX_STREAMS);
        if result.is_err() {
            assert_eq!(server.receive(b"x"), result);
            break;
        }
    }
    server.disconnect();
    while server.next_event().is_some() {}
    assert_eq!(server.streams().count(), 0);
    facts.dedup();
    facts.truncate(12);
    outcome(result, &facts)
}

fn client(input: &[u8]) -> u64 {
    let mut client = Client::new("fuzz");
    let mut random = Random::new(hash(input));
    for _ in 0..4 {
        client.open("m", &json!({}));
    }
    let mut facts = Vec::new();
    let mut closed = [0; 5];
    let mut result = Ok(());
    for chunk in chunks(input) {
        result = client.receive(chunk);
        while let Some(event) = client.next_event() {
            let fact = match event {
                client::Event::Data { stream, bytes, .. } => {
                    client.consumed(stream, bytes.len());
                    b'd'
                }
                client::Event::Message { stream, size, .. } => {
                    client.consumed(stream, size);
                    b'm'
                }
                client::Event::End { .. } => b'e',
                client::Event::Closed { stream, result } => {
                    closed[stream as usize] += 1;
                    assert!(!client.is_open(stream));
                    b'c' + u8::from(result.is_err())
                }
                client::Event::Writable { .. } => b'w',
            };
            facts.push(fact);
            let stream = 1 + random.below(4) as u32;
            if random.chance(4) {
                client.send_data(stream, 0, &[7; 40_000]);
            }
            if random.chance(64) {
                client.reset(stream);
            }
        }
        if random.chance(2) {
            check_output(client.output());
            client.advance_output(client.output().len());
        }
        if result.is_err() {
            assert_eq!(client.receive(b"x"), result);
            break;
        }
    }
    assert!(closed.iter().all(|times| *times <= 1));
    facts.dedup();
    facts.truncate(12);
    outcome(result, &facts)
}
