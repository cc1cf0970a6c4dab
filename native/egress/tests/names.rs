//! What is allowed by name: pins, and connections through the gate.

mod common;

use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

use common::gate::Gate;
use common::servers::Echo;
use common::*;
use serde_json::{Value, json};

/// It is found by its socket; this is what would be started if it were not.
const ARGUMENTS: [&str; 6] = ["--gate", "/nonexistent", "--resolver-uid", "64804", "--resolver-gid", "64804"];

fn pin(address: &str, ttl_ms: u64, ranges: &Value) -> Value {
    json!({ "address": address, "name": "a.example", "ttlMs": ttl_ms, "ranges": ranges })
}

fn by_name(pins: Value) -> Value {
    json!({
        "flags": { "names": true },
        "pins": pins,
        "names": [{ "pattern": "a.example", "ports": [["tcp", 8080, 8080, true]] }],
    })
}

fn fed(host: &Host) {
    wait_for("the gate to be found", || host.ok("node.info", &json!({}))["gate"] == true);
}

fn line(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    let mut byte = [0];
    while stream.read(&mut byte).is_ok_and(|length| length == 1) && byte[0] != b'\n' {
        bytes.push(byte[0]);
    }
    String::from_utf8(bytes).expect("text")
}

fn echoes_through(stream: &mut TcpStream) -> bool {
    let mut buffer = [0; 16];
    stream.write_all(b"hello").is_ok() && stream.read(&mut buffer).is_ok_and(|length| length == 5)
}

#[test]
fn connections_to_pinned_addresses_come_to_the_gate() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&ARGUMENTS);
    let gate = Gate::start(&host);
    let server = Echo::tcp(&host.world, 8080);
    fed(&host);
    let sandbox = host.uplinked();
    let ranges = json!([["tcp", 8080, 8080, true]]);
    let generation = host.set(&sandbox, json!([]), by_name(json!([pin(FAR4, 60_000, &ranges)])))["generation"].clone();
    let calls = gate.take();
    let (method, params) = calls.last().expect("told before the answer");
    assert_eq!(method, "policy.set");
    assert_eq!(
        (&params["id"], &params["address4"], &params["generation"]),
        (&json!(sandbox.id), &json!("198.18.0.2"), &generation)
    );
    assert_eq!(
        (params["names"][0]["pattern"].as_str(), params["pins"][0]["address"].as_str()),
        (Some("a.example"), Some(FAR4))
    );

    let inside = &sandbox.namespace;
    let mut stream = inside.connect(FAR4, 8080).expect("connected");
    assert_eq!(line(&mut stream), format!("198.18.0.2 {FAR4}:8080"), "the gate knows who and where");
    assert!(echoes_through(&mut stream));
    for (address, port) in [(FAR4, 8081), (OTHER4, 8080), (FAR6, 8080)] {
        assert!(!inside.reaches(address, port), "{address} {port}");
    }
    let more = json!({ "id": sandbox.id, "generation": generation, "pins": [pin(FAR6, 60_000, &ranges)] });
    assert_eq!(host.ok("pins.add", &more)["pins"], 2);
    assert_eq!(gate.take().last().map(|(method, _)| method.as_str()), Some("pins.add"), "told before the answer");
    let mut six = inside.connect(FAR6, 8080).expect("connected");
    assert_eq!(line(&mut six), format!("fd64:7365:6300::2 [{FAR6}]:8080"));

    let mut stale = more.clone();
    stale["generation"] = json!(generation.as_u64().expect("a number") + 1);
    assert_eq!(host.refusal("pins.add", &stale)["code"], "policy_stale");

    host.kill();
    assert!(echoes_through(&mut stream), "flows through the gate outlive egressd");
    host.launch();
    fed(&host);
    assert!(echoes_through(&mut stream));
    assert!(inside.reaches(FAR4, 8080), "the pins too");
    assert!(gate.take().is_empty(), "what a gate knows of an adopted uplink stays");

    let denied = json!([{ "cidr": FAR4, "ranges": [["tcp", 8080, 8080, false]] }]);
    host.set(&sandbox, denied, by_name(json!([pin(FAR4, 60_000, &ranges)])));
    assert!(!inside.reaches(FAR4, 8080), "a denial of addresses wins over a name");
    host.set(&sandbox, json!([]), json!({}));
    assert!(!echoes_through(&mut stream), "cut with the name");
    assert_eq!(gate.take().last().map(|(method, _)| method.as_str()), Some("policy.remove"));

    gate.refuse_policies(true);
    host.set(&sandbox, json!([]), by_name(json!([])));
    let methods: Vec<String> = gate.take().into_iter().map(|(method, _)| method).collect();
    assert_eq!(methods, ["policy.set", "policy.remove"], "rather nothing than what was");
    assert_eq!(server.received(), 0, "nothing went past the gate");
    drop((stream, six, sandbox));
    wait_for("the device to go", || host.devices().is_empty());
    drop(gate);
    host.finish();
}

