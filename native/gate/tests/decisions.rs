//! What passes the gate and what does not, with real programs through the kernel's own redirection.

mod world;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::json;

use world::upstream::{TlsServer, Upstream, http, silent};
use world::{World, is_reset, wait_for};

const HELLO: &[u8] = include_bytes!("hellos/go-hybrid.bin");
const HELLO_TLS12: &[u8] = include_bytes!("hellos/go-tls12.bin");
const ENCRYPTED: &[u8] = include_bytes!("hellos/go-ech.bin");
/// The name in them.
const NAME: &str = "files.a.test";

fn curl(world: &World, name: &str, address: &str, more: &[&str]) -> (bool, String) {
    let resolve = format!("{name}:443:{address}");
    let (certificate, url) = (world.path("cert.pem"), format!("https://{name}/page"));
    let mut arguments = vec!["-sS", "--max-time", "10", "--resolve", &resolve, "--cacert", &certificate];
    arguments.extend(more);
    arguments.push(&url);
    let output = world.run("curl", &arguments);
    let text = [output.stdout, output.stderr].concat();
    (output.status.success(), String::from_utf8_lossy(&text).into_owned())
}

#[test]
fn a_name_passes_to_its_own_address_and_to_no_other() {
    let Some(mut world) = World::begin() else { return };
    std::fs::write(world.directory.join("page"), "the page").expect("written");
    let _v4 = TlsServer::begin(&world, "203.0.113.1:443", &[]);
    let _v6 = TlsServer::begin(&world, "[2001:db8:1::1]:443", &[]);
    let other = Upstream::begin(&world, "203.0.113.2:443", silent);
    world.feeder.listen();
    let pins = [
        ("a.test", "203.0.113.1"),
        ("a.test", "2001:db8:1::1"),
        ("b.test", "203.0.113.2"),
        ("x.a.test", "203.0.113.1"),
    ];
    world.allow(&[("a.test", 443, 443), ("b.test", 80, 443), ("*.a.test", 443, 443)], &pins);
    for (name, address) in [("a.test", "203.0.113.1"), ("a.test", "[2001:db8:1::1]"), ("x.a.test", "203.0.113.1")] {
        let (passed, text) = curl(&world, name, address, &[]);
        assert!(passed && text.contains("the page"), "{name} at {address}: {text}");
    }
    for (what, name, address, reason) in [
        ("a spoofed name to another pinned address", "a.test", "203.0.113.2", "name_not_of_address"),
        ("a name of another address", "b.test", "203.0.113.1", "name_not_of_address"),
        ("a name of the wildcard that was not asked for", "y.a.test", "203.0.113.1", "name_not_of_address"),
        ("a name that is not allowed", "c.test", "203.0.113.1", "name_not_allowed"),
    ] {
        let (passed, text) = curl(&world, name, address, &[]);
        assert!(!passed, "{what}: {text}");
        assert_eq!(world.feeder.refusal(), (reason.to_owned(), Some(name.to_owned())), "{what}");
    }
    let (passed, _) = curl(&world, "a.test", "203.0.113.3", &[]);
    assert!(!passed, "an address that is pinned to nothing");
    assert_eq!(world.feeder.refusal(), ("address_not_pinned".to_owned(), None));
    assert_eq!(other.connections(), 0, "a refused connection was made");
    let counts = world.counts();
    assert_eq!((counts["connected"].as_u64(), counts["refused"].as_u64()), (Some(3), Some(5)), "{counts}");
    world.end();
}

