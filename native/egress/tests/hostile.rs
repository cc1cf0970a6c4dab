//! A sandbox whose root has every power over its own network: it writes frames as it likes.

mod common;

use std::net::IpAddr;
use std::time::{Duration, Instant};

use common::packet::{self, SYN, Wire, ethernet, icmp, kind_of, tcp, udp};
use common::servers::Echo;
use common::*;
use serde_json::json;

const BROADCAST: [u8; 6] = [0xff; 6];
/// Slot 0 of server 0: the host's end, and the sandbox's.
const OUTSIDE: [u8; 6] = [0x02, 0x64, 0, 0, 0, 0];
const INSIDE: [u8; 6] = [0x02, 0x64, 1, 0, 0, 0];
const OWN4: &str = "198.18.0.2";
const OWN6: &str = "fd64:7365:6300::2";
const NEIGHBOUR4: &str = "198.18.0.3";
const NEIGHBOUR6: &str = "fd64:7365:6300::3";

fn ip(text: &str) -> IpAddr {
    text.parse().expect(text)
}

struct Scene {
    host: Host,
    attacker: Sandbox,
    victim: Sandbox,
    wire: Wire,
    /// What comes to the victim, and what leaves for the world.
    at_victim: Wire,
    at_world: Wire,
}

impl Scene {
    /// Both may reach everything that anybody may.
    fn new() -> Self {
        let host = Host::start(&[]);
        let everything = json!([
            { "cidr": "0.0.0.0/0", "ranges": [["tcp", 0, 65_535, true], ["udp", 0, 65_535, true], ["icmp", 0, 0, true]] },
            { "cidr": "::/0", "ranges": [["tcp", 0, 65_535, true], ["udp", 0, 65_535, true], ["icmp", 0, 0, true]] },
        ]);
        let (attacker, victim) = (host.uplinked(), host.uplinked());
        for sandbox in [&attacker, &victim] {
            host.set(sandbox, everything.clone(), flags(&["public", "resolver"]));
        }
        let wire = attacker.namespace.within(|| Wire::open("eth0"));
        let at_victim = victim.namespace.within(|| Wire::open("eth0"));
        let at_world = host.world.within(|| Wire::open("down0"));
        Self { host, attacker, victim, wire, at_victim, at_world }
    }

    fn send(&self, packet: &[u8]) {
        let kind = if packet[0] >> 4 == 4 { 0x0800 } else { 0x86dd };
        self.wire.send(&ethernet(OUTSIDE, INSIDE, kind, packet));
    }

    /// Sends an honest packet last and waits until the world has it: what came before has arrived by then, or never will.
    fn arrived(&self) -> (Vec<Vec<u8>>, Vec<Vec<u8>>) {
        const LAST: &[u8] = b"the last of them";
        let mut world = Vec::new();
        let until = Instant::now() + Duration::from_secs(10);
        loop {
            self.send(&udp((ip(OWN4), 4_999), (ip(WORLD4), 4_999), LAST));
            std::thread::sleep(Duration::from_millis(20));
            world.extend(self.at_world.received());
            let is_last = |frame: &Vec<u8>| frame.windows(LAST.len()).any(|bytes| bytes == LAST);
            if world.iter().any(is_last) {
                world.retain(|frame| !is_last(frame));
                return (world, self.at_victim.received());
            }
            assert!(Instant::now() < until, "an honest packet passes");
        }
    }

    /// Nothing of these reaches anybody: they carry what nothing else does.
    fn assert_nothing_arrives(&self, what: &str, packets: &[Vec<u8>]) {
        self.arrived();
        packets.iter().for_each(|packet| self.send(packet));
        let (world, victim) = self.arrived();
        let is_theirs = |frame: &&Vec<u8>| frame.windows(MARK.len()).any(|bytes| bytes == MARK);
        assert_eq!(world.iter().find(is_theirs), None, "{what} reached the world");
        assert_eq!(victim.iter().find(is_theirs), None, "{what} reached a neighbour");
    }

    fn finish(self) {
        let Self { host, attacker, victim, wire, at_victim, at_world } = self;
        drop((attacker, victim, wire, at_victim, at_world));
        host.finish();
    }
}

const MARK: &[u8] = b"evil";

#[test]
fn sources_are_the_sandboxs_own() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    let spoofed = ["198.18.0.3", "198.18.0.1", HOST4, FAR4, "127.0.0.1", "0.0.0.0", "255.255.255.255", "169.254.1.1"];
    let mut packets: Vec<Vec<u8>> = spoofed.iter().map(|source| udp((ip(source), 1), (ip(WORLD4), 2), MARK)).collect();
    let spoofed = [NEIGHBOUR6, "fd64:7365:6300::1", HOST6, "::", "::1", "fe80::1", "::ffff:198.18.0.2"];
    packets.extend(spoofed.iter().map(|source| udp((ip(source), 1), (ip("2001:db8:1::2"), 2), MARK)));
    scene.assert_nothing_arrives("a forged source", &packets);
    assert!(scene.host.denied(&scene.attacker, "source") >= packets.len() as u64 - 1);
    scene.finish();
}

