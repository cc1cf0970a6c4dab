//! What a policy opens, and what none does.

mod common;

use common::servers::Echo;
use common::*;
use serde_json::json;

fn all_of(protocol: &str) -> serde_json::Value {
    json!([[protocol, 0, 65_535, true]])
}

#[test]
fn nothing_passes_before_a_policy_allows_it() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _server = Echo::tcp(&host.world, 8080);
    assert!(host.namespace.reaches(FAR4, 8080), "the host reaches the world");
    let sandbox = host.sandbox();
    assert_eq!(sandbox.namespace.ip("-o link").lines().count(), 1, "no device but loopback");
    let opened = host.ok("uplink.open", &json!({ "id": sandbox.id }));
    assert_eq!(opened["generation"], 0);
    assert_eq!(opened["address4"], "198.18.0.2");
    assert_eq!(host.ok("uplink.open", &json!({ "id": sandbox.id })), opened, "idempotent");
    for address in [FAR4, HOST4, "198.18.0.1", FAR6] {
        assert!(!sandbox.namespace.reaches(address, 8080), "{address}");
    }
    assert!(host.denied(&sandbox, "closed") > 0);
    let set = host.set(&sandbox, json!([]), json!({}));
    assert!(set["generation"].as_u64() > Some(0));
    assert!(!sandbox.namespace.reaches(FAR4, 8080), "a policy without rules");
    assert_eq!(
        sandbox.namespace.connect(FAR4, 8080).expect_err("refused").kind(),
        std::io::ErrorKind::ConnectionRefused
    );
    assert!(host.denied(&sandbox, "default") > 0);
    assert_eq!(host.ok("uplink.close", &json!({ "id": sandbox.id })), json!({}));
    assert_eq!(sandbox.namespace.ip("-o link").lines().count(), 1, "the device is gone");
    assert_eq!(host.ok("uplink.close", &json!({ "id": sandbox.id })), json!({}), "idempotent");
    host.ok("uplink.open", &json!({ "id": sandbox.id }));
    host.ok("uplink.close", &json!({ "id": sandbox.id }));
    drop(sandbox);
    host.finish();
}

#[test]
fn rules_open_addresses_ports_and_protocols() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _servers = [Echo::tcp(&host.world, 8080), Echo::tcp(&host.world, 8081)];
    let _udp =
        [Echo::udp(&host.world, FAR4, 9000), Echo::udp(&host.world, FAR6, 9000), Echo::udp(&host.world, OTHER4, 9000)];
    let sandbox = host.allowed(json!([
        { "cidr": "203.0.113.0/29", "ranges": [["tcp", 8080, 8080, true], ["udp", 9000, 9000, true]] },
        { "cidr": "2001:db8:2::/48", "ranges": [["udp", 9000, 9001, true], ["tcp", 8080, 8080, true]] },
        { "cidr": PRIVATE4, "ranges": [["tcp", 8000, 8100, true]] },
    ]));
    let inside = &sandbox.namespace;
    assert!(inside.reaches(FAR4, 8080));
    assert!(inside.reaches(FAR6, 8080));
    assert!(inside.reaches_udp(FAR4, 9000));
    assert!(inside.reaches_udp(FAR6, 9000));
    assert!(inside.reaches(PRIVATE4, 8081), "a rule may name private addresses");
    assert!(!inside.reaches(FAR4, 8081), "another port");
    assert!(!inside.reaches(OTHER4, 8080), "another address");
    assert!(!inside.reaches_udp(OTHER4, 9000));
    assert!(!inside.reaches(WORLD4, 8080));
    assert!(!inside.pings(FAR4) && !inside.pings(FAR6), "another protocol");
    let counters = host.ok("counters", &json!({ "id": sandbox.id }));
    for name in ["sentPackets", "sentBytes", "receivedPackets", "receivedBytes"] {
        assert!(counters[name].as_u64() > Some(0), "{name}");
    }

    host.set(&sandbox, json!([{ "cidr": "0.0.0.0/0", "ranges": [["icmp", 0, 0, true]] }, { "cidr": "::/0", "ranges": [["icmp", 0, 0, true]] }]), json!({}));
    assert!(inside.pings(FAR4) && inside.pings(FAR6));
    assert!(!inside.reaches(FAR4, 8080), "only what is allowed now");
    assert!(!inside.pings(HOST4) && !inside.pings(METADATA4), "never");
    drop(sandbox);
    host.finish();
}