#[test]
fn a_server_may_ask_for_another_hello_of_the_same_name_alone() {
    let Some(mut world) = World::begin() else { return };
    std::fs::write(world.directory.join("page"), "the page").expect("written");
    let server = TlsServer::begin(&world, "203.0.113.1:443", &["-groups", "P-384"]);
    world.allow(&[("a.test", 443, 443), (NAME, 443, 443)], &[("a.test", "203.0.113.1"), (NAME, "203.0.113.2")]);
    // A share of the first group, which the server does not take.
    let (passed, text) = curl(&world, "a.test", "203.0.113.1", &["--curves", "X25519:P-384"]);
    assert!(passed && text.contains("the page"), "{text}");
    drop(server);
    let retry = [
        &[22, 3, 3, 0, 90, 2, 0, 0, 86, 3, 3][..],
        &[0xcf, 0x21, 0xad, 0x74, 0xe5, 0x9a, 0x61, 0x11, 0xbe, 0x1d, 0x8c, 0x02, 0x1e, 0x65, 0xb8, 0x91],
        &[0xc2, 0xa2, 0x11, 0x16, 0x7a, 0xbb, 0x8c, 0x5e, 0x07, 0x9e, 0x09, 0xe2, 0xc8, 0xa8, 0x33, 0x9c],
        &[0; 52],
    ];
    let retry = retry.concat();
    let server = Upstream::begin(&world, "203.0.113.2:443", move |mut visit| {
        visit.read();
        let _ = visit.stream.write_all(&retry);
        while visit.read() {}
    });
    world.feeder.listen();
    let at = HELLO.windows(NAME.len()).position(|window| window == NAME.as_bytes()).expect("a name");
    let mut other = HELLO.to_vec();
    other[at..at + NAME.len()].copy_from_slice(b"evil.b.test0");
    let mut client = world.dial("203.0.113.2:443");
    // Both at once: the second is not passed before the answer to the first is seen.
    client.write_all(&[HELLO, &other].concat()).expect("written");
    assert!(is_reset(&mut client));
    assert_eq!(world.feeder.refusal().0, "name_changed");
    drop(client);
    wait_for("the server's end", || server.bytes().len() == HELLO.len());
    assert!(!server.bytes().windows(4).any(|window| window == b"evil"));
    world.end();
}