#[test]
fn sandboxes_do_not_reach_each_other_or_the_host() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    let _server = Echo::tcp(&scene.victim.namespace, 8080);
    let on_host = Echo::udp(&scene.host.namespace, HOST4, 9000);
    for address in [NEIGHBOUR4, NEIGHBOUR6] {
        assert!(!scene.attacker.namespace.reaches(address, 8080), "{address}");
        assert!(!scene.attacker.namespace.pings(address), "{address}");
    }
    assert!(!scene.attacker.namespace.reaches_udp(HOST4, 9000));
    let to4 = [NEIGHBOUR4, "198.18.255.255", "198.18.0.255", HOST4, "127.0.0.1", "224.0.0.1", "255.255.255.255"];
    let mut packets: Vec<Vec<u8>> = to4.iter().map(|to| udp((ip(OWN4), 1), (ip(to), 9000), MARK)).collect();
    let to6 = [NEIGHBOUR6, HOST6, "::1", "ff02::1", "ff05::2", "fe80::1", "::ffff:198.18.0.3", "64:ff9b::c612:3"];
    packets.extend(to6.iter().map(|to| udp((ip(OWN6), 1), (ip(to), 9000), MARK)));
    // As if it were part of a flow of the victim's.
    packets.push(tcp((ip(OWN4), 443), (ip(NEIGHBOUR4), 40_000), packet::ACK, MARK));
    scene.assert_nothing_arrives("a packet for a neighbour or the host", &packets);
    assert_eq!(on_host.received(), 0);
    // The neighbour's own address of a device, at the attacker's end of the wire.
    let direct = udp((ip(OWN4), 1), (ip(NEIGHBOUR4), 2), MARK);
    scene.wire.send(&ethernet([0x02, 0x64, 1, 0, 0, 1], INSIDE, 0x0800, &direct));
    scene.wire.send(&ethernet(BROADCAST, INSIDE, 0x0800, &direct));
    scene.assert_nothing_arrives("a frame for a neighbour", &[]);
    scene.finish();
}

#[test]
fn nobody_is_told_who_has_an_address_or_knows_a_way() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    let neighbours = |scene: &Scene| {
        let shown = scene.host.namespace.ip("neigh");
        let mut lines: Vec<String> = shown.lines().filter(|line| line.contains("dsec")).map(str::to_owned).collect();
        lines.sort();
        (lines, scene.host.namespace.ip("-6 route"), scene.host.namespace.ip("-4 route"))
    };
    let before = neighbours(&scene);
    assert!(before.0.iter().all(|line| line.contains("PERMANENT")), "{:?}", before.0);
    let own: [u8; 4] = [198, 18, 0, 2];
    for claimed in [[198, 18, 0, 3], [198, 18, 0, 1], [198, 51, 100, 2]] {
        for operation in [1u8, 2] {
            let arp = [
                &[0, 1, 8, 0, 6, 4, 0, operation][..],
                &INSIDE,
                &claimed,
                &[0; 6],
                if operation == 1 { &own } else { &claimed },
                &[0; 18],
            ]
            .concat();
            scene.wire.send(&ethernet(BROADCAST, INSIDE, 0x0806, &arp));
        }
    }
    // Router and neighbour advertisements, a redirect, with every source that it could try.
    let advertisement =
        [&[64, 0, 0x07, 8, 0, 0, 0, 0, 0, 0, 0, 0][..], &[3, 4, 64, 0xc0, 0, 1, 0, 0], &[0; 24]].concat();
    let mut packets = Vec::new();
    for source in ["fe80::64:ff:fe00:0", OWN6, "fd64:7365:6300::1"] {
        for target in ["ff02::1", "fd64:7365:6300::1", HOST6] {
            for kind in [134, 136, 137] {
                packets.push(icmp(ip(source), ip(target), kind, 0, &advertisement));
            }
        }
    }
    // A redirect of IPv4: the way to the world goes by the sandbox.
    let inner = udp((ip(HOST4), 1), (ip(FAR4), 2), MARK);
    for source in [OWN4, "198.18.0.1", WORLD4] {
        let redirect = [&[198, 18, 0, 2][..], &inner[..28]].concat();
        packets.push(icmp(ip(source), ip(HOST4), 5, 1, &redirect));
        packets.push(icmp(ip(source), ip("198.18.0.1"), 5, 1, &redirect));
    }
    packets.iter().for_each(|packet| scene.send(packet));
    scene.assert_nothing_arrives("an advertisement", &[]);
    assert_eq!(neighbours(&scene), before, "the host has learned nothing");
    assert_eq!(
        scene.wire.received().iter().filter(|frame| frame[12..14] == [8, 6] && frame[6..12] == OUTSIDE).count(),
        0,
        "no answer"
    );
    assert!(scene.host.denied(&scene.attacker, "not-ip") >= 6);
    scene.finish();
}

