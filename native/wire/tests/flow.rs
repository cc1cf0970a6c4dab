//! Credit, room and memory: what the vectors cannot say.

use serde_json::json;
use wire::client::{self, Client};
use wire::frame::{FrameType, encode};
use wire::server::{Event, Limits, OUTPUT_LIMIT, Server};
use wire::{INITIAL_WINDOW, MAX_DATA, ProtocolError, SendError};

struct Pair {
    server: Server,
    client: Client,
}

impl Pair {
    fn new(limits: Limits) -> Self {
        Self { server: Server::new("aether", limits), client: Client::new("edge") }
    }

    fn feed_server(&mut self) {
        let n = self.client.output().len();
        self.server.receive(self.client.output()).unwrap();
        self.client.advance_output(n);
    }

    fn feed_client(&mut self) {
        let n = self.server.output().len();
        self.client.receive(self.server.output()).unwrap();
        self.server.advance_output(n);
    }

    fn open(&mut self) -> u32 {
        let stream = self.client.open("m", &json!({})).unwrap();
        self.feed_server();
        assert!(matches!(self.server.next_event(), Some(Event::Open { stream: opened, .. }) if opened == stream));
        stream
    }

    /// What the client got on its streams; it takes all of it.
    fn received(&mut self) -> Vec<(u32, usize)> {
        let mut received = Vec::new();
        while let Some(event) = self.client.next_event() {
            if let client::Event::Data { stream, bytes, .. } = event {
                received.push((stream, bytes.len()));
                self.client.consumed(stream, bytes.len());
            }
        }
        received
    }
}

#[test]
fn output_is_bounded_and_streams_get_the_room_in_turn() {
    let mut pair = Pair::new(Limits::default());
    let streams = [pair.open(), pair.open(), pair.open()];
    let bytes = vec![1; 4 * OUTPUT_LIMIT];
    let mut sent = [0; 3];
    for (index, stream) in streams.iter().enumerate() {
        sent[index] += pair.server.send_data(*stream, 1, &bytes);
    }
    assert!(pair.server.output().len() <= OUTPUT_LIMIT + MAX_DATA + 100);
    assert!(!pair.server.wants_input());
    assert!(pair.server.next_event().is_none());
    for _ in 0..30 {
        pair.feed_client();
        pair.received();
        pair.feed_server();
        while let Some(event) = pair.server.next_event() {
            let Event::Writable { stream } = event else { panic!("{event:?}") };
            let index = streams.iter().position(|known| *known == stream).unwrap();
            sent[index] += pair.server.send_data(stream, 1, &bytes);
        }
    }
    let least = sent.iter().min().unwrap();
    let most = sent.iter().max().unwrap();
    assert!(*least > 0 && most - least <= OUTPUT_LIMIT + MAX_DATA, "{sent:?}");
}

#[test]
fn a_reader_that_takes_nothing_holds_back_its_own_stream_only() {
    let mut pair = Pair::new(Limits::default());
    let (slow, quick) = (pair.open(), pair.open());
    let bytes = vec![1; MAX_DATA];
    let mut to_slow = 0;
    let mut to_quick = 0;
    for _ in 0..40 {
        to_slow += pair.server.send_data(slow, 0, &bytes);
        pair.feed_client();
        to_quick += pair.server.send_data(quick, 0, &bytes);
        pair.feed_client();
        while let Some(event) = pair.client.next_event() {
            if let client::Event::Data { stream, bytes, .. } = event
                && stream == quick
            {
                pair.client.consumed(stream, bytes.len());
            }
        }
        pair.feed_server();
        while pair.server.next_event().is_some() {}
    }
    assert_eq!(to_slow, INITIAL_WINDOW as usize);
    assert_eq!(pair.server.sendable(slow), 0);
    assert_eq!(to_quick, 40 * MAX_DATA);
    pair.client.consumed(slow, INITIAL_WINDOW as usize);
    pair.feed_server();
    assert!(matches!(pair.server.next_event(), Some(Event::Writable { stream }) if stream == slow));
    assert_eq!(pair.server.sendable(slow), OUTPUT_LIMIT);
}

#[test]
fn short_frames_do_not_leak_credit() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.open();
    for round in 0..100_000 {
        assert_eq!(pair.server.send_data(stream, 0, b"x"), 1, "round {round}");
        pair.feed_client();
        assert_eq!(pair.received(), [(stream, 1)]);
        pair.feed_server();
        while pair.server.next_event().is_some() {}
    }
}

#[test]
fn a_message_without_credit_is_not_taken() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.open();
    let message = json!({ "text": "x".repeat(60_000) });
    for _ in 0..4 {
        pair.server.send_message(stream, &message).unwrap();
        pair.feed_client();
    }
    let before = pair.server.output().len();
    assert_eq!(pair.server.send_message(stream, &message), Err(SendError::Blocked));
    assert_eq!(pair.server.output().len(), before);
    assert!(pair.server.next_event().is_none());
    while let Some(client::Event::Message { stream, size, .. }) = pair.client.next_event() {
        pair.client.consumed(stream, size);
    }
    pair.feed_server();
    assert!(matches!(pair.server.next_event(), Some(Event::Writable { .. })));
    assert_eq!(pair.server.send_message(stream, &message), Ok(()));
    assert_eq!(pair.server.send_message(stream, &json!({ "text": "x".repeat(70_000) })), Err(SendError::TooLarge));
    assert_eq!(pair.server.send_message(99, &message), Err(SendError::Gone));
}