#[test]
fn the_first_range_and_the_longest_prefix_decide() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _servers = [Echo::tcp(&host.world, 8080), Echo::tcp(&host.world, 8081)];
    let sandbox = host.allowed(json!([
        { "cidr": "203.0.113.0/24", "ranges": [["tcp", 8081, 8081, false], ["tcp", 0, 65_535, true]] },
        { "cidr": OTHER4, "ranges": [["tcp", 8080, 8080, false], ["tcp", 8081, 8081, false], ["tcp", 0, 65_535, true]] },
    ]));
    let inside = &sandbox.namespace;
    assert!(inside.reaches(FAR4, 8080));
    assert!(!inside.reaches(FAR4, 8081), "denied first");
    assert!(!inside.reaches(OTHER4, 8080), "the longer prefix has its own");
    assert!(host.denied(&sandbox, "rule") > 0);
    host.set(&sandbox, json!([{ "cidr": FAR4, "ranges": [["tcp", 8080, 8080, false]] }]), flags(&["public"]));
    assert!(!inside.reaches(FAR4, 8080), "a denial holds in public mode");
    assert!(inside.reaches(OTHER4, 8080));
    drop(sandbox);
    host.finish();
}

#[test]
fn some_addresses_are_never_reached() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _server = Echo::tcp(&host.world, 8080);
    let _on_host = Echo::tcp(&host.namespace, 8080);
    for address in [METADATA4, METADATA6, PRIVATE4, PRIVATE6] {
        assert!(host.namespace.reaches(address, 8080), "the host itself reaches {address}");
    }
    let public = host.uplinked();
    host.set(&public, json!([]), flags(&["public", "resolver", "services", "names"]));
    let everything = json!([
        { "cidr": "0.0.0.0/0", "ranges": all_of("tcp") },
        { "cidr": "::/0", "ranges": all_of("tcp") },
    ]);
    let everywhere = host.uplinked();
    host.set(&everywhere, everything, flags(&["public"]));
    let neighbour4 = "198.18.0.3";
    for (sandbox, is_private_open) in [(&public, false), (&everywhere, true)] {
        let inside = &sandbox.namespace;
        assert!(inside.reaches(FAR4, 8080) && inside.reaches(FAR6, 8080), "{}", host.log());
        for address in [METADATA4, METADATA6, HOST4, HOST6, "198.18.0.1", "fd64:7365:6300::1", neighbour4, "127.0.0.2"]
        {
            assert!(!inside.reaches(address, 8080), "{address}");
        }
        for address in [PRIVATE4, PRIVATE6] {
            assert_eq!(inside.reaches(address, 8080), is_private_open, "{address}");
        }
    }
    assert!(host.denied(&public, "never") > 0);
    assert!(host.denied(&public, "host") > 0, "the gateway's other ports");
    drop((public, everywhere));
    host.finish();
}