#[test]
fn parts_options_and_disguises_do_not_pass() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    let whole = udp((ip(OWN4), 1), (ip(WORLD4), 2), &[MARK, &[0; 60]].concat());
    let refit = |mut packet: Vec<u8>| {
        packet[10..12].fill(0);
        let length = usize::from(packet[0] & 0xf) * 4;
        let sum = packet::checksum(&packet[..length]);
        packet[10..12].copy_from_slice(&sum.to_be_bytes());
        packet
    };
    let mut packets = Vec::new();
    for fragment in [0x2000u16, 0x2001, 0x0001, 0x1fff, 0x8000] {
        let mut part = whole.clone();
        part[6..8].copy_from_slice(&fragment.to_be_bytes());
        packets.push(refit(part));
    }
    // Record route, strict and loose source routes.
    for option in [7u8, 0x89, 0x83] {
        let mut routed = whole.clone();
        routed.splice(20..20, [option, 7, 4, 203, 0, 113, 7, 0]);
        routed[0] = 0x47;
        let length = routed.len() as u16;
        routed[2..4].copy_from_slice(&length.to_be_bytes());
        packets.push(refit(routed));
    }
    let six = udp((ip(OWN6), 1), (ip("2001:db8:1::2"), 2), &[MARK, &[0; 60]].concat());
    for (kind, header) in [
        (0u8, [17, 0, 1, 4, 0, 0, 0, 0]),
        (43, [17, 0, 0, 0, 0, 0, 0, 0]),
        (44, [17, 0, 0, 1, 0, 0, 0, 9]),
        (44, [17, 0, 0, 0, 0, 0, 0, 9]),
        (60, [17, 0, 1, 4, 0, 0, 0, 0]),
    ] {
        let mut extended = six.clone();
        extended[6] = kind;
        extended.splice(40..40, header);
        let length = (extended.len() - 40) as u16;
        extended[4..6].copy_from_slice(&length.to_be_bytes());
        packets.push(extended);
    }
    // IPv4 in IPv4, IPv6 in IPv4, GRE, ESP, SCTP, and what has no name.
    for protocol in [4, 41, 47, 50, 132, 253] {
        packets.push(packet::ip(ip(OWN4), ip(WORLD4), protocol, &[MARK, &[0; 40]].concat()));
    }
    for kind in [0, 3, 4, 5, 9, 13, 17] {
        packets.push(icmp(ip(OWN4), ip(WORLD4), kind, 0, &[&[0; 4], MARK, &[0; 40]].concat()));
    }
    scene.assert_nothing_arrives("a disguise", &packets);
    // The same, tagged for a network within the network.
    let tagged = [&[0, 5, 8, 0][..], &whole].concat();
    scene.wire.send(&ethernet(OUTSIDE, INSIDE, 0x8100, &tagged));
    scene.wire.send(&ethernet(OUTSIDE, INSIDE, 0x88a8, &tagged));
    scene.assert_nothing_arrives("a tagged frame", &[]);
    assert!(scene.host.denied(&scene.attacker, "fragment") >= 6);
    assert!(scene.host.denied(&scene.attacker, "header") >= 6);
    scene.finish();
}

#[test]
fn nothing_comes_in_that_was_not_asked_for() {
    if !is_possible() {
        return;
    }
    let scene = Scene::new();
    scene.host.world.ip("route add 198.18.0.0/15 via 198.51.100.1");
    let at_attacker = scene.attacker.namespace.within(|| Wire::open("eth0"));
    at_attacker.received();
    let up: [u8; 6] = {
        let shown = scene.host.namespace.ip("-o link show up0");
        let text =
            shown.split("link/ether ").nth(1).and_then(|rest| rest.split(' ').next()).expect("an address").to_owned();
        let octets: Vec<u8> = text.split(':').map(|octet| u8::from_str_radix(octet, 16).expect("hex")).collect();
        octets.try_into().expect("six")
    };
    for packet in [
        udp((ip(WORLD4), 53), (ip(OWN4), 4_000), MARK),
        tcp((ip(WORLD4), 443), (ip(OWN4), 4_000), SYN, MARK),
        tcp((ip(FAR4), 443), (ip(OWN4), 4_000), packet::ACK, MARK),
        udp((ip("198.18.0.1"), 53), (ip(OWN4), 4_000), MARK),
        udp((ip(NEIGHBOUR4), 53), (ip(OWN4), 4_000), MARK),
        icmp(ip(WORLD4), ip(OWN4), 8, 0, MARK),
        icmp(ip(WORLD4), ip(OWN4), 5, 1, MARK),
        udp((ip(FAR6), 53), (ip(OWN6), 4_000), MARK),
        udp((ip(WORLD4), 1), (ip("198.18.0.1"), 53), MARK),
    ] {
        let kind = kind_of(if packet[0] >> 4 == 4 { ip(OWN4) } else { ip(OWN6) });
        scene.at_world.send(&ethernet(up, [2, 0, 0, 0, 0, 9], kind, &packet));
    }
    scene.arrived();
    let frames = at_attacker.received();
    let theirs = frames.iter().find(|frame| frame.windows(MARK.len()).any(|bytes| bytes == MARK));
    assert_eq!(theirs, None, "{theirs:02x?}");
    drop(at_attacker);
    scene.finish();
}

