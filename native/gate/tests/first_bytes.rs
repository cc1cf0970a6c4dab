//! What the first bytes of connections say: hellos of real programs, heads, and what could pass for them, in whatever pieces they come.

use std::time::{Duration, Instant};

use gate::bounds::MAX_PEEK;
use gate::hello::{Hello, HelloReader};
use gate::refusal::Reason;
use gate::rehearsal::{Outcome, run};

const GO_HYBRID: &[u8] = include_bytes!("hellos/go-hybrid.bin");
const GO_TLS12: &[u8] = include_bytes!("hellos/go-tls12.bin");
const GO_ECH: &[u8] = include_bytes!("hellos/go-ech.bin");
const OPENSSL: &[u8] = include_bytes!("hellos/openssl.bin");
const OPENSSL_TLS12: &[u8] = include_bytes!("hellos/openssl-tls12.bin");
const OPENSSL_NO_NAME: &[u8] = include_bytes!("hellos/openssl-no-name.bin");
const CURL: &[u8] = include_bytes!("hellos/curl.bin");
const PYTHON: &[u8] = include_bytes!("hellos/python.bin");
const NAMED: [(&str, &[u8]); 6] = [
    ("go-hybrid", GO_HYBRID),
    ("go-tls12", GO_TLS12),
    ("openssl", OPENSSL),
    ("openssl-tls12", OPENSSL_TLS12),
    ("curl", CURL),
    ("python", PYTHON),
];

/// The beginning of a server hello that is none of a retry, and one that is.
fn server_hello(is_retry: bool) -> Vec<u8> {
    let mut random = [7; 32];
    if is_retry {
        random = [
            0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91, 0xc2, 0xa2,
            0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c,
        ];
    }
    [&[22, 3, 3, 0, 90, 2, 0, 0, 86, 3, 3][..], &random, &[0; 52]].concat()
}

fn whole(bytes: &[u8], answer: &[u8]) -> Outcome {
    run(443, bytes, || usize::MAX, answer)
}

fn refused(bytes: &[u8]) -> Option<Reason> {
    whole(bytes, &[]).refused
}

/// The handshake message of a hello in records of at most this length.
fn in_records(hello: &[u8], length: usize) -> Vec<u8> {
    let records = hello[5..].chunks(length).map(|payload| [&[22, 3, 1, 0, 0][..], payload].concat());
    let records = records.map(|mut record| {
        let length = (record.len() as u16 - 5).to_be_bytes();
        record[3..5].copy_from_slice(&length);
        record
    });
    records.collect::<Vec<_>>().concat()
}

/// A hello whose name is another of the same length.
fn renamed(hello: &[u8], name: &[u8; 12]) -> Vec<u8> {
    let at = hello.windows(12).position(|window| window == b"files.a.test").expect("a name");
    let mut hello = hello.to_vec();
    hello[at..at + 12].copy_from_slice(name);
    hello
}

/// A hello with these extensions alone.
fn hello(extensions: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    let body = [&[3, 3][..], &[9; 32], &[0, 0, 2, 0x13, 1, 1, 0], &length(extensions.len()), extensions].concat();
    let message = [&[1, 0][..], &length(body.len()), &body].concat();
    [&[22, 3, 1][..], &length(message.len()), &message].concat()
}

/// A server_name extension with this content of its list.
fn server_name(list: &[u8]) -> Vec<u8> {
    let length = |bytes: usize| (bytes as u16).to_be_bytes();
    [&[0, 0][..], &length(list.len() + 2), &length(list.len()), list].concat()
}

fn host_name(name: &[u8]) -> Vec<u8> {
    [&[0, 0, name.len() as u8][..], name].concat()
}

#[test]
fn hellos_of_real_programs_say_their_name() {
    for (program, bytes) in NAMED {
        let outcome = whole(bytes, &server_hello(false));
        assert_eq!(
            (outcome.names, outcome.passed, outcome.refused),
            (vec!["files.a.test".to_owned()], bytes.len(), None),
            "{program}"
        );
    }
    assert!(GO_HYBRID.len() > 1_500, "longer than a segment");
    assert_eq!(refused(OPENSSL_NO_NAME), Some(Reason::NameMissing));
}

