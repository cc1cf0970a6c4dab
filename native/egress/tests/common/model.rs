//! What the programs have to decide, said again in another language and another way.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use egress::cidr::Cidr;
use egress::layout::REASONS;

use super::packet::{ACK, ICMP, ICMP6, RST, SYN, TCP, UDP};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// Passes with this meaning of the mark; 0 where none is set.
    Pass(u32),
    Drop,
}

pub const ALLOWED: u32 = 1;
pub const TO_GATE: u32 = 2;
pub const LOCAL: u32 = 3;
pub const REFUSED: u32 = 4;
pub const FROM_GATE: u32 = 5;

/// Protocol, lowest and highest port, whether it is allowed.
pub type ModelRange = (u8, u16, u16, bool);

#[derive(Clone, Default)]
pub struct Model {
    pub is_closed: bool,
    pub resolver: bool,
    pub services: bool,
    pub names: bool,
    pub public: bool,
    pub own: Vec<IpAddr>,
    pub gateways: Vec<IpAddr>,
    pub networks: Vec<Cidr>,
    pub service_ports: (u16, u16),
    pub rules: Vec<(Cidr, Vec<ModelRange>)>,
    /// Only those that are not over.
    pub pins: HashMap<IpAddr, Vec<ModelRange>>,
}

struct Packet {
    source: IpAddr,
    target: IpAddr,
    protocol: u8,
    ports: (u16, u16),
    flags: u8,
    kind: u8,
    has_payload: bool,
    fragment: Fragment,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fragment {
    Whole,
    First,
    Later,
}

type Parsed = Result<Packet, &'static str>;

fn word(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_be_bytes(bytes.get(at..at + 2)?.try_into().ok()?))
}

fn parse(frame: &[u8]) -> Parsed {
    match word(frame, 12) {
        Some(0x0800) => parse4(&frame[14..]),
        Some(0x86dd) => parse6(&frame[14..]),
        _ => Err("not-ip"),
    }
}

fn parse4(bytes: &[u8]) -> Parsed {
    let header = bytes.get(..20).ok_or("header")?;
    let length = usize::from(word(header, 2).ok_or("header")?);
    if header[0] != 0x45 || length < 20 || length > bytes.len() {
        return Err("header");
    }
    let fragment = word(header, 6).ok_or("header")?;
    if fragment & 0x8000 != 0 {
        return Err("header");
    }
    let octets = |at: usize| Ipv4Addr::new(header[at], header[at + 1], header[at + 2], header[at + 3]);
    let (source, target) = (octets(12), octets(16));
    if target.is_multicast() || target.is_broadcast() {
        return Err("multicast");
    }
    let fragment = match (fragment & 0x1fff, fragment & 0x2000) {
        (0, 0) => Fragment::Whole,
        (0, _) => Fragment::First,
        _ => Fragment::Later,
    };
    transport(Layer { source: source.into(), target: target.into(), fragment }, header[9], &bytes[20..length])
}

fn parse6(bytes: &[u8]) -> Parsed {
    let header = bytes.get(..40).ok_or("header")?;
    let length = usize::from(word(header, 4).ok_or("header")?);
    if header[0] >> 4 != 6 || length > bytes.len() - 40 {
        return Err("header");
    }
    let octets = |at: usize| Ipv6Addr::from(<[u8; 16]>::try_from(&header[at..at + 16]).expect("16 bytes"));
    let (source, target) = (octets(8), octets(24));
    if target.is_multicast() {
        return Err("multicast");
    }
    let (mut next, mut payload, mut fragment) = (header[6], &bytes[40..40 + length], Fragment::Whole);
    if next == 44 {
        let header = payload.get(..8).ok_or("header")?;
        let is_first = word(header, 2).ok_or("header")? & 0xfff8 == 0;
        fragment = if is_first { Fragment::First } else { Fragment::Later };
        next = header[0];
        payload = &payload[8..];
    }
    let layer = Layer { source: source.into(), target: target.into(), fragment };
    if fragment != Fragment::Later {
        match next {
            0 | 43 | 44 | 60 => return Err("header"),
            ICMP => return Err("protocol"),
            _ => {}
        }
    }
    transport(layer, if next == ICMP6 { ICMP } else { next }, payload)
}