#[test]
fn the_resolver_and_services_are_reached_when_the_policy_has_them() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&[]);
    let _dns = [Echo::udp(&host.namespace, "198.18.0.1", 53), Echo::udp(&host.namespace, "fd64:7365:6300::1", 53)];
    let _tcp = [Echo::tcp(&host.namespace, 53), Echo::tcp(&host.namespace, 7300), Echo::tcp(&host.namespace, 7400)];
    let sandbox = host.allowed(json!([]));
    let inside = &sandbox.namespace;
    let gateway = "198.18.0.1";
    assert!(!inside.reaches_udp(gateway, 53) && !inside.reaches(gateway, 53) && !inside.reaches(gateway, 7300));
    host.set(&sandbox, json!([]), flags(&["resolver"]));
    assert!(inside.reaches_udp(gateway, 53) && inside.reaches(gateway, 53));
    assert!(inside.reaches_udp("fd64:7365:6300::1", 53));
    assert!(!inside.reaches(gateway, 7300));
    host.set(&sandbox, json!([]), flags(&["services"]));
    assert!(!inside.reaches_udp(gateway, 53));
    assert!(inside.reaches(gateway, 7300) && !inside.reaches(gateway, 7400));
    assert!(!inside.reaches(HOST4, 7300) && !inside.reaches(HOST4, 53), "at the gateway's address alone");
    assert!(!host.namespace.reaches("198.18.0.2", 8080), "programs of the host do not reach in");
    drop(sandbox);
    host.finish();
}

#[test]
fn a_host_without_ipv6_has_the_rest() {
    if !is_possible() {
        return;
    }
    let mut host = Host::start(&[]);
    host.stop();
    for device in ["all", "default"] {
        let setting = format!("/proc/sys/net/ipv6/conf/{device}/disable_ipv6");
        host.namespace.within(|| std::fs::write(setting, "1")).expect("turned off");
    }
    host.launch();
    let _server = Echo::tcp(&host.world, 8080);
    let sandbox = host.allowed(json!([{ "cidr": FAR4, "ranges": [["tcp", 8080, 8080, true]] }]));
    assert!(sandbox.namespace.reaches(FAR4, 8080));
    assert!(!sandbox.namespace.reaches(FAR6, 8080));
    drop(sandbox);
    host.finish();
}

#[test]
fn what_cannot_be_is_refused_with_a_typed_error() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&["--network", "198.18.96.0/28"]);
    let code = |method: &str, params: serde_json::Value| host.refusal(method, &params)["code"].clone();
    assert_eq!(code("uplink.open", json!({ "id": "nobody" })), "sandbox_not_found");
    assert_eq!(code("policy.set", policy("nobody", json!([]), json!({}))), "sandbox_not_found");
    assert_eq!(code("counters", json!({ "id": "nobody" })), "sandbox_not_found");
    assert_eq!(code("uplink.open", json!({ "id": "../x" })), "invalid_argument");
    assert_eq!(code("explode", json!({})), "unknown_method");

    let sandbox = host.sandbox();
    let path = host.data.join("run/launcher").join(format!("{}.json", sandbox.id));
    let good: serde_json::Value = serde_json::from_slice(&std::fs::read(&path).expect("record")).expect("JSON");
    for (member, value, code_wanted) in [
        ("netIdentity", json!(4_026_531_840u64), "sandbox_not_ready"),
        ("netIdentity", json!(null), "sandbox_not_ready"),
        ("pidIdentity", json!(1), "sandbox_not_ready"),
        ("boot", json!("another"), "sandbox_not_found"),
        ("pid", json!(1), "sandbox_not_found"),
    ] {
        let mut bad = good.clone();
        bad[member] = value;
        std::fs::write(&path, bad.to_string()).expect("record");
        assert_eq!(code("uplink.open", json!({ "id": sandbox.id })), code_wanted, "{member}");
    }
    std::fs::write(&path, good.to_string()).expect("record");
    assert_eq!(host.devices(), Vec::<String>::new());

    let all: Vec<Sandbox> = (0..13).map(|_| host.uplinked()).collect();
    let one_more = host.sandbox();
    let failure = host.refusal("uplink.open", &json!({ "id": one_more.id }));
    assert_eq!((failure["code"].as_str(), failure["details"]["limit"].as_u64()), (Some("no_capacity"), Some(13)));
    drop((sandbox, all, one_more));
    wait_for("the devices to go", || host.devices().is_empty());
    host.finish();
}