#[test]
fn one_stream_too_many_is_answered_and_its_frames_are_ignored() {
    let mut pair = Pair::new(Limits { max_streams: 2 });
    let first = pair.open();
    pair.open();
    let third = pair.client.open("m", &json!({})).unwrap();
    pair.client.send_data(third, 0, b"x");
    pair.feed_server();
    assert!(pair.server.next_event().is_none());
    pair.feed_client();
    let Some(client::Event::Closed { stream, result: Err(error) }) = pair.client.next_event() else { panic!() };
    assert_eq!((stream, error.code.as_str()), (third, "too_many_streams"));
    pair.server.close_ok(first, &json!({}));
    pair.open();
}

#[test]
fn a_result_that_does_not_fit_becomes_an_error() {
    let mut pair = Pair::new(Limits::default());
    let large = pair.open();
    let deep = pair.open();
    pair.server.close_ok(large, &"x".repeat(5 << 20));
    let mut value = json!(1);
    for _ in 0..40 {
        value = json!([value]);
    }
    pair.server.close_ok(deep, &value);
    pair.feed_client();
    for wanted in [large, deep] {
        let Some(client::Event::Closed { stream, result: Err(error) }) = pair.client.next_event() else { panic!() };
        assert_eq!((stream, error.code.as_str()), (wanted, "internal"));
    }
    assert_eq!(pair.server.streams().count(), 0);
}

#[test]
fn an_error_that_does_not_fit_keeps_its_code() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.open();
    let text = "é".repeat(40_000);
    pair.server.close_err(stream, "disk_full", &text, &json!({ "a": 1 }));
    pair.feed_client();
    let Some(client::Event::Closed { result: Err(error), .. }) = pair.client.next_event() else { panic!() };
    assert_eq!((error.code.as_str(), error.message.as_str()), ("disk_full", "é".repeat(512).as_str()));
}

#[test]
fn large_frames_leave_no_memory_behind() {
    let mut pair = Pair::new(Limits::default());
    let stream = pair.client.open("m", &json!({ "text": "x".repeat(4_000_000) })).unwrap();
    pair.feed_server();
    while pair.server.next_event().is_some() {}
    pair.server.close_ok(stream, &"y".repeat(4_000_000));
    pair.feed_client();
    let stream = pair.open();
    for _ in 0..20 {
        pair.client.send_data(stream, 0, &[1; MAX_DATA]);
        pair.feed_server();
        while let Some(event) = pair.server.next_event() {
            if let Event::Data { stream, bytes, .. } = event {
                pair.server.consumed(stream, bytes.len());
            }
        }
        pair.feed_client();
        pair.received();
    }
    assert!(pair.server.capacity() <= 8 << 10, "{}", pair.server.capacity());
}

#[test]
fn a_claimed_length_costs_no_memory() {
    let mut server = Server::new("aether", Limits::default());
    let mut bytes = Vec::new();
    encode(&mut bytes, FrameType::Hello, 0, 0, br#"{"protocol":"dsec-wire","version":1,"role":"edge"}"#);
    bytes.extend_from_slice(&[0, 0, 0x40, 0, 2, 0, 0, 0, 1, 0, 0, 0]);
    bytes.extend_from_slice(&[b' '; 100]);
    server.receive(&bytes).unwrap();
    assert!(server.capacity() <= 8 << 10);
}

#[test]
fn pings_whose_answers_are_not_read_end_the_connection() {
    let mut server = Server::new("aether", Limits::default());
    let mut bytes = Vec::new();
    encode(&mut bytes, FrameType::Hello, 0, 0, br#"{"protocol":"dsec-wire","version":1,"role":"edge"}"#);
    server.receive(&bytes).unwrap();
    bytes.clear();
    for _ in 0..1000 {
        encode(&mut bytes, FrameType::Ping, 0, 0, &[1; 8]);
    }
    let error = (0..10_000).find_map(|_| server.receive(&bytes).err());
    assert_eq!(error, Some(ProtocolError::Flood));
    assert!(server.output().len() < 16 << 20);
}

#[test]
fn the_end_of_the_connection_ends_every_stream() {
    let mut pair = Pair::new(Limits::default());
    let streams = [pair.open(), pair.open()];
    pair.server.disconnect();
    pair.client.disconnect();
    for wanted in streams {
        assert!(matches!(pair.server.next_event(), Some(Event::Reset { stream }) if stream == wanted));
        let Some(client::Event::Closed { stream, result: Err(error) }) = pair.client.next_event() else { panic!() };
        assert_eq!((stream, error.code.as_str()), (wanted, "connection_lost"));
    }
    assert!(pair.server.next_event().is_none() && pair.client.next_event().is_none());
    assert_eq!(pair.server.send_data(streams[0], 0, b"x"), 0);
}