#[test]
fn an_encrypted_hello_needs_its_outer_name_allowed() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:443", silent);
    world.feeder.listen();
    world.allow(&[("inner.b.test", 443, 443)], &[("inner.b.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:443");
    client.write_all(ENCRYPTED).expect("written");
    assert!(is_reset(&mut client));
    assert_eq!(world.feeder.refusal(), ("name_not_allowed".to_owned(), Some("outer.a.test".to_owned())));
    assert_eq!(server.connections(), 0);
    world.allow(&[("outer.a.test", 443, 443)], &[("outer.a.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:443");
    client.write_all(ENCRYPTED).expect("written");
    wait_for("the hello", || server.bytes() == ENCRYPTED);
    assert_eq!(world.counts()["encryptedHellos"].as_u64(), Some(1));
    drop(client);
    world.end();
}

#[test]
fn nothing_reaches_the_upstream_before_the_decision() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:443", silent);
    world.allow(&[(NAME, 443, 443)], &[(NAME, "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:443");
    client.set_nodelay(true).expect("set");
    let (last, most) = HELLO.split_last().expect("bytes");
    for piece in most.chunks(97) {
        client.write_all(piece).expect("written");
    }
    let feeder = &mut world.feeder;
    wait_for("the bytes", || {
        feeder.ok("flows", &json!({ "id": "a1" }))["heldBytes"].as_u64() == Some(most.len() as u64)
    });
    assert_eq!(server.connections(), 0);
    client.write_all(&[*last]).expect("written");
    wait_for("the hello", || server.bytes() == HELLO);
    client.write_all(b"more").expect("written");
    client.shutdown(Shutdown::Write).expect("shut");
    // The answer is still outstanding, so that it is not known how to read what follows.
    assert_eq!(server.bytes(), HELLO);
    drop(client);
    world.feeder.ok("policy.remove", &json!({ "id": "a1" }));
    world.allow(&[], &[]);
    world.end();
}

#[test]
fn the_host_itself_is_not_reached() {
    let Some(mut world) = World::begin() else { return };
    // A service of the host at an address of its own, which a name was made to answer with.
    let service = Upstream::begin_in("host", &world, "192.0.2.1:80", silent);
    world.feeder.listen();
    let pins = [("a.test", "192.0.2.1"), ("a.test", "169.254.169.254"), ("a.test", "127.0.0.1")];
    world.allow(&[("a.test", 80, 80)], &pins);
    let mut client = world.dial("192.0.2.1:80");
    client.write_all(b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n").expect("written");
    assert!(is_reset(&mut client));
    assert_eq!(world.feeder.refusal(), ("address_is_local".to_owned(), Some("a.test".to_owned())));
    assert!(service.bytes().is_empty(), "it was told something");
    assert!(world.is_refused("169.254.169.254:80"));
    assert_eq!(world.feeder.refusal(), ("address_never_reachable".to_owned(), None));
    world.end();
}

#[test]
fn each_request_of_a_plain_connection_is_judged() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:80", http);
    world.feeder.listen();
    world.allow(&[("a.test", 80, 80), ("b.test", 80, 80)], &[("a.test", "203.0.113.1"), ("b.test", "203.0.113.1")]);
    let ask = |name: &str| format!("GET /of-{name} HTTP/1.1\r\nHost: {name}\r\n\r\n");
    let answer = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n0 bytes";
    let mut client = world.dial("203.0.113.1:80");
    for name in ["a.test", "b.test", "a.test"] {
        client.write_all(ask(name).as_bytes()).expect("written");
        let mut got = vec![0; answer.len()];
        client.read_exact(&mut got).expect("an answer");
        assert_eq!(got, answer);
    }
    client.write_all(ask("front.test").as_bytes()).expect("written");
    assert!(is_reset(&mut client));
    assert_eq!(world.feeder.refusal(), ("name_not_allowed".to_owned(), Some("front.test".to_owned())));
    for (what, bytes, reason) in [
        (
            "in the body of one before it",
            format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\n\r\nbody{}", ask("front.test")),
            "name_not_allowed",
        ),
        (
            "by two lengths",
            format!(
                "POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n{}",
                ask("front.test")
            ),
            "framing_invalid",
        ),
        ("by two hosts", "GET / HTTP/1.1\r\nHost: a.test\r\nHost: front.test\r\n\r\n".to_owned(), "host_invalid"),
        ("by absolute-form", "GET http://front.test/ HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(), "host_invalid"),
        (
            "by a bare line feed",
            "GET / HTTP/1.1\r\nA: b\nHost: front.test\r\nHost: a.test\r\n\r\n".to_owned(),
            "head_invalid",
        ),
        ("by CONNECT", "CONNECT front.test:80 HTTP/1.1\r\nHost: a.test\r\n\r\n".to_owned(), "tunnel"),
        ("by HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_owned(), "http2_without_tls"),
        ("by nothing known", "SSH-2.0-x\r\n".to_owned(), "protocol_unknown"),
    ] {
        let mut client = world.dial("203.0.113.1:80");
        client.write_all(bytes.as_bytes()).expect("written");
        assert!(is_reset(&mut client), "{what}");
        assert_eq!(world.feeder.refusal().0, reason, "{what}");
    }
    let seen = String::from_utf8_lossy(&server.bytes()).into_owned();
    assert!(seen.contains("Host: b.test") && !seen.contains("front.test"), "{seen}");
    world.end();
}

#[test]
fn a_web_socket_is_read_no_further() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:80", http);
    world.allow(&[("a.test", 80, 80)], &[("a.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:80");
    let ask = b"GET /ws HTTP/1.1\r\nHost: a.test\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n";
    // Frames may follow at once; they wait for the answer.
    client.write_all(&[&ask[..], b"\x81\x02hi"].concat()).expect("written");
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        client.read_exact(&mut byte).expect("a head");
        head.push(byte[0]);
    }
    assert!(head.starts_with(b"HTTP/1.1 101 "));
    for frame in [&b"\x81\x02hi"[..], b"GET / HTTP/1.1\r\nHost: evil.test\r\n\r\n"] {
        if frame[0] != 0x81 {
            client.write_all(frame).expect("written");
        }
        let mut back = vec![0; frame.len()];
        client.read_exact(&mut back).expect("an echo");
        assert_eq!(back, frame);
    }
    drop(client);
    world.end();
}

#[test]
fn one_who_takes_his_time_is_cut_off() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:443", silent);
    world.feeder.listen();
    world.allow(&[(NAME, 443, 443)], &[(NAME, "203.0.113.1")]);
    let mut clients = Vec::new();
    for _ in 0..gate::bounds::MAX_UNDECIDED_PER_SANDBOX {
        clients.push(world.dial("203.0.113.1:443"));
    }
    world.wait_open(clients.len() as u64);
    assert!(world.is_refused("203.0.113.1:443"));
    assert_eq!(world.feeder.refusal().0, "too_many_undecided");
    clients.truncate(1);
    world.wait_open(1);
    drop(clients);
    let begun = Instant::now();
    let mut slow = world.dial("203.0.113.1:443");
    slow.set_read_timeout(Some(Duration::from_millis(500))).expect("set");
    // A byte each half second: the reading waits so long.
    for byte in HELLO {
        if slow.write_all(&[*byte]).is_err() {
            break;
        }
        let mut got = [0];
        match slow.read(&mut got) {
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
            outcome => {
                assert_eq!(outcome.expect_err("reset").kind(), std::io::ErrorKind::ConnectionReset);
                break;
            }
        }
    }
    let took = begun.elapsed();
    assert!(took >= gate::bounds::FIRST_BYTES_TIME && took < gate::bounds::FIRST_BYTES_TIME * 2, "{took:?}");
    assert_eq!(world.feeder.refusal().0, "too_slow");
    let from = slow.local_addr().expect("an address").port();
    assert_eq!(world.feeder.refused_from, Some(from.into()), "who it was is found by its port");
    assert_eq!(server.connections(), 0);
    world.end();
}

#[test]
fn a_change_cuts_what_it_no_longer_allows_and_nothing_else() {
    let Some(mut world) = World::begin() else { return };
    let _tls = Upstream::begin(&world, "203.0.113.1:443", world::upstream::echo);
    let _plain = Upstream::begin(&world, "203.0.113.2:80", http);
    let pins = [(NAME, "203.0.113.1"), ("b.test", "203.0.113.2")];
    world.allow(&[(NAME, 443, 443), ("b.test", 80, 80)], &pins);
    let mut secure = world.dial("203.0.113.1:443");
    secure.write_all(HELLO_TLS12).expect("written");
    let mut back = vec![0; HELLO_TLS12.len()];
    secure.read_exact(&mut back).expect("an echo");
    let mut plain = world.dial("203.0.113.2:80");
    let ask = b"GET / HTTP/1.1\r\nHost: b.test\r\n\r\n";
    let answered = |plain: &mut std::net::TcpStream| {
        plain.write_all(ask).expect("written");
        let mut got = [0; 46];
        plain.read_exact(&mut got[..45]).expect("an answer");
        assert!(got.starts_with(b"HTTP/1.1 200"));
    };
    answered(&mut plain);
    world.feeder.listen();
    // All pins are gone: what is open outlives them.
    assert_eq!(world.allow(&[(NAME, 443, 443), ("b.test", 80, 80)], &[]), json!({ "open": 2, "cut": 0 }));
    answered(&mut plain);
    secure.write_all(b"x").expect("written");
    secure.read_exact(&mut [0]).expect("an echo");
    assert!(world.is_refused("203.0.113.1:443"), "a new connection is refused");
    assert_eq!(world.feeder.refusal().0, "address_not_pinned");
    let begun = Instant::now();
    assert_eq!(world.allow(&[("b.test", 80, 80)], &pins), json!({ "open": 1, "cut": 1 }));
    assert!(is_reset(&mut secure));
    println!("cut {} us after the change was asked for", begun.elapsed().as_micros());
    assert!(begun.elapsed() < Duration::from_millis(50), "{:?}", begun.elapsed());
    assert_eq!(world.feeder.refusal(), ("policy_changed".to_owned(), Some(NAME.to_owned())));
    answered(&mut plain);
    let pins = json!({ "id": "a1", "generation": 1, "pins": [] });
    assert_eq!(world.feeder.call("pins.add", &pins).expect_err("stale")["code"], "policy_stale");
    assert_eq!(world.feeder.ok("policy.remove", &json!({ "id": "a1" })), json!({ "cut": 1 }));
    assert!(is_reset(&mut plain));
    assert!(world.is_refused("203.0.113.2:80"));
    assert_eq!(world.feeder.ok("gate.info", &json!({}))["strangers"].as_u64(), Some(1));
    world.allow(&[], &[]);
    world.end();
}