/// That of the same build, in a directory that only somebody else may enter, as one's home.
struct RealGate(PathBuf);

impl RealGate {
    fn copied() -> Option<Self> {
        let built = real_gate()?;
        let own = Self(std::env::temp_dir().join(format!("dsec-real-gate-{}", std::process::id())));
        std::fs::create_dir(&own.0).expect("a directory");
        std::fs::copy(built, own.0.join("gate")).expect("copied");
        std::os::unix::fs::chown(&own.0, Some(12_345), Some(12_345)).expect("chown");
        std::fs::set_permissions(&own.0, std::fs::Permissions::from_mode(0o700)).expect("chmod");
        Some(own)
    }
}

impl Drop for RealGate {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Where it was built.
fn real_gate() -> Option<PathBuf> {
    let beside = std::env::current_exe().expect("a path").parent()?.parent()?.join("gate");
    let found = std::env::var_os("DSEC_GATE").map_or(beside, PathBuf::from);
    if !found.exists() {
        eprintln!("skipped: {} is missing (cargo build -p dsec-gate)", found.display());
        return None;
    }
    Some(found)
}

fn asks_for(sandbox: &Sandbox, name: &str) -> Option<TcpStream> {
    let mut stream = sandbox.namespace.connect(FAR4, 8080).ok()?;
    let head = format!("GET / HTTP/1.1\r\nHost: {name}\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let mut answer = vec![0; head.len()];
    stream.read_exact(&mut answer).ok()?;
    (answer == head.as_bytes()).then_some(stream)
}

#[test]
fn the_gate_itself_is_started_fed_found_again_and_ended() {
    let Some(gate) = is_possible().then(RealGate::copied).flatten() else { return };
    let path = gate.0.join("gate");
    let mut host =
        Host::start(&["--gate", path.to_str().expect("UTF-8"), "--resolver-uid", "64804", "--resolver-gid", "64804"]);
    let _server = Echo::tcp(&host.world, 8080);
    fed(&host);
    let known = |host: &Host| -> Value {
        let text = std::fs::read(host.data.join("run/egress/gate.json")).expect("gate.json");
        serde_json::from_slice(&text).expect("JSON")
    };
    let first = known(&host);
    wait_for("the gate to have given up all", || {
        let status = std::fs::read_to_string(format!("/proc/{}/status", first["pid"])).expect("a process");
        status.contains("Uid:\t64804\t64804") && status.contains("CapPrm:\t0000000000000000")
    });
    let sandbox = host.uplinked();
    let named = by_name(json!([pin(FAR4, 60_000, &json!([["tcp", 8080, 8080, true]]))]));
    host.set(&sandbox, json!([]), named.clone());
    let mut open = asks_for(&sandbox, "a.example").expect("the name is allowed and the address is its own");
    assert!(asks_for(&sandbox, "b.example").is_none(), "another name");

    host.kill();
    let again = b"GET /2 HTTP/1.1\r\nHost: a.example\r\n\r\n";
    let mut answer = vec![0; again.len()];
    open.write_all(again).and_then(|()| open.read_exact(&mut answer)).expect("flows outlive egressd");
    host.launch();
    fed(&host);
    assert_eq!(known(&host), first, "the same gate");
    assert!(asks_for(&sandbox, "a.example").is_some(), "it knows what it knew");

    let pid = first["pid"].as_i64().and_then(|pid| i32::try_from(pid).ok()).and_then(rustix::process::Pid::from_raw);
    rustix::process::kill_process(pid.expect("a pid"), rustix::process::Signal::KILL).expect("killed");
    wait_for("another gate", || host.ok("node.info", &json!({}))["gate"] == true && known(&host) != first);
    host.set(&sandbox, json!([]), named);
    assert!(asks_for(&sandbox, "a.example").is_some(), "a new one is told all");
    host.set(&sandbox, json!([]), json!({}));
    assert!(asks_for(&sandbox, "a.example").is_none());
    let last = known(&host);
    drop((open, sandbox));
    wait_for("the device to go", || host.devices().is_empty());
    host.finish();
    let state = std::fs::read_to_string(format!("/proc/{}/stat", last["pid"])).unwrap_or_default();
    assert!(state.is_empty() || state.contains(") Z "), "the gate is ended: {state}");
}

#[test]
fn pins_end_with_their_time_and_quic_is_closed() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&ARGUMENTS);
    let gate = Gate::start(&host);
    fed(&host);
    let _servers = [Echo::udp(&host.world, FAR4, 9000), Echo::udp(&host.world, FAR4, 443)];
    let sandbox = host.uplinked();
    let inside = &sandbox.namespace;
    let ranges = json!([["tcp", 8080, 8080, true], ["udp", 9000, 9000, true], ["udp", 443, 443, true]]);
    host.set(&sandbox, json!([]), by_name(json!([pin(FAR4, 1_500, &ranges)])));
    let flow = inside.udp(FAR4, 9000);
    assert!((0..3).any(|_| echoes(&flow)), "UDP by name");
    let mut stream = inside.connect(FAR4, 8080).expect("connected");
    line(&mut stream);
    assert!(!inside.reaches_udp(FAR4, 443), "QUIC hides the name");
    assert!(host.denied(&sandbox, "quic") > 0);
    wait_for("the pin to end", || !inside.reaches(FAR4, 8080));
    assert!(!echoes(&flow), "UDP ends with it");
    assert!(echoes_through(&mut stream), "what the gate has taken goes on");
    wait_for("the pin to be taken away", || host.ok("node.info", &json!({}))["pins"] == 0);
    drop((stream, flow, sandbox, gate));
    host.finish();
}

