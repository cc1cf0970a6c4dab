//! The programs against a model, packet by packet, in the kernel (`BPF_PROG_TEST_RUN`).

mod common;

use std::collections::HashMap;
use std::net::IpAddr;
use std::os::fd::AsFd;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use common::is_possible;
use common::model::{Model, ModelRange, Outcome, reason_index};
use common::packet::{self, ACK, ICMP, RST, SYN, TCP, UDP, ethernet, kind_of};
use egress::block::{Block, NETWORK4, NETWORK6};
use egress::cidr::Cidr;
use egress::kernel::{self, Kernel};
use egress::layout::{
    Counters, FLAG_NAMES, FLAG_PUBLIC, FLAG_RESOLVER, FLAG_SERVICES, MAX_RANGES, Pin, PinKey, PinRange, Plain,
    PolicyWord, Range, Rule, RuleKey, Uplink, address_of, mapped_bits,
};
use egress::pins::boot_ns;
use egress::place::Place;
use egress::sys::Errno;
use egress::sys::bpf;

/// The device of a test run is the loopback device.
const LOOPBACK: u32 = 1;
const SERVICE_PORTS: (u16, u16) = (7_300, 7_399);
const HOUR_NS: u64 = 3_600_000_000_000;

struct Bench {
    kernel: Kernel,
    place: Place,
    block: Block,
    mark: u32,
}

impl Bench {
    fn new(name: &str) -> Self {
        let data = PathBuf::from(format!("/tmp/dsect{}-{name}", std::process::id()));
        std::fs::create_dir_all(&data).expect("data directory");
        let place = Place::open(&data).expect("a place");
        place.mount_pins().expect("a bpffs");
        let kernel = kernel::load(&place.pins()).expect("programs");
        let cidr = |text: &str| Cidr::parse(text).expect(text);
        let block = Block::new(0, cidr(NETWORK4), cidr(NETWORK6));
        let node = egress::layout::Node { first_index: LOOPBACK, ..block.layout(SERVICE_PORTS) };
        kernel.maps.set_node(&node).expect("node");
        let bench = Self { kernel, place, mark: node.mark, block };
        let entry = Uplink {
            address4: match bench.block.address4(0) {
                IpAddr::V4(address) => address.octets(),
                IpAddr::V6(_) => panic!("IPv4"),
            },
            address6: address_of(bench.block.address6(0)),
            ..Uplink::zeroed()
        };
        bench.kernel.maps.uplinks.set(0, &entry);
        bench
    }

    fn model(&self) -> Model {
        Model {
            own: vec![self.block.address4(0), self.block.address6(0)],
            gateways: vec![self.block.gateway4(), self.block.gateway6()],
            networks: vec![self.block.network4, self.block.network6],
            service_ports: SERVICE_PORTS,
            ..Model::default()
        }
    }

    /// Puts in force what a model says, under a number of its own.
    fn enforce(&self, model: &Model, number: u32) {
        for (cidr, ranges) in &model.rules {
            let mut rule = Rule { count: ranges.len() as u16, ..Rule::zeroed() };
            for (to, (protocol, low, high, allow)) in rule.ranges.iter_mut().zip(ranges) {
                *to = Range { low: *low, high: *high, protocol: *protocol, allow: u8::from(*allow) };
            }
            let key = RuleKey::new(number, address_of(cidr.address), mapped_bits(cidr.address, cidr.bits));
            bpf::update(self.kernel.maps.rules.as_fd(), &key, &rule).expect("a rule");
        }
        for (address, ranges) in &model.pins {
            self.pin(number, *address, ranges, boot_ns() + HOUR_NS);
        }
        let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
        let flags = flag(model.resolver, FLAG_RESOLVER)
            | flag(model.services, FLAG_SERVICES)
            | flag(model.names, FLAG_NAMES)
            | flag(model.public, FLAG_PUBLIC);
        let generation = if model.is_closed { 0 } else { number };
        let word = PolicyWord { generation, ruleset: number, flags };
        self.kernel.maps.uplinks.set_first(0, if model.is_closed { 0 } else { word.encode() });
    }

    fn pin(&self, number: u32, address: IpAddr, ranges: &[ModelRange], expires_at: u64) {
        let mut pin = Pin { generation: number, ..Pin::zeroed() };
        for (to, (protocol, low, high, _)) in pin.ranges.iter_mut().zip(ranges) {
            *to = PinRange { expires_at, low: *low, high: *high, protocol: *protocol, unused: [0; 3] };
        }
        let key = PinKey { generation: number, address: address_of(address) };
        bpf::update(self.kernel.maps.pins.as_fd(), &key, &pin).expect("a pin");
    }