#[test]
fn a_hello_may_be_cut_at_every_byte_and_into_records_of_every_length() {
    for (program, bytes) in NAMED {
        let expected = whole(bytes, &server_hello(false));
        for at in 1..bytes.len() {
            let mut first = true;
            let pieces = || if std::mem::take(&mut first) { at } else { usize::MAX };
            assert_eq!(run(443, bytes, pieces, &server_hello(false)), expected, "{program} cut at {at}");
        }
        assert_eq!(run(443, bytes, || 1, &server_hello(false)), expected, "{program} byte by byte");
        for length in 1..bytes.len() - 5 {
            let cut = in_records(bytes, length);
            let outcome = whole(&cut, &server_hello(false));
            assert_eq!((outcome.names, outcome.passed), (expected.names.clone(), cut.len()), "{program} in {length}s");
        }
    }
}

#[test]
fn an_encrypted_hello_is_judged_by_its_outer_name() {
    let Ok(Some(Hello { name, has_encrypted, length })) = HelloReader::first().read(GO_ECH) else { panic!("refused") };
    assert_eq!((name.as_str(), has_encrypted, length), ("outer.a.test", true, GO_ECH.len()));
    let Ok(Some(plain)) = HelloReader::first().read(GO_HYBRID) else { panic!("refused") };
    assert!(!plain.has_encrypted);
}

#[test]
fn a_second_hello_must_say_the_same_name() {
    let retry = server_hello(true);
    let same = [OPENSSL, &[20, 3, 3, 0, 1, 1], OPENSSL, b"what follows"].concat();
    let outcome = whole(&same, &retry);
    assert_eq!((outcome.refused, outcome.passed), (None, same.len()));
    let other = [OPENSSL, &renamed(OPENSSL, b"evil.b.test0")].concat();
    let outcome = whole(&other, &retry);
    assert_eq!((outcome.refused, outcome.passed), (Some(Reason::NameChanged), OPENSSL.len()));
    assert_eq!(outcome.names, ["files.a.test"]);
    // Sent ahead of the answer, it waits for the answer like anything else.
    let outcome = whole(&other, &[]);
    assert_eq!((outcome.is_held, outcome.passed), (true, OPENSSL.len()));
    // A warning before it changes nothing.
    let warned = [&[21, 3, 3, 0, 2, 1, 112][..], &retry].concat();
    for length in [1, 3, 50, 500] {
        assert_eq!(run(443, &other, || length, &warned).refused, Some(Reason::NameChanged), "in {length}s");
    }
    // Early data, which a server that wants another hello does not read.
    let early = [OPENSSL, &[23, 3, 3, 0, 3, 1, 2, 3], OPENSSL].concat();
    assert_eq!(whole(&early, &retry).passed, early.len());
    assert_eq!(whole(&[OPENSSL, b"GET / HTTP/1.1\r\n"].concat(), &retry).refused, Some(Reason::HelloInvalid));
}

#[test]
fn a_hello_with_two_meanings_is_refused() {
    let good = server_name(&host_name(b"a.test"));
    assert_eq!(whole(&hello(&good), &[]).names, ["a.test"]);
    for (what, extensions, reason) in [
        ("no name", Vec::new(), Reason::NameMissing),
        ("two extensions", [good.clone(), server_name(&host_name(b"b.test"))].concat(), Reason::HelloInvalid),
        ("twice another", [good.clone(), vec![0, 35, 0, 0, 0, 35, 0, 0]].concat(), Reason::HelloInvalid),
        ("two names", server_name(&[host_name(b"a.test"), host_name(b"b.test")].concat()), Reason::HelloInvalid),
        ("an empty list", server_name(&[]), Reason::HelloInvalid),
        ("another type", server_name(&[1, 0, 1, b'a']), Reason::HelloInvalid),
        ("an empty name", server_name(&host_name(b"")), Reason::NameInvalid),
        ("an address", server_name(&host_name(b"192.0.2.1")), Reason::NameInvalid),
        ("a final dot", server_name(&host_name(b"a.test.")), Reason::NameInvalid),
        ("a nul", server_name(&host_name(b"a.test\0.b.test")), Reason::NameInvalid),
        ("a name that is too long for its list", server_name(&[0, 0, 9, b'a']), Reason::HelloInvalid),
        ("half an extension", [good.clone(), vec![0, 35, 0]].concat(), Reason::HelloInvalid),
    ] {
        assert_eq!(refused(&hello(&extensions)), Some(reason), "{what}");
    }
}

