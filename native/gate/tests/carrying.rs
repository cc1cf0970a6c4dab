//! What passes: whole, in both directions, at whatever size of packets, and at no cost while it is idle.

mod world;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::time::{Duration, Instant};

use serde_json::json;

use world::network::DIRECT_PORT;
use world::upstream::{TlsServer, Upstream, count_then_answer, echo, http, silent};
use world::{World, is_reset, wait_for};

const MIB: usize = 1 << 20;
/// Of a download that is measured.
const MEASURED: usize = 256 * MIB;

#[test]
fn a_large_upload_passes_a_narrow_path() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:80", http);
    let _server6 = Upstream::begin(&world, "[2001:db8:1::1]:80", http);
    world.allow(&[("big.test", 80, 80)], &[("big.test", "203.0.113.1"), ("big.test", "2001:db8:1::1")]);
    std::fs::write(world.directory.join("body"), vec![b'x'; 10 * MIB]).expect("written");
    for address in ["203.0.113.1", "[2001:db8:1::1]"] {
        let resolve = format!("big.test:80:{address}");
        let arguments =
            ["-sS", "--max-time", "30", "--resolve", &resolve, "--data-binary", "@body", "http://big.test/upload"];
        let output = world.run("curl", &arguments);
        let answer = String::from_utf8_lossy(&output.stdout).into_owned();
        assert_eq!(answer, format!("{} bytes", 10 * MIB), "{}", String::from_utf8_lossy(&output.stderr));
    }
    let up = world.counts()["bytesUp"].as_u64().expect("a count");
    assert!(up > 20 * MIB as u64 && up < 21 * MIB as u64, "{up}");
    world.end();
}

#[test]
fn an_end_of_one_direction_is_passed_on_alone() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:7000", count_then_answer);
    let any = json!({ "pattern": "a.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    world.set(&[any], &[("a.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:7000");
    client.write_all(&[7; 3 * MIB]).expect("written");
    client.shutdown(Shutdown::Write).expect("shut");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    assert_eq!(answer, format!("{} bytes", 3 * MIB));
    drop(client);
    world.end();
}

#[test]
fn an_answer_before_a_reset_is_passed_on() {
    let Some(mut world) = World::begin() else { return };
    // A server that does not want the body: its close is a reset, since it has not read all.
    let _server = Upstream::begin(&world, "203.0.113.1:80", |mut visit| {
        visit.read();
        let _ = visit.stream.write_all(b"HTTP/1.1 413 Too Large\r\n\r\n");
    });
    world.allow(&[("a.test", 80, 80)], &[("a.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:80");
    let head = format!("POST / HTTP/1.1\r\nHost: a.test\r\nContent-Length: {}\r\n\r\n", 64 * MIB);
    client.write_all(head.as_bytes()).expect("written");
    while client.write_all(&[0; 4_096]).is_ok() {}
    let mut answer = vec![0; 26];
    client.read_exact(&mut answer).expect("the answer");
    assert_eq!(answer, b"HTTP/1.1 413 Too Large\r\n\r\n");
    drop(client);
    world.end();
}

#[test]
fn any_protocol_passes_where_the_rule_says_so() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:22", |mut visit| {
        let _ = visit.stream.write_all(b"SSH-2.0-server\r\n");
        visit.read();
    });
    let closed = "203.0.113.1:23";
    let any = json!({ "pattern": "*.a.test", "ports": [["tcp", 22, 23, true]], "anyProtocol": true });
    world.set(&[any], &[("ssh.a.test", "203.0.113.1")]);
    let mut client = world.dial("203.0.113.1:22");
    let mut greeting = [0; 16];
    client.read_exact(&mut greeting).expect("the server speaks first");
    assert_eq!(&greeting, b"SSH-2.0-server\r\n");
    assert!(world.is_refused(closed), "nobody listens there");
    assert_eq!(world.counts()["unreachable"].as_u64(), Some(1));
    // By name alone it is no longer enough.
    let named = json!({ "pattern": "*.a.test", "ports": [["tcp", 22, 23, true]] });
    assert_eq!(world.set(&[named], &[("ssh.a.test", "203.0.113.1")]), json!({ "open": 0, "cut": 1 }));
    assert!(is_reset(&mut client));
    world.end();
}