#[test]
fn without_a_gate_connections_by_name_are_refused_at_once() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let server = Echo::tcp(&host.world, 8080);
    let sandbox = host.uplinked();
    host.set(&sandbox, json!([]), by_name(json!([pin(FAR4, 60_000, &json!([["tcp", 8080, 8080, true]]))])));
    let begun = std::time::Instant::now();
    let error = sandbox.namespace.connect(FAR4, 8080).expect_err("refused");
    assert_eq!(error.kind(), std::io::ErrorKind::ConnectionRefused);
    // A second attempt would come after a second.
    assert!(begun.elapsed() < Duration::from_millis(900), "{:?}", begun.elapsed());
    assert_eq!(server.received(), 0);
    let full: Vec<Value> = (0..4_096u32)
        .map(|n| pin(&format!("203.0.{}.{}", n >> 8, n & 255), 60_000, &json!([["tcp", 1, 1, true]])))
        .collect();
    let set = host.set(&sandbox, json!([]), by_name(json!(full)));
    let one_more =
        json!({ "id": sandbox.id, "generation": set["generation"], "pins": [pin("192.0.2.1", 1_000, &json!([]))] });
    assert_eq!(host.refusal("pins.add", &one_more)["code"], "no_capacity");
    drop(sandbox);
    wait_for("the pins to go", || host.ok("node.info", &json!({}))["pins"] == 0);
    host.finish();
}