#[test]
fn records_that_are_none_are_refused() {
    let good = hello(&server_name(&host_name(b"a.test")));
    let with = |at: usize, byte: u8| {
        let mut bytes = good.clone();
        bytes[at] = byte;
        refused(&bytes)
    };
    assert_eq!(with(1, 2), Some(Reason::HelloInvalid), "a version of old");
    assert_eq!(with(2, 0), Some(Reason::HelloInvalid), "SSL 3");
    assert_eq!(with(3, 0x40), Some(Reason::HelloInvalid), "a record that is too long");
    assert_eq!(with(5, 2), Some(Reason::HelloInvalid), "no client hello");
    assert_eq!(with(6, 1), Some(Reason::HelloTooLarge), "a message of 64 KiB");
    assert_eq!(with(10, 4), Some(Reason::HelloInvalid), "TLS 2");
    assert_eq!(refused(&[22, 3, 1, 0, 0]), Some(Reason::HelloInvalid), "an empty record");
    let mut trailing = good.clone();
    trailing.push(0);
    trailing[4] += 1;
    assert_eq!(refused(&trailing), Some(Reason::HelloInvalid), "more in the record than the hello");
    let between = [&in_records(&good, 8)[..13], &[20, 3, 3, 0, 1, 1]].concat();
    assert_eq!(refused(&between), Some(Reason::HelloInvalid), "something between its records");
    // Of its length no more than the bound is read, and no more is waited for.
    let endless = in_records(&[&[22, 3, 1, 0, 0, 1, 0, 0x7f, 0xff][..], &[0; MAX_PEEK]].concat(), 64);
    assert_eq!(refused(&endless), Some(Reason::HelloTooLarge));
}

#[test]
fn requests_of_one_connection_are_all_looked_at() {
    let one = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
    let post = b"POST / HTTP/1.1\r\nHost: b.test\r\nContent-Length: 70\r\n\r\n";
    let body = b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\nGET / HTTP/1.1\r\nHost: evil.test\r\n\r\n";
    let chunked = b"POST / HTTP/1.1\r\nHost: c.test\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nhi\r\n0\r\n\r\n";
    let all = [&one[..], post, body, chunked, one].concat();
    assert_eq!(body.len(), 70);
    let expected = run(80, &all, || usize::MAX, &[]);
    assert_eq!(expected.names, ["a.test", "b.test", "c.test", "a.test"]);
    assert_eq!((expected.passed, expected.refused), (all.len(), None));
    for at in 1..all.len() {
        let mut first = true;
        assert_eq!(
            run(80, &all, || if std::mem::take(&mut first) { at } else { usize::MAX }, &[]),
            expected,
            "cut at {at}"
        );
    }
    assert_eq!(run(80, &all, || 1, &[]), expected);
    let late = run(80, &[&all[..], b"GET / HTTP/1.1\r\nHost: a.test\r\nHost: d.test\r\n\r\n"].concat(), || 7, &[]);
    assert_eq!((late.passed, late.refused), (all.len(), Some(Reason::HostInvalid)));
}