#[test]
fn floods_are_bounded() {
    if !is_possible() {
        return;
    }
    let host = Host::start(&["--max-flows", "32"]);
    let everything = json!([{ "cidr": "0.0.0.0/0", "ranges": [["udp", 0, 65_535, true]] }]);
    let (sandbox, other) = (host.allowed(everything.clone()), host.allowed(everything));
    let _server = Echo::udp(&host.world, FAR4, 9000);
    let mut client = host.client();
    let events = client.open("events", &json!({}));
    client.call("node.info", &json!({})).expect("answered after it");
    let wire = sandbox.namespace.within(|| Wire::open("eth0"));
    for n in 0..3_000u16 {
        wire.send(&ethernet(OUTSIDE, INSIDE, 0x0800, &udp((ip(OWN4), 10_000 + n), (ip(WORLD4), 2), MARK)));
        wire.send(&ethernet(OUTSIDE, INSIDE, 0x0800, &tcp((ip(OWN4), 10_000 + n), (ip(FAR4), 443), SYN, &[])));
    }
    let begun = Instant::now();
    let (mut told, mut counted) = (0, 0);
    let mut shown = None;
    while let Some(message) = client.message(events, Duration::from_millis(500)) {
        told += 1;
        counted += message["denied"]["count"].as_u64().expect("a count");
        shown = Some(message["denied"].clone());
    }
    let seconds = begun.elapsed().as_secs() + 6;
    let shown = shown.expect("denials are told");
    assert_eq!((shown["id"].as_str(), shown["reason"].as_str()), (Some(&*sandbox.id), Some("default")));
    assert_eq!(
        (shown["protocol"].as_str(), shown["address"].as_str(), shown["port"].as_u64()),
        (Some("tcp"), Some(FAR4), Some(443))
    );
    assert!((1..=16 * seconds).contains(&told), "{told} told");
    assert!(counted <= 3_000 && host.denied(&sandbox, "default") == 3_000, "all are counted");
    let flows = host.namespace.command("cat").arg("/proc/net/nf_conntrack").output().expect("cat");
    let flows = String::from_utf8_lossy(&flows.stdout).lines().filter(|line| line.contains("src=198.18.0.2 ")).count();
    assert!(flows <= 33, "{flows} flows of one sandbox are kept in mind");
    assert!(other.namespace.reaches_udp(FAR4, 9000), "a neighbour's are its own");
    drop((sandbox, other, wire));
    host.finish();
}

#[test]
fn the_resolver_is_asked_at_a_bounded_rate() {
    if !is_possible() {
        return;
    }
    const MANY: u16 = 8_000;
    let host = Host::start(&[]);
    let (sandbox, other) = (host.uplinked(), host.uplinked());
    host.set(&sandbox, json!([]), flags(&["resolver"]));
    host.set(&other, json!([]), flags(&["resolver"]));
    let resolver = Echo::udp(&host.namespace, "198.18.0.1", 53);
    let wire = sandbox.namespace.within(|| Wire::open("eth0"));
    let begun = Instant::now();
    for n in 0..MANY {
        wire.send(&ethernet(OUTSIDE, INSIDE, 0x0800, &udp((ip(OWN4), 10_000 + n), (ip("198.18.0.1"), 53), MARK)));
    }
    let seconds = begun.elapsed().as_secs() + 2;
    assert!(other.namespace.reaches_udp("198.18.0.1", 53), "a neighbour is answered");
    let asked = resolver.received() / MARK.len() as u64;
    assert!((1..=1_000 * (seconds + 1)).contains(&asked), "{asked} in {seconds} s");
    let counters = host.ok("counters", &json!({ "id": sandbox.id }));
    assert!(counters["sentPackets"].as_u64() >= Some(u64::from(MANY)), "the programs let them pass");
    drop((sandbox, other, wire));
    host.finish();
}