struct Layer {
    source: IpAddr,
    target: IpAddr,
    fragment: Fragment,
}

fn transport(layer: Layer, protocol: u8, payload: &[u8]) -> Parsed {
    let Layer { source, target, fragment } = layer;
    let mut packet =
        Packet { source, target, protocol, ports: (0, 0), flags: 0, kind: 0, has_payload: false, fragment };
    if fragment == Fragment::Later {
        return Ok(packet);
    }
    match protocol {
        TCP => {
            let header = payload.get(..20).ok_or("header")?;
            let length = usize::from(header[12] >> 4) * 4;
            if length < 20 || length > payload.len() {
                return Err("header");
            }
            packet.flags = header[13];
            packet.has_payload = payload.len() > length;
        }
        UDP => {
            let header = payload.get(..8).ok_or("header")?;
            let length = usize::from(word(header, 4).ok_or("header")?);
            if length < 8 || (fragment == Fragment::Whole && length > payload.len()) {
                return Err("header");
            }
        }
        ICMP => {
            packet.kind = *payload.get(..8).ok_or("header")?.first().ok_or("header")?;
            return Ok(packet);
        }
        _ => return Err("protocol"),
    }
    packet.ports = (word(payload, 0).ok_or("header")?, word(payload, 2).ok_or("header")?);
    Ok(packet)
}

fn is_in(address: IpAddr, networks: &[&str]) -> bool {
    let whole = Cidr { address, bits: egress::cidr::width(address) };
    networks.iter().any(|network| Cidr::parse(network).expect(network).overlaps(&whole))
}

const NEVER: [&str; 22] = [
    "0.0.0.0/8",
    "127.0.0.0/8",
    "169.254.0.0/16",
    "224.0.0.0/4",
    "255.255.255.255",
    "168.63.129.16",
    "100.100.100.200",
    "192.0.0.192",
    "::/96",
    "::ffff:0:0/96",
    "64:ff9b::/32",
    "2002::/16",
    "2001::/32",
    "fe80::/10",
    "ff00::/8",
    "fd00:ec2::/32",
    "fd20:ce::/32",
    "fd00:c1::/32",
    "::1",
    "0.0.0.0",
    "127.0.0.1",
    "169.254.169.254",
];

const PRIVATE: [&str; 8] = [
    "10.0.0.0/8",
    "100.64.0.0/10",
    "172.16.0.0/12",
    "192.0.0.0/24",
    "192.168.0.0/16",
    "198.18.0.0/15",
    "240.0.0.0/4",
    "fc00::/7",
];

impl Model {
    fn is_never(&self, address: IpAddr) -> bool {
        let whole = Cidr { address, bits: egress::cidr::width(address) };
        is_in(address, &NEVER) || self.networks.iter().any(|network| network.overlaps(&whole))
    }

    fn is_open(&self, packet: &Packet, address: IpAddr) -> bool {
        let is_global = address.is_ipv4() || is_in(address, &["2000::/3"]);
        self.public && packet.protocol != ICMP && is_global && !is_in(address, &PRIVATE)
    }

    fn by_rule(&self, packet: &Packet, address: IpAddr, port: u16) -> Option<bool> {
        let whole = Cidr { address, bits: egress::cidr::width(address) };
        let covering = self.rules.iter().filter(|(cidr, _)| cidr.overlaps(&whole));
        let (_, ranges) = covering.max_by_key(|(cidr, _)| cidr.bits)?;
        let fits = |(protocol, low, high, _): &&ModelRange| {
            *protocol == packet.protocol && (*protocol == ICMP || (*low..=*high).contains(&port))
        };
        ranges.iter().find(fits).map(|(_, _, _, is_allowed)| *is_allowed)
    }