#[test]
fn an_upgrade_ends_reading_only_when_the_server_takes_it() {
    let ask = b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    let frames = b"\x81\x05hello";
    let all = [&ask[..], frames].concat();
    let answered = |answer: &[u8]| run(80, &all, || 5, answer);
    let switched = answered(b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n\r\n\x81\x00");
    assert_eq!((switched.passed, switched.refused), (all.len(), None));
    let stayed = answered(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n");
    assert_eq!((stayed.passed, stayed.refused), (ask.len(), Some(Reason::HeadInvalid)));
    let waiting = answered(b"HTTP/1.1 101 Switching");
    assert_eq!((waiting.passed, waiting.is_held), (ask.len(), true));
    // What is behind another request could be answered by a 101 that a body has in it.
    let later = run(80, &[b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n", &ask[..]].concat(), || 9, &[]);
    assert_eq!(later.refused, Some(Reason::UpgradeNotFirst));
    let other = b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AA\r\n\r\n";
    let taken = run(80, &[&other[..], b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"].concat(), || 9, &[]);
    assert_eq!((taken.passed, taken.refused), (other.len(), Some(Reason::Http2)));
}

#[test]
fn what_is_neither_tls_nor_http_is_refused_at_once() {
    for (bytes, reason) in [
        (&b"SSH-2.0-OpenSSH_9.2\r\n"[..], Reason::ProtocolUnknown),
        (b"PRI * HTTP/2.0\r\n", Reason::Http2),
        (b"CONNECT a.test:443 HTTP/1.1\r\n", Reason::Tunnel),
        (b"\x80\x2e\x01\x03\x01", Reason::ProtocolUnknown),
        (b"\0\0\0\x08\x04\xd2\x16\x2f", Reason::ProtocolUnknown),
        (b"\r\nGET / HTTP/1.1\r\n", Reason::ProtocolUnknown),
        (b"get / HTTP/1.1\r\n", Reason::ProtocolUnknown),
        (b"GET / HTTP/1.1\n", Reason::HeadInvalid),
        (b"GET / HTTP/1.1\r\nHost: a.test\n", Reason::HeadInvalid),
        (b"GET / HTTP/1.1\r\n\0", Reason::HeadInvalid),
    ] {
        assert_eq!(refused(bytes), Some(reason), "{:?}", String::from_utf8_lossy(bytes));
    }
    let long = [b"GET /".to_vec(), vec![b'a'; MAX_PEEK]].concat();
    assert_eq!(refused(&long), Some(Reason::HeadTooLarge));
}

/// Repeatable randomness (splitmix64).
struct Random(u64);

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((mixed ^ (mixed >> 31)) % bound.max(1) as u64) as usize
    }
}

/// For a second, or DSEC_FUZZ_SECONDS.
#[test]
fn fuzz_pieces_make_no_difference() {
    let seconds = std::env::var("DSEC_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    let until = Instant::now() + Duration::from_secs(seconds);
    let heads: [&[u8]; 3] = [
        b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\nPOST /x HTTP/1.1\r\nHost: b.test\r\nContent-Length: 5\r\n\r\nhello",
        b"POST / HTTP/1.1\r\nHost: a.test:443\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\nraw",
    ];
    let corpus: Vec<&[u8]> =
        NAMED.iter().map(|(_, bytes)| *bytes).chain([GO_ECH, OPENSSL_NO_NAME]).chain(heads).collect();
    let answers = [server_hello(true), server_hello(false), b"HTTP/1.1 101 S\r\n\r\n".to_vec(), Vec::new()];
    let mut random = Random(1);
    let mut seed = 0;
    while Instant::now() < until {
        seed += 1;
        let mut bytes = corpus[random.below(corpus.len())].to_vec();
        if random.below(2) == 0 {
            bytes.extend_from_slice(corpus[random.below(corpus.len())]);
        }
        for _ in 0..random.below(6) {
            let at = random.below(bytes.len());
            match random.below(4) {
                0 => bytes[at] = random.below(256) as u8,
                1 => drop(bytes.drain(at..(at + random.below(8)).min(bytes.len()))),
                2 => bytes.insert(at, b"\r\n: \0,\xff1"[random.below(8)]),
                _ => bytes[at] ^= 1 << random.below(8),
            }
            if bytes.is_empty() {
                bytes.push(22);
            }
        }
        let answer = &answers[random.below(answers.len())];
        let expected = run(443, &bytes, || usize::MAX, answer);
        assert!(expected.passed <= bytes.len());
        let cut = run(443, &bytes, || 1 + random.below(40), answer);
        assert_eq!(cut, expected, "seed {seed}: {bytes:02x?}");
    }
}
