//! Changes while flows are open, and what outlives egressd.

mod common;

use std::io::{Read, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use common::servers::Echo;
use common::*;
use egress::layout::LAYOUT;
use serde_json::json;

/// A change is in force after this.
const PROMPT: Duration = Duration::from_millis(50);

fn tcp_to(address: &str, port: u16) -> serde_json::Value {
    json!([{ "cidr": address, "ranges": [["tcp", port, port, true]] }])
}

/// Sends a datagram each millisecond to whoever has sent it one.
struct Pusher {
    is_over: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Pusher {
    fn start(world: &Namespace, address: &'static str, port: u16) -> Self {
        let socket = world.within(|| std::net::UdpSocket::bind((address, port)).expect("bound"));
        socket.set_read_timeout(Some(Duration::from_millis(1))).expect("set");
        let is_over = Arc::new(AtomicBool::new(false));
        let theirs = is_over.clone();
        let thread = std::thread::spawn(move || {
            let (mut buffer, mut peer) = ([0; 64], None);
            while !theirs.load(Ordering::Relaxed) {
                if let Ok((_, from)) = socket.recv_from(&mut buffer) {
                    peer = Some(from);
                }
                if let Some(peer) = peer {
                    let _ = socket.send_to(b"push", peer);
                }
            }
        });
        Self { is_over, thread: Some(thread) }
    }
}

impl Drop for Pusher {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(std::thread::JoinHandle::join);
    }
}

#[test]
fn a_change_cuts_open_flows_in_both_directions_within_50_ms() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let server = Echo::tcp(&host.world, 8080);
    let _pusher = Pusher::start(&host.world, FAR4, 9000);
    let open = json!([{ "cidr": "203.0.113.0/24", "ranges": [["tcp", 8080, 8080, true], ["udp", 9000, 9000, true]] }]);
    let sandbox = host.allowed(open.clone());
    let mut stream = sandbox.namespace.connect(FAR4, 8080).expect("connected");
    let mut buffer = [0; 64];
    stream.write_all(b"before").expect("written");
    assert_eq!(stream.read(&mut buffer).expect("echoed"), 6);
    let pushed = sandbox.namespace.udp(FAR4, 9000);
    pushed.send(b"begin").expect("sent");
    assert!(pushed.recv(&mut buffer).is_ok(), "the world pushes");

    let mut client = host.client();
    let (before, closed) = (server.received(), policy(&sandbox.id, json!([]), json!({})));
    let begun = Instant::now();
    let set = client.call("policy.set", &closed).expect("set");
    let took = begun.elapsed();
    assert!(took < PROMPT, "{took:?}");
    assert!(set["micros"].as_u64().is_some_and(|micros| micros < PROMPT.as_micros() as u64), "{set}");
    // What came until then waits in the socket.
    pushed.set_nonblocking(true).expect("set");
    while pushed.recv(&mut buffer).is_ok() {}
    let until = Instant::now() + Duration::from_millis(100);
    while Instant::now() < until {
        assert!(pushed.recv(&mut buffer).is_err(), "a datagram came in after the change");
    }
    let _ = stream.write_all(b"after");
    match stream.read(&mut buffer) {
        Ok(length) => assert_eq!(length, 0, "nothing comes"),
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset, "programs hear of it at once"),
    }
    assert_eq!(server.received(), before, "nothing went out");
    assert!(host.denied(&sandbox, "default") > 0 && host.denied(&sandbox, "inbound") > 0);

    host.set(&sandbox, open, json!({}));
    pushed.set_nonblocking(false).expect("set");
    assert!(pushed.recv(&mut buffer).is_ok(), "what is allowed again goes on");
    drop(sandbox);
    host.finish();
}

