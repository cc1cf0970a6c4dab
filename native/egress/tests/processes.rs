//! Which process has caused what was denied.

mod common;

use std::time::{Duration, Instant};

use common::acts::{Act, FLOOD, act};
use common::attached::{program_of, programs};
use common::client::TestClient;
use common::gate::Gate;
use common::*;
use serde_json::{Value, json};

const WITHIN: Duration = Duration::from_secs(5);
const COMM: &str = "processes-";

/// A program of the other tests.
#[test]
fn acts() {
    act();
}

struct Listener {
    client: TestClient,
    events: u32,
}

impl Listener {
    fn new(host: &Host) -> Self {
        let mut client = host.client();
        let events = client.open("events", &json!({}));
        // The stream is there once a later call is answered.
        client.call("node.info", &json!({})).expect("answered");
        Self { client, events }
    }

    fn next(&mut self, kind: &str, of: &Value) -> Value {
        let until = Instant::now() + WITHIN;
        while let Some(message) = self.client.message(self.events, until.saturating_duration_since(Instant::now())) {
            let is_like = of.as_object().expect("members").iter().all(|(name, value)| message[kind][name] == *value);
            if !message[kind].is_null() && is_like {
                return message[kind].clone();
            }
        }
        panic!("no {kind} like {of} was told");
    }
}

/// It is the program that acted, as it was told to.
fn assert_is(process: &Value, act: &Act) {
    assert_eq!(process["pid"], act.pid, "{process}");
    assert!(process["comm"].as_str().is_some_and(|comm| comm.starts_with(COMM)), "{process}");
    assert_eq!(process["uid"], 0, "{process}");
    assert!(process["session"].is_u64(), "{process}");
    let told = process["argv"].as_array().and_then(|argv| argv.get(1..));
    assert_eq!(told, Some(&["--exact", "acts", "--nocapture"].map(Value::from)[..]), "{process}");
}

fn is_known(host: &Host) -> bool {
    let info = host.ok("node.info", &json!({}));
    if info["withoutProcesses"].is_null() {
        return true;
    }
    assert!(std::env::var("DSEC_REQUIRE").is_err(), "{info}");
    eprintln!("skipped: {}", info["withoutProcesses"]);
    false
}

#[test]
fn denials_name_the_process_that_caused_them() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    if !is_known(&host) {
        return host.finish();
    }
    let sandbox = host.inhabited();
    host.set(&sandbox, json!([]), json!({}));
    let mut listener = Listener::new(&host);
    for (what, protocol, port) in [
        ("tcp 203.0.113.7 7001", "tcp", 7001),
        ("tcp 2001:db8:2::7 7002", "tcp", 7002),
        ("udp 203.0.113.7 7003", "udp", 7003),
        ("udp-connected 203.0.113.7 7004", "udp", 7004),
        ("udp 2001:db8:2::7 7005", "udp", 7005),
        ("ping 203.0.113.8 0", "icmp", 0),
        ("ping 2001:db8:2::7 0", "icmp", 0),
    ] {
        let act = Act::begin(&sandbox, what);
        let address = what.split(' ').nth(1);
        let denied = listener.next("denied", &json!({ "protocol": protocol, "port": port, "address": address }));
        assert_is(&denied["process"], &act);
        // Who has started it is outside.
        assert_eq!(denied["process"]["ancestors"], json!([]), "{denied}");
    }

    let parent = Act::begin(&sandbox, "child child tcp 203.0.113.7 7010");
    let denied = listener.next("denied", &json!({ "port": 7010 }));
    assert_is(&denied["process"], &parent);
    let ancestors = denied["process"]["ancestors"].as_array().expect("ancestors").clone();
    assert_eq!(ancestors.len(), 2, "{denied}");
    assert!(ancestors.iter().all(|pid| pid.as_u64().is_some_and(|pid| pid < parent.pid)), "{denied}");
    parent.end();

    // What is outside has no number there.
    assert!(!sandbox.namespace.reaches(FAR4, 7011));
    assert_eq!(listener.next("denied", &json!({ "port": 7011 }))["process"], Value::Null);

    // The programs go on without egressd, and so does what they know.
    host.kill();
    let mut early = Act::begin(&sandbox, "udp-connected 203.0.113.7 7012");
    host.launch();
    let mut listener = Listener::new(&host);
    early.again();
    let denied = listener.next("denied", &json!({ "port": 7012 }));
    assert_is(&denied["process"], &early);
    let late = Act::begin(&sandbox, "tcp 203.0.113.7 7013");
    assert_is(&listener.next("denied", &json!({ "port": 7013 }))["process"], &late);
    drop((early, late, listener, sandbox));
    host.finish();
}