    fn outcome(&self, run: (u32, u32)) -> Outcome {
        match run {
            (0, mark) if mark & !0xf == self.mark => Outcome::Pass(mark & 0xf),
            (0, 0) => Outcome::Pass(0),
            (2, _) => Outcome::Drop,
            other => panic!("{other:x?} is no outcome"),
        }
    }

    /// Runs both programs on a frame and compares. False where the kernel refuses to run them.
    fn check(&self, model: &Model, frame: &[u8], mark: u32) -> bool {
        self.kernel.maps.counters.set(0, &Counters::zeroed());
        let run = match bpf::test_run(self.kernel.programs.from_sandbox.as_fd(), frame, 0) {
            Err(Errno::INVAL) => return false,
            other => self.outcome(other.expect("run")),
        };
        let (wanted, reason) = model.sent(frame);
        assert_eq!(run, wanted, "from the sandbox ({reason:?}): {frame:02x?}");
        let counters = self.kernel.maps.counters.get(0);
        let mut denied = [0; egress::layout::REASONS.len()];
        if let Some(reason) = reason {
            denied[reason_index(reason)] = 1;
        }
        assert_eq!(counters.denied, denied, "{reason:?}: {frame:02x?}");
        assert_eq!(counters.sent_packets, u64::from(reason.is_none()));

        let given = if mark == 0 { 0 } else { self.mark | mark };
        let run = bpf::test_run(self.kernel.programs.to_sandbox.as_fd(), frame, given).expect("run");
        assert_eq!(self.outcome(run), model.received(frame, mark), "to the sandbox, mark {mark}: {frame:02x?}");
        true
    }
}

impl Drop for Bench {
    fn drop(&mut self) {
        let removed = self.place.remove_pins();
        let _ = std::fs::remove_dir_all(&self.place.data);
        if !std::thread::panicking() {
            removed.expect("removed");
        }
    }
}

/// xorshift64*.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_F491_4F6C_DD1D)
    }

    fn below(&mut self, bound: usize) -> usize {
        ((self.next() >> 33) as usize) % bound
    }

    fn one_in(&mut self, bound: usize) -> bool {
        self.below(bound) == 0
    }

    fn pick<'a, T>(&mut self, of: &'a [T]) -> &'a T {
        &of[self.below(of.len())]
    }
}

/// Addresses at the edges of what the programs tell apart.
const ADDRESSES: [&str; 68] = [
    "198.18.0.2",
    "198.18.0.2",
    "198.18.0.2",
    "fd64:7365:6300::2",
    "fd64:7365:6300::2",
    "198.18.0.1",
    "198.18.0.1",
    "fd64:7365:6300::1",
    "198.18.0.3",
    "198.19.255.255",
    "198.17.255.255",
    "198.20.0.0",
    "0.0.0.1",
    "1.0.0.0",
    "126.255.255.255",
    "127.0.0.1",
    "128.0.0.0",
    "169.253.255.255",
    "169.254.169.254",
    "169.255.0.0",
    "223.255.255.255",
    "224.0.0.1",
    "239.255.255.255",
    "240.0.0.1",
    "255.255.255.255",
    "10.0.0.1",
    "9.255.255.255",
    "11.0.0.0",
    "172.15.255.255",
    "172.16.0.1",
    "172.31.255.255",
    "172.32.0.0",
    "192.168.1.1",
    "192.169.0.0",
    "100.63.255.255",
    "100.64.0.0",
    "100.100.100.200",
    "100.127.255.255",
    "100.128.0.0",
    "192.0.0.192",
    "192.0.1.0",
    "168.63.129.16",
    "198.51.100.7",
    "203.0.113.7",
    "203.0.113.200",
    "::",
    "::1",
    "::ffff:203.0.113.7",
    "64:ff9b::cb00:7107",
    "64:ff9c::1",
    "2002:cb00:7107::1",
    "2003::1",
    "2001::1",
    "2001:1::1",
    "2001:db8::7",
    "2001:db8:1::9",
    "fe80::1",
    "fec0::1",
    "ff02::1",
    "fd00:ec2::254",
    "fd00:ec3::254",
    "fd20:ce::254",
    "fd00:c1::1",
    "fd12:3456::7",
    "fc00::1",
    "2000::1",
    "3fff::1",
    "4000::1",
];
const PORTS: [u16; 10] = [0, 1, 53, 79, 80, 443, 7_300, 7_399, 7_400, 65_535];