#[test]
fn eight_thousand_rules_are_held_to_and_shared() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _server = Echo::tcp(&host.world, 8080);
    let denied =
        |n: u32| json!({ "cidr": format!("10.{}.{}.0/24", n >> 8, n & 255), "ranges": [["tcp", 0, 65_535, false]] });
    let mut rules: Vec<serde_json::Value> = (0..8_190).map(denied).collect();
    rules.push(tcp_to("203.0.113.0/24", 8080)[0].clone());
    rules.push(json!({ "cidr": "10.0.0.0/8", "ranges": [["tcp", 8080, 8080, true]] }));
    let rules = json!(rules);
    let (one, other) = (host.uplinked(), host.uplinked());
    let first = host.set(&one, rules.clone(), json!({}));
    let second = host.set(&other, rules.clone(), json!({}));
    eprintln!("8,192 rules: {} us, the same again: {} us", first["micros"], second["micros"]);
    assert!(first["micros"].as_u64() < Some(2_000_000), "{first}");
    assert!(second["micros"].as_u64() < Some(50_000), "{second}");
    let info = host.ok("node.info", &json!({}));
    assert_eq!((info["rulesets"].as_u64(), info["rules"].as_u64()), (Some(1), Some(8_192)));
    for sandbox in [&one, &other] {
        assert!(sandbox.namespace.reaches(FAR4, 8080));
        assert!(!sandbox.namespace.reaches(PRIVATE4, 8080), "10.1.2.3 is in a denied /24");
    }
    let mut many = rules.as_array().cloned().expect("rules");
    many.push(denied(9_000));
    let failure = host.refusal("policy.set", &policy(&one.id, json!(many), json!({})));
    assert_eq!(failure["details"]["field"], "rules");
    assert!(one.namespace.reaches(FAR4, 8080), "the last good policy holds");
    host.set(&one, json!([]), json!({}));
    assert!(!one.namespace.reaches(FAR4, 8080));
    assert!(other.namespace.reaches(FAR4, 8080));
    host.set(&other, tcp_to(OTHER4, 8080), json!({}));
    wait_for("rules that nobody has to go", || host.ok("node.info", &json!({}))["rules"] == 1);
    drop((one, other));
    host.finish();
}

