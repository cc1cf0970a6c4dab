//! Several sandboxes behind one gate, and who may feed it.

mod world;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rustix::process::Uid;
use serde_json::json;

use world::network::{NEIGHBOUR_V4, SANDBOX_V4};
use world::upstream::{Upstream, http, silent};
use world::{World, wait_for};

const ASK: &[u8] = b"GET / HTTP/1.1\r\nHost: a.test\r\n\r\n";
const ANSWER: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 7\r\n\r\n0 bytes";
/// Of a neighbour's connections that are measured.
const MEASURED: usize = 200;
const FLOODERS: usize = 2;

/// Whether a request is answered.
fn is_answered(stream: std::io::Result<TcpStream>) -> bool {
    let Ok(mut stream) = stream else { return false };
    let mut answer = vec![0; ANSWER.len()];
    stream.write_all(ASK).and_then(|()| stream.read_exact(&mut answer)).is_ok() && answer == ANSWER
}

fn neighbour(world: &mut World, names: &[&str], pins: &[(&str, &str)]) {
    let names = names.iter().map(|name| json!({ "pattern": name, "ports": [["tcp", 80, 80, true]] }));
    let pins = pins.iter().map(|(name, address)| json!({ "name": name, "address": address, "ttlMs": 60_000 }));
    let params = json!({ "id": "b2", "address4": NEIGHBOUR_V4, "generation": 9,
        "names": names.collect::<Vec<_>>(), "pins": pins.collect::<Vec<_>>() });
    world.feeder.ok("policy.set", &params);
}

#[test]
fn each_sandbox_has_its_own_policy() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:80", http);
    let pins = [("a.test", "203.0.113.1")];
    world.allow(&[("a.test", 80, 80)], &pins);
    let from = |world: &World, address| is_answered(world.dial_from(address, "203.0.113.1:80"));
    assert!(from(&world, SANDBOX_V4) && !from(&world, NEIGHBOUR_V4), "one that has no policy");
    neighbour(&mut world, &["a.test"], &[]);
    assert!(!from(&world, NEIGHBOUR_V4), "pins are of one sandbox");
    neighbour(&mut world, &["b.test"], &pins);
    assert!(!from(&world, NEIGHBOUR_V4), "and so are names");
    neighbour(&mut world, &["a.test"], &pins);
    assert!(from(&world, SANDBOX_V4) && from(&world, NEIGHBOUR_V4));
    let params = json!({ "id": "b2", "address4": SANDBOX_V4, "generation": 10, "names": [], "pins": [] });
    assert_eq!(world.feeder.call("policy.set", &params).expect_err("taken")["code"], "invalid_argument");
    world.feeder.ok("policy.remove", &json!({ "id": "b2" }));
    assert!(from(&world, SANDBOX_V4) && !from(&world, NEIGHBOUR_V4));
    world.end();
}

/// The figures are for the eye; that each request is answered is not.
#[test]
fn a_flood_of_connections_does_not_keep_out_a_neighbour() {
    let Some(mut world) = World::begin() else { return };
    let _server = Upstream::begin(&world, "203.0.113.1:80", http);
    let pins = [("a.test", "203.0.113.1")];
    world.allow(&[("a.test", 80, 80)], &pins);
    neighbour(&mut world, &["a.test"], &pins);
    let median = |world: &World| {
        let mut all: Vec<Duration> = (0..MEASURED)
            .map(|_| {
                let begun = Instant::now();
                assert!(is_answered(world.dial_from(NEIGHBOUR_V4, "203.0.113.1:80")));
                begun.elapsed()
            })
            .collect();
        all.sort_unstable();
        (all[MEASURED / 2], all[MEASURED * 99 / 100])
    };
    let quiet = median(&world);
    let (is_over, flood) = (AtomicBool::new(false), AtomicU64::new(0));
    let flooded = std::thread::scope(|scope| {
        for _ in 0..FLOODERS {
            scope.spawn(|| {
                world.network.inside("sandbox", || {
                    while !is_over.load(Ordering::Relaxed) {
                        // It takes what it gets, and says nothing.
                        drop(TcpStream::connect("203.0.113.1:80"));
                        flood.fetch_add(1, Ordering::Relaxed);
                    }
                });
            });
        }
        let flooded = median(&world);
        is_over.store(true, Ordering::Relaxed);
        flooded
    });
    println!(
        "a request, median and p99: {:?} alone, {:?} beside {} connections of another",
        quiet,
        flooded,
        flood.load(Ordering::Relaxed)
    );
    world.feeder.ok("policy.remove", &json!({ "id": "b2" }));
    world.end();
}

#[test]
fn a_thousand_connections_are_cut_at_once() {
    let Some(mut world) = World::begin() else { return };
    let server = Upstream::begin(&world, "203.0.113.1:7000", silent);
    let any = json!({ "pattern": "a.test", "ports": [["tcp", 7000, 7000, true]], "anyProtocol": true });
    world.set(&[any], &[("a.test", "203.0.113.1")]);
    const COUNT: usize = 1_000;
    let clients: Vec<_> = (0..COUNT).map(|_| world.dial("203.0.113.1:7000")).collect();
    wait_for("the connections", || server.connections() == COUNT);
    let feeder = &mut world.feeder;
    wait_for("all of them", || feeder.ok("flows", &json!({ "id": "a1" }))["connected"].as_u64() == Some(COUNT as u64));
    let begun = Instant::now();
    assert_eq!(world.set(&[], &[]), json!({ "open": 0, "cut": COUNT }));
    println!("{COUNT} connections cut in {:?}", begun.elapsed());
    assert!(begun.elapsed() < Duration::from_secs(1), "{:?}", begun.elapsed());
    assert!(clients.into_iter().all(|mut client| world::is_reset(&mut client)));
    world.end();
}

#[test]
fn only_root_feeds_it() {
    let Some(mut world) = World::begin() else { return };
    world.allow(&[], &[]);
    // Were the socket open to all, it would still not be.
    std::fs::set_permissions(&world.gate.socket, std::fs::Permissions::from_mode(0o666)).expect("set");
    let path = world.gate.socket.clone();
    let other = std::thread::spawn(move || {
        let nobody = Uid::from_raw(world::gate::UID);
        rustix::thread::set_thread_res_uid(nobody, nobody, nobody).expect("another user");
        let mut socket = UnixStream::connect(path).expect("connected");
        socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
        socket.read(&mut [0; 64]).expect("the end")
    });
    assert_eq!(other.join().expect("tried"), 0, "it was greeted");
    world.end();
}