#[test]
fn one_who_does_not_read_holds_back_who_sends() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:7000", echo);
    let any = json!({ "pattern": "a.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    world.set(&[any], &[("a.test", "203.0.113.1")]);
    let client = world.dial("203.0.113.1:7000");
    let mut writer = client.try_clone().expect("copied");
    let sending = std::thread::spawn(move || {
        writer.write_all(&vec![b'z'; 32 * MIB]).expect("written");
        writer.shutdown(Shutdown::Write).expect("shut");
    });
    let feeder = &mut world.feeder;
    let mut last = (0, Instant::now());
    // Both directions fill up, and then nothing moves.
    wait_for("the standstill", || {
        let counts = feeder.ok("flows", &json!({ "id": "a1" }));
        let moved = counts["bytesUp"].as_u64().expect("a count");
        assert!(counts["heldBytes"].as_u64() <= Some(2 * gate::bounds::SPLICE_BYTES as u64), "{counts}");
        if moved != last.0 {
            last = (moved, Instant::now());
        }
        moved > 0 && last.1.elapsed() > Duration::from_millis(300)
    });
    assert!(!sending.is_finished(), "32 MiB went nowhere");
    let mut client = client;
    let mut all = Vec::new();
    client.read_to_end(&mut all).expect("all of it");
    assert!(all.len() == 32 * MIB && all.iter().all(|byte| *byte == b'z'));
    sending.join().expect("sent");
    drop(client);
    world.end();
}

#[test]
fn idle_connections_are_left_alone() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:7000", silent);
    let any = json!({ "pattern": "a.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    world.set(&[any], &[("a.test", "203.0.113.1")]);
    const COUNT: usize = 300;
    let clients: Vec<_> = (0..COUNT).map(|_| world.dial("203.0.113.1:7000")).collect();
    wait_for("the connections", || server.connections() == COUNT);
    let feeder = &mut world.feeder;
    wait_for("all of them", || feeder.ok("flows", &json!({ "id": "a1" }))["connected"].as_u64() == Some(COUNT as u64));
    assert_eq!(world.gate.files() - world.gate.files_at_first, 2 * COUNT, "two files each, and no pipe");
    // It has answered, and goes to sleep.
    wait_for("the gate at rest", || world.gate.status("State").starts_with('S'));
    let switches = || world.gate.status("voluntary_ctxt_switches");
    let before = switches();
    // Nothing comes, so that this takes its time.
    clients[0].set_read_timeout(Some(Duration::from_secs(1))).expect("set");
    assert!((&clients[0]).read(&mut [0]).is_err());
    assert_eq!(switches(), before, "the gate was woken");
    println!("{COUNT} idle connections: {} of memory", world.gate.status("VmRSS"));
    drop(clients);
    world.end();
}

#[test]
fn one_sandbox_has_a_bounded_share() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:7000", silent);
    let any = json!({ "pattern": "a.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    world.set(&[any], &[("a.test", "203.0.113.1")]);
    let most = gate::bounds::MAX_CONNECTIONS_PER_SANDBOX;
    let clients: Vec<_> = (0..most).map(|_| world.dial("203.0.113.1:7000")).collect();
    wait_for("the connections", || server.connections() == most);
    world.feeder.listen();
    assert!(world.is_refused("203.0.113.1:7000"));
    assert_eq!(world.feeder.refusal().0, "too_many_connections");
    drop(clients);
    world.end();
}

#[test]
fn the_gate_has_no_privileges() {
    let Some(world) = World::begin() else { return };
    for name in ["CapInh", "CapPrm", "CapEff", "CapAmb"] {
        assert_eq!(world.gate.status(name), "0000000000000000", "{name}");
    }
    let id = world::gate::UID.to_string();
    for name in ["Uid", "Gid"] {
        assert_eq!(world.gate.status(name), [id.as_str(); 4].join(" "), "{name}");
    }
    assert_eq!(world.gate.status("Groups"), "");
    assert_eq!((world.gate.status("NoNewPrivs"), world.gate.status("Seccomp")), ("1".to_owned(), "2".to_owned()));
    assert_eq!(world.gate.status("Threads"), "1");
    let mut world = world;
    world.allow(&[], &[]);
    world.end();
}

/// How fast a download is through the gate and past it; the figures are for the eye.
#[test]
fn throughput_is_measured() {
    let Some(mut world) = World::begin() else { return };
    let file = std::fs::File::create(world.directory.join("big")).expect("created");
    file.set_len(MEASURED as u64).expect("sized");
    let _gated = TlsServer::begin(&world, "203.0.113.1:443", &[]);
    let _direct = TlsServer::begin(&world, &format!("203.0.113.1:{DIRECT_PORT}"), &[]);
    let zeros = |mut visit: world::upstream::Visit| {
        let block = vec![0; MIB];
        for _ in 0..MEASURED / MIB {
            if visit.stream.write_all(&block).is_err() {
                return;
            }
        }
    };
    let _plain = Upstream::begin(&world, "203.0.113.2:7000", zeros);
    let _plain_direct = Upstream::begin(&world, &format!("203.0.113.2:{DIRECT_PORT}"), zeros);
    let any = json!({ "pattern": "plain.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    let named = json!({ "pattern": "big.test", "ports": [["tcp", 443, 443, true]] });
    world.set(&[any, named], &[("plain.test", "203.0.113.2"), ("big.test", "203.0.113.1")]);
    let download = |port: u16| {
        let resolve = format!("big.test:{port}:203.0.113.1");
        let (certificate, url) = (world.path("cert.pem"), format!("https://big.test:{port}/big"));
        let begun = Instant::now();
        let output =
            world.run("curl", &["-sS", "--resolve", &resolve, "--cacert", &certificate, "-o", "/dev/null", &url]);
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        rate(begun)
    };
    let raw = |port: u16| {
        let begun = Instant::now();
        let mut client = world.dial(&format!("203.0.113.2:{port}"));
        let count = std::io::copy(&mut client, &mut std::io::sink()).expect("all of it");
        assert_eq!(count as usize, MEASURED);
        rate(begun)
    };
    let (tls, tls_direct) = (download(443), download(DIRECT_PORT));
    let (plain, plain_direct) = (raw(7000), raw(DIRECT_PORT));
    println!(
        "MiB/s, one connection over 1,400 bytes a packet: TLS {tls:.0} through the gate, {tls_direct:.0} direct; plain {plain:.0} through, {plain_direct:.0} direct"
    );
    world.end();
}

fn rate(begun: Instant) -> f64 {
    MEASURED as f64 / MIB as f64 / begun.elapsed().as_secs_f64()
}