fn ranges(random: &mut Random, most: usize) -> Vec<ModelRange> {
    (0..random.below(most + 1))
        .map(|_| {
            let (a, b) = (*random.pick(&PORTS), *random.pick(&PORTS));
            (*random.pick(&[TCP, UDP, ICMP]), a.min(b), a.max(b), random.one_in(2))
        })
        .collect()
}

fn a_model(bench: &Bench, random: &mut Random) -> Model {
    let mut model = bench.model();
    model.is_closed = random.one_in(30);
    (model.resolver, model.services) = (random.one_in(2), random.one_in(2));
    (model.names, model.public) = (random.one_in(2), random.one_in(3));
    // Requests with mapped addresses are refused.
    let plain: Vec<IpAddr> = ADDRESSES
        .iter()
        .map(|address| address.parse().expect("an address"))
        .filter(|address| !matches!(address, IpAddr::V6(address) if address.to_ipv4_mapped().is_some()))
        .collect();
    for _ in 0..random.below(12) {
        let address = *random.pick(&plain);
        let bits = random.below(egress::cidr::width(address) as usize + 1) as u32;
        let cidr = Cidr { address: Cidr { address, bits }.at(0), bits };
        if model.rules.iter().all(|(other, _)| *other != cidr) {
            model.rules.push((cidr, ranges(random, MAX_RANGES)));
        }
    }
    for _ in 0..random.below(6) {
        let address = *random.pick(&plain);
        let ranges = ranges(random, 4).into_iter().filter(|(protocol, ..)| *protocol != ICMP).collect();
        model.pins.insert(address, ranges);
    }
    model
}

fn transport(random: &mut Random, source: IpAddr, target: IpAddr) -> Vec<u8> {
    let ports = (*random.pick(&PORTS), *random.pick(&PORTS));
    let payload = vec![0x55; *random.pick(&[0, 0, 1, 40])];
    match random.below(8) {
        0..=2 => {
            let flags = *random.pick(&[SYN, SYN | ACK, ACK, RST, RST | ACK, 0, 0xff]);
            packet::tcp((source, ports.0), (target, ports.1), flags, &payload)
        }
        3..=4 => packet::udp((source, ports.0), (target, ports.1), &payload),
        5..=6 => {
            let kind = *random.pick(&[0, 1, 2, 3, 4, 5, 8, 11, 128, 129, 134, 135, 137]);
            packet::icmp(source, target, kind, 0, &[0; 12])
        }
        _ => packet::ip(
            source,
            target,
            *random.pick(&[0, 1, 2, 4, 6, 17, 41, 43, 44, 47, 50, 51, 58, 60, 132]),
            &payload,
        ),
    }
}

fn a_frame(random: &mut Random) -> Vec<u8> {
    let source: IpAddr = random.pick(&ADDRESSES).parse().expect("an address");
    let mut target: IpAddr = random.pick(&ADDRESSES).parse().expect("an address");
    while target.is_ipv4() != source.is_ipv4() && !random.one_in(50) {
        target = random.pick(&ADDRESSES).parse().expect("an address");
    }
    let (from, to) = if random.one_in(2) { (source, target) } else { (target, source) };
    let mut ip = transport(random, from, to);
    if from.is_ipv6() && random.one_in(6) {
        // A header between: fragment, or one that hides what follows.
        let (kind, more) = (*random.pick(&[44, 44, 44, 0, 43, 60]), *random.pick(&[0u16, 1, 8, 9, 0xfff8]));
        let next = std::mem::replace(&mut ip[6], kind);
        let header = [next, 0, (more >> 8) as u8, more as u8, 0, 0, 0, 1];
        ip.splice(40..40, header);
        let length = (ip.len() - 40) as u16;
        ip[4..6].copy_from_slice(&length.to_be_bytes());
    } else if from.is_ipv4() && random.one_in(6) {
        let fragment = *random.pick(&[0x2000u16, 0x2001, 0x0001, 0x1fff, 0x4000, 0x8000]);
        ip[6..8].copy_from_slice(&fragment.to_be_bytes());
    }
    let kind = if random.one_in(40) {
        *random.pick(&[0x0806, 0x8100, 0x88a8, 0, 0x05dc, 0x86dd, 0x0800])
    } else {
        kind_of(from)
    };
    let mut frame = ethernet([0; 6], [2, 0, 0, 0, 0, 1], kind, &ip);
    if random.one_in(4) {
        for _ in 0..=random.below(3) {
            let at = 12 + random.below(frame.len() - 12);
            frame[at] = *random.pick(&[0, 1, 4, 5, 6, 0x0f, 0x40, 0x44, 0x46, 0x60, 0x7f, 0x80, 0xff]);
        }
    }
    if random.one_in(8) {
        frame.truncate(14 + random.below(frame.len() - 14));
    }
    if random.one_in(16) {
        frame.extend(vec![0; random.below(40)]);
    }
    frame
}