#[test]
fn policies_hold_while_egressd_is_killed_and_the_next_one_goes_on() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    let _server = Echo::tcp(&host.world, 8080);
    let (sandbox, doomed) = (host.allowed(tcp_to(FAR4, 8080)), host.allowed(tcp_to(FAR4, 8080)));
    let closed = host.uplinked();
    let mut stream = sandbox.namespace.connect(FAR4, 8080).expect("connected");
    let before = host.ok("uplink.list", &json!({}));
    assert_eq!(before["uplinks"].as_array().map(Vec::len), Some(3));
    host.kill();
    let mut buffer = [0; 64];
    stream.write_all(b"still").expect("written");
    assert_eq!(stream.read(&mut buffer).expect("echoed"), 5);
    assert!(sandbox.namespace.reaches(FAR4, 8080), "new flows too");
    assert!(!sandbox.namespace.reaches(OTHER4, 8080) && !closed.namespace.reaches(FAR4, 8080));
    doomed.destroy();
    wait_for("the device to go", || host.devices().len() == 2);

    host.launch();
    let after = host.ok("uplink.list", &json!({}));
    let kept: Vec<_> = before["uplinks"].as_array().expect("a list").iter().filter(|it| it["id"] != "s1").collect();
    assert_eq!(after["uplinks"].as_array().expect("a list").iter().collect::<Vec<_>>(), kept);
    assert!(host.log().contains(r#""replaced":2"#), "{}", host.log());
    stream.write_all(b"again").expect("written");
    assert_eq!(stream.read(&mut buffer).expect("echoed"), 5);
    assert!(!closed.namespace.reaches(FAR4, 8080));
    host.set(&closed, tcp_to(FAR4, 8080), json!({}));
    let set = host.set(&sandbox, tcp_to(OTHER4, 8080), json!({}));
    assert!(set["generation"].as_u64() > before["uplinks"][1]["generation"].as_u64(), "generations go on");
    assert!(!sandbox.namespace.reaches(FAR4, 8080) && sandbox.namespace.reaches(OTHER4, 8080));
    assert!(closed.namespace.reaches(FAR4, 8080));
    host.ok("uplink.close", &json!({ "id": closed.id }));
    // A socket keeps its namespace.
    drop((sandbox, closed, stream));
    wait_for("the devices to go", || host.devices().is_empty());
    host.finish();
}

#[test]
fn maps_of_another_form_are_not_read() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    let sandbox = host.allowed(tcp_to(FAR4, 8080));
    host.kill();
    let path = host.data.join("run/egress/network.json");
    let text = std::fs::read_to_string(&path).expect("network.json");
    std::fs::write(&path, text.replace(&format!(r#""layout":{LAYOUT}"#), r#""layout":0"#)).expect("written");
    host.launch();
    assert_eq!(host.ok("uplink.list", &json!({})), json!({ "uplinks": [] }));
    assert_eq!(host.devices(), Vec::<String>::new(), "closed rather than guessed");
    host.ok("uplink.open", &json!({ "id": sandbox.id }));
    drop(sandbox);
    host.finish();
}

#[test]
fn an_uplink_goes_with_its_sandbox() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let sandboxes: Vec<Sandbox> = (0..5).map(|_| host.allowed(tcp_to(FAR4, 8080))).collect();
    assert_eq!(host.devices().len(), 5);
    drop(sandboxes);
    wait_for("the uplinks to go", || {
        host.ok("uplink.list", &json!({}))["uplinks"].as_array().is_some_and(Vec::is_empty)
    });
    assert_eq!(host.devices().len(), 0);
    wait_for("their rules to go", || host.ok("node.info", &json!({}))["rules"] == 0);
    let next = host.sandbox();
    let opened = host.ok("uplink.open", &json!({ "id": next.id }));
    assert_eq!(opened["address4"], "198.18.0.7", "addresses that became free come last");
    drop(next);
    host.finish();
}

#[test]
fn servers_on_one_host_have_parts_of_their_own() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let other = host.beside(&[]);
    let (here, there) =
        (host.allowed(json!([{ "cidr": "0.0.0.0/0", "ranges": [["tcp", 0, 65_535, true]] }])), other.uplinked());
    other.set(&there, json!([]), flags(&["public"]));
    assert_eq!(other.ok("node.info", &json!({}))["address4"], "198.18.16.1");
    let _servers = [Echo::tcp(&here.namespace, 8080), Echo::tcp(&there.namespace, 8080), Echo::tcp(&host.world, 8080)];
    assert!(here.namespace.reaches(FAR4, 8080) && there.namespace.reaches(FAR4, 8080));
    assert!(!here.namespace.reaches("198.18.16.2", 8080) && !there.namespace.reaches("198.18.0.2", 8080));
    let second = host.command("serve").output().expect("egressd");
    assert!(!second.status.success(), "one egressd for each data directory");
    drop((here, there));
    other.finish_beside();
    host.finish();
}

#[test]
fn a_sandbox_that_is_made_has_its_policy_before_it_is_there() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    let _server = Echo::tcp(&host.world, 8080);
    let open = |id: &str, wait_ms: u64| {
        let mut params = policy(id, tcp_to(FAR4, 8080), json!({}));
        params["open"] = json!({ "waitMs": wait_ms });
        params
    };
    let listed = |host: &Host| host.ok("uplink.list", &json!({}))["uplinks"].clone();
    for wait_ms in [0, 1] {
        assert_eq!(host.refusal("policy.set", &open("s0", wait_ms))["code"], "sandbox_not_found");
    }
    assert_eq!(listed(&host), json!([]), "nothing is kept for one that does not come");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| host.client().call("policy.set", &open("s0", 60_000)));
        wait_for("the uplink that is kept", || listed(&host)[0]["id"] == "s0");
        assert_eq!(host.devices(), Vec::<String>::new());
        assert_eq!(host.refusal("policy.set", &open("s0", 9))["code"], "sandbox_not_ready");
        let sandbox = host.sandbox();
        let set = waiting.join().expect("joined").expect("set");
        assert_eq!(set["address4"], listed(&host)[0]["address4"]);
        assert_eq!(set["generation"], listed(&host)[0]["generation"]);
        assert!(sandbox.namespace.reaches(FAR4, 8080) && !sandbox.namespace.reaches(FAR4, 8081));
        host.ok("uplink.close", &json!({ "id": sandbox.id, "isOver": true }));
        assert_eq!(listed(&host), json!([]));
        assert!(!sandbox.namespace.reaches(FAR4, 8080));
        let waiting = scope.spawn(|| host.client().call("policy.set", &open("late", 60_000)));
        wait_for("the uplink that is kept", || listed(&host)[0]["id"] == "late");
        host.ok("uplink.close", &json!({ "id": "late" }));
        assert_eq!(waiting.join().expect("joined").expect_err("closed")["code"], "sandbox_not_found");
        assert_eq!(listed(&host), json!([]));
        sandbox.destroy();
    });
    wait_for("the device goes with its sandbox, or by itself", || host.devices().is_empty());
    let open_ones = [host.uplinked(), host.uplinked(), host.uplinked()];
    for sandbox in &open_ones {
        host.ok("uplink.close", &json!({ "id": sandbox.id, "isOver": true }));
    }
    host.stop();
    assert_eq!(host.devices(), Vec::<String>::new(), "its end waits for what is to go");
    drop(open_ones);
    host.finish();
}
