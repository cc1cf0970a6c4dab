//! The gate: first bytes of connections, which come from sandboxes, and what it is fed. However bytes are cut, the same names are asked for and the same bytes go on.

use gate::hello::HelloReader;
use gate::pins::Pins;
use gate::rehearsal;
use gate::request::{self, Request};

use super::Target;
use crate::random::hash;

pub const FIRST_BYTES: Target =
    Target { name: "gate-first-bytes", corpus: connections, run: connection, max_memory: of_connection };
pub const REQUEST: Target = Target { name: "gate-request", corpus: requests, run: request, max_memory: of_request };

/// What waits is bounded by itself; names are kept by the rehearsal.
fn of_connection(input: usize) -> usize {
    (512 << 10) + 16 * input
}

fn of_request(input: usize) -> usize {
    (64 << 10) + 64 * input
}

/// A first byte that says how the rest is cut and answered.
fn connections() -> Vec<Vec<u8>> {
    let hello = include_bytes!("../../../gate/tests/hellos/openssl.bin");
    let hybrid = include_bytes!("../../../gate/tests/hellos/go-hybrid.bin");
    let encrypted = include_bytes!("../../../gate/tests/hellos/go-ech.bin");
    let heads: [&[u8]; 4] = [
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\nPOST /x HTTP/1.1\r\nHost: b.test\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a.test\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n\x81\x00",
        b"GET http://a.test/ HTTP/1.0\r\nhost: a.test:80\r\nA: b\r\n\r\n",
    ];
    let twice = [&hello[..], hello].concat();
    let all = heads.into_iter().chain([&hello[..], hybrid, encrypted, &twice]);
    all.enumerate().map(|(cut, bytes)| [&[cut as u8], bytes].concat()).collect()
}

const ANSWERS: [&[u8]; 4] = [
    b"",
    b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"\x16\x03\x03\0\x5a\x02\0\0\x56\x03\x03\xcf\x21\xad\x74\xe5\x9a\x61\x11\xbe\x1d\x8c\x02\x1e\x65\xb8\x91\xc2\xa2\x11\x16\x7a\xbb\x8c\x5e\x07\x9e\x09\xe2\xc8\xa8\x33\x9c",
];

fn connection(input: &[u8]) -> u64 {
    let Some((cut, bytes)) = input.split_first() else { return 0 };
    let answer = ANSWERS[usize::from(cut & 3)];
    let whole = rehearsal::run(80, bytes, || usize::MAX, answer);
    let pieces = rehearsal::run(80, bytes, || usize::from(cut >> 2) + 1, answer);
    assert_eq!(whole, pieces);
    assert!(whole.passed <= bytes.len());
    if let Ok(Some(hello)) = HelloReader::first().read(bytes) {
        assert!(hello.length <= bytes.len());
        assert_eq!(whole.names.first().map(String::as_str), Some(hello.name.as_str()));
    }
    for name in &whole.names {
        assert!(name.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b".-_".contains(&byte)));
    }
    let refused = whole.refused.map_or(0, |reason| hash(reason.as_str().as_bytes()));
    refused ^ (whole.names.len() as u64) ^ (u64::from(whole.is_held) << 32)
}

/// A first line and the rest: method and params.
fn requests() -> Vec<Vec<u8>> {
    let all = [
        r#"policy.set
{"id":"a1","address4":"198.18.0.2","generation":1,"names":[{"pattern":"*.a.test","ports":[["tcp",443,443,true]]}],"pins":[{"address":"192.0.2.1","name":"x.a.test","ttlMs":1000}]}"#,
        r#"pins.add
{"id":"a1","generation":1,"pins":[{"address":"2001:db8::1","name":"x.a.test","ttlMs":1000,"ranges":[["tcp",1,2,true]]}]}"#,
        "policy.remove\n{\"id\":\"a1\"}",
        "flows\n{\"id\":\"a1\"}",
        "gate.info\n{}",
        "events\n{}",
    ];
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

fn request(input: &[u8]) -> u64 {
    let Ok(text) = std::str::from_utf8(input) else { return 0 };
    let (method, params) = text.split_once('\n').unwrap_or((text, ""));
    match request::parse(method, params) {
        Err(failure) => {
            // Why it was refused, but not at which column.
            let reason: Vec<u8> = failure.message.bytes().filter(|byte| !byte.is_ascii_digit()).collect();
            hash(&reason)
        }
        Ok(Request::Set(policy)) => {
            assert!((1..=2).contains(&policy.addresses.len()) && (1..=24).contains(&policy.id.as_str().len()));
            let ports = policy.rules.iter().flat_map(|rule| &rule.ports);
            ports.for_each(|ports| assert!(ports.low <= ports.high));
            check(policy.pins.len(), policy.pins);
            1 << 20 | policy.rules.len() as u64
        }
        Ok(Request::AddPins(new)) => {
            let count = new.pins.len();
            check(count, new.pins);
            2 << 20 | count as u64
        }
        Ok(other) => hash(format!("{:?}", std::mem::discriminant(&other)).as_bytes()),
    }
}

/// Whatever was accepted can be held.
fn check(count: usize, pins: Vec<gate::pins::Pin>) {
    let mut held = Pins::default();
    assert_eq!(held.add(pins, std::time::Instant::now()), Ok(()));
    assert!(held.count() <= count);
}