#[test]
fn programs_of_two_servers_stand_beside_each_other_and_go_with_them() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    if !is_known(&host) {
        return host.finish();
    }
    let other = host.beside(&[]);
    let of = |host: &Host| program_of(&host.data.join("run/egress/bpf/link-socket_connects4"));
    let (first, second) = (of(&host), of(&other));
    assert!(programs().contains(&first) && programs().contains(&second));
    let (here, there) = (host.inhabited(), other.inhabited());
    for (host, sandbox) in [(&host, &here), (&other, &there)] {
        let mut listener = Listener::new(host);
        host.set(sandbox, json!([]), json!({}));
        let act = Act::begin(sandbox, "tcp 203.0.113.7 7020");
        assert_is(&listener.next("denied", &json!({ "port": 7020 }))["process"], &act);
    }
    // A newer egressd takes the place of the older one's programs, and leaves none of them.
    host.kill();
    assert!(programs().contains(&first), "programs go on without egressd");
    host.launch();
    assert_ne!(of(&host), first);
    assert!(!programs().contains(&first) && programs().contains(&second));
    let first = of(&host);
    drop((here, there));
    other.finish_beside();
    assert!(!programs().contains(&second) && programs().contains(&first));
    host.finish();
    assert!(!programs().contains(&first), "a program is left");
}

#[test]
fn the_resolver_and_the_gate_hear_who_has_asked() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&["--gate", "/nonexistent", "--resolver-uid", "64804", "--resolver-gid", "64804"]);
    let gate = Gate::start(&host);
    if !is_known(&host) {
        return host.finish();
    }
    wait_for("the gate to be found", || host.ok("node.info", &json!({}))["gate"] == true);
    let sandbox = host.inhabited();
    let address = host.ok("uplink.open", &json!({ "id": sandbox.id }))["address4"].clone();
    let ranges = json!([["tcp", 8080, 8080, true]]);
    host.set(
        &sandbox,
        json!([]),
        json!({
            "flags": { "names": true, "resolver": true },
            "pins": [{ "address": FAR4, "name": "a.example", "ttlMs": 60_000, "ranges": ranges }],
            "names": [{ "pattern": "a.example", "ports": ranges }],
        }),
    );
    let gateway = host.ok("node.info", &json!({}))["address4"].as_str().expect("an address").to_owned();
    let ask = |port: u16, protocol: &str| {
        let params = json!({ "id": sandbox.id, "address": address, "port": port, "protocol": protocol });
        host.ok("owner", &params)["process"].clone()
    };

    let act = Act::begin(&sandbox, &format!("udp {gateway} 53"));
    assert_is(&ask(act.port, "udp"), &act);
    assert_eq!(ask(act.port ^ 256, "udp"), Value::Null, "another in the same place");
    assert_eq!(ask(act.port, "tcp"), Value::Null, "another protocol");
    let (pid, port) = (act.pid, act.port);
    act.end();
    let ended = ask(port, "udp");
    assert_eq!((&ended["pid"], &ended["argv"]), (&json!(pid), &json!([])), "{ended}");
    assert!(ended["comm"].as_str().is_some_and(|comm| comm.starts_with(COMM)), "{ended}");

    let mut listener = Listener::new(&host);
    gate.refuse_connections();
    let act = Act::begin(&sandbox, &format!("tcp {FAR4} 8080"));
    let refused = listener.next("refused", &json!({ "name": "b.example", "port": 8080 }));
    assert_is(&refused["process"], &act);
    drop((act, listener, sandbox, gate));
    host.finish();
}

#[test]
fn a_flood_costs_egressd_little_and_a_neighbour_nothing() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    if !is_known(&host) {
        return host.finish();
    }
    let (sandbox, neighbour) = (host.inhabited(), host.inhabited());
    for of in [&sandbox, &neighbour] {
        host.set(of, json!([]), flags(&["resolver"]));
    }
    let gateway = host.ok("node.info", &json!({}))["address4"].as_str().expect("an address").to_owned();
    let quiet = Act::begin(&neighbour, &format!("udp {gateway} 53"));
    let mut listener = Listener::new(&host);
    let before = host.cpu();
    for to in [FAR4, &gateway] {
        Act::begin(&sandbox, &format!("flood {to} 53")).end();
    }
    let used = host.cpu().saturating_sub(before);
    assert!(used < FLOOD / 4, "{used:?}");
    let mut told = 0;
    while let Some(message) = listener.client.message(listener.events, Duration::from_millis(100)) {
        assert!(message["denied"]["process"]["pid"].is_u64(), "{message}");
        told += 1;
    }
    assert!(told <= 16 * 4, "{told} told");
    assert!(host.denied(&sandbox, "default") > told, "a flood");
    let address = host.ok("uplink.open", &json!({ "id": neighbour.id }))["address4"].clone();
    let asked = json!({ "id": neighbour.id, "address": address, "port": quiet.port, "protocol": "udp" });
    assert_is(&host.ok("owner", &asked)["process"], &quiet);
    drop((quiet, listener, sandbox, neighbour));
    host.finish();
}