    fn is_pinned(&self, packet: &Packet, address: IpAddr, port: u16) -> bool {
        let ranges = self.pins.get(&address).into_iter().flatten();
        ranges
            .into_iter()
            .any(|(protocol, low, high, _)| *protocol == packet.protocol && (*low..=*high).contains(&port))
    }

    fn is_service(&self, packet: &Packet, port: u16) -> bool {
        let is_dns = self.resolver && port == 53 && matches!(packet.protocol, TCP | UDP);
        is_dns
            || (self.services
                && packet.protocol == TCP
                && (self.service_ports.0..=self.service_ports.1).contains(&port))
    }

    /// What becomes of a frame of the sandbox, and why.
    pub fn sent(&self, frame: &[u8]) -> (Outcome, Option<&'static str>) {
        if self.is_closed {
            return (Outcome::Drop, Some("closed"));
        }
        let packet = match parse(frame) {
            Ok(packet) => packet,
            Err(reason) => return (Outcome::Drop, Some(reason)),
        };
        if packet.fragment != Fragment::Whole {
            return (Outcome::Drop, Some("fragment"));
        }
        if !self.own.contains(&packet.source) {
            return (Outcome::Drop, Some("source"));
        }
        let refused = |reason| (Outcome::Pass(REFUSED), Some(reason));
        let (target, port) = (packet.target, packet.ports.1);
        if self.gateways.contains(&target) {
            return if self.is_service(&packet, port) { (Outcome::Pass(LOCAL), None) } else { refused("host") };
        }
        if self.is_never(target) {
            return refused("never");
        }
        if packet.protocol == ICMP && packet.kind != if target.is_ipv4() { 8 } else { 128 } {
            return (Outcome::Drop, Some("protocol"));
        }
        match self.by_rule(&packet, target, port) {
            Some(true) => return (Outcome::Pass(ALLOWED), None),
            Some(false) => return refused("rule"),
            None => {}
        }
        if self.is_open(&packet, target) {
            return (Outcome::Pass(ALLOWED), None);
        }
        if !self.names {
            return refused("default");
        }
        match packet.protocol {
            TCP if packet.flags & (SYN | ACK) != SYN => (Outcome::Pass(TO_GATE), None),
            TCP if self.is_pinned(&packet, target, port) => (Outcome::Pass(TO_GATE), None),
            UDP if port == 443 => refused("quic"),
            UDP if self.is_pinned(&packet, target, port) => (Outcome::Pass(ALLOWED), None),
            _ => refused("default"),
        }
    }

    /// What becomes of a frame for the sandbox; `mark` is its meaning.
    pub fn received(&self, frame: &[u8], mark: u32) -> Outcome {
        if self.is_closed {
            return Outcome::Drop;
        }
        let Ok(packet) = parse(frame) else { return Outcome::Drop };
        if !self.own.contains(&packet.target) {
            return Outcome::Drop;
        }
        let (source, port) = (packet.source, packet.ports.0);
        let is_error = match packet.protocol {
            TCP => packet.flags & RST != 0 && !packet.has_payload,
            ICMP if source.is_ipv4() => matches!(packet.kind, 3 | 11),
            ICMP => matches!(packet.kind, 1..=4),
            _ => false,
        };
        let is_of_gate = mark == FROM_GATE && packet.protocol == TCP && self.names;
        let passes = if packet.fragment == Fragment::Later || is_error || is_of_gate {
            true
        } else if self.gateways.contains(&source) {
            self.is_service(&packet, port)
        } else if (packet.protocol == ICMP && packet.kind != if source.is_ipv4() { 0 } else { 129 })
            || self.is_never(source)
        {
            false
        } else {
            self.by_rule(&packet, source, port).unwrap_or_else(|| {
                self.is_open(&packet, source)
                    || (self.names && packet.protocol == UDP && port != 443 && self.is_pinned(&packet, source, port))
            })
        };
        if passes { Outcome::Pass(mark) } else { Outcome::Drop }
    }
}

pub fn reason_index(reason: &str) -> usize {
    REASONS.iter().position(|other| *other == reason).expect(reason)
}