#[test]
fn fuzz_of_packets_against_the_model() {
    if !is_possible() {
        return;
    }
    let seconds = std::env::var("DSEC_FUZZ_SECONDS").ok().and_then(|text| text.parse().ok()).unwrap_or(1.0);
    let seed =
        std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64) | 1;
    eprintln!("seed {seed}");
    let bench = Bench::new("fuzz");
    let mut random = Random(seed);
    let until = Instant::now() + Duration::from_secs_f64(seconds);
    let (mut run, mut refused, mut number) = (0u64, 0u64, 0);
    while Instant::now() < until {
        number += 1;
        let model = a_model(&bench, &mut random);
        bench.enforce(&model, number);
        for _ in 0..400 {
            let mark = *random.pick(&[0, 0, 1, 2, 4, 5, 5]);
            let frame = a_frame(&mut random);
            if bench.check(&model, &frame, mark) { run += 1 } else { refused += 1 }
        }
        for key in bpf::keys::<RuleKey>(bench.kernel.maps.rules.as_fd()).expect("keys") {
            bpf::delete(bench.kernel.maps.rules.as_fd(), &key).expect("removed");
        }
        for key in bpf::keys::<PinKey>(bench.kernel.maps.pins.as_fd()).expect("keys") {
            bpf::delete(bench.kernel.maps.pins.as_fd(), &key).expect("removed");
        }
    }
    eprintln!("{run} frames under {number} policies; the kernel itself refused {refused}");
    assert!(run > 1_000 && refused < run, "{run} {refused}");
}

#[test]
fn pins_are_over_when_they_are_over() {
    if !is_possible() {
        return;
    }
    let bench = Bench::new("pins");
    let mut model = Model { names: true, ..bench.model() };
    let target: IpAddr = "203.0.113.7".parse().expect("an address");
    let syn = packet::tcp((bench.block.address4(0), 40_000), (target, 443), SYN, &[]);
    let frame = ethernet([0; 6], [2, 0, 0, 0, 0, 1], 0x0800, &syn);
    model.pins = HashMap::from([(target, vec![(TCP, 443, 443, true)])]);
    bench.enforce(&model, 1);
    assert!(bench.check(&model, &frame, 0));
    bench.pin(1, target, &[(TCP, 443, 443, true)], boot_ns() - 1);
    model.pins.clear();
    assert!(bench.check(&model, &frame, 0), "over");
    bench.pin(2, target, &[(TCP, 443, 443, true)], boot_ns() + HOUR_NS);
    assert!(bench.check(&model, &frame, 0), "of another generation");
}

#[test]
fn what_is_told_and_refused_is_within_a_budget() {
    if !is_possible() {
        return;
    }
    let mut bench = Bench::new("budget");
    let model = bench.model();
    bench.enforce(&model, 1);
    let target = ("203.0.113.7".parse().expect("an address"), 443);
    let syn = packet::tcp((bench.block.address4(0), 40_000), target, SYN, &[]);
    let frame = ethernet([0; 6], [2, 0, 0, 0, 0, 1], 0x0800, &syn);
    bench.kernel.maps.counters.set(0, &Counters::zeroed());
    let (mut passed, many) = (0, 2_000u64);
    let begun = Instant::now();
    for _ in 0..many {
        let run = bpf::test_run(bench.kernel.programs.from_sandbox.as_fd(), &frame, 0).expect("run");
        passed += u64::from(bench.outcome(run) != Outcome::Drop);
    }
    // A budget for each second that had begun.
    let seconds = begun.elapsed().as_secs() + 2;
    assert!((256..=256 * seconds).contains(&passed), "{passed} refusals");
    let counters = bench.kernel.maps.counters.get(0);
    assert_eq!(counters.denied[reason_index("default")], many, "all are counted");
    let mut told = 0;
    let mut counted = 0;
    while let Some(item) = bench.kernel.denials.next() {
        let denial = egress::denials::parse(&item).expect("a denial");
        assert_eq!((denial.slot, denial.port, denial.protocol), (0, 443, TCP));
        told += 1;
        counted += u64::from(denial.count);
    }
    assert!((16..=16 * seconds).contains(&told), "{told} told");
    assert_eq!(counted + counters.untold, many, "none is lost from the count");
}
