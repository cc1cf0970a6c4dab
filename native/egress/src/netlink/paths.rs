//! Addresses, neighbours, routes and rules.

use std::net::IpAddr;

use super::message::{Batch, attributes, u32_at};

const ACK: libc::c_int = libc::NLM_F_ACK;
const PUT: libc::c_int = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_REPLACE;
const IFA_F_NODAD: u8 = 0x02;
const IFA_F_PERMANENT: u8 = 0x80;
const FRA_PRIORITY: u16 = 6;
const FRA_FWMARK: u16 = 10;
const FRA_TABLE: u16 = 15;
const FRA_FWMASK: u16 = 16;
const FR_ACT_TO_TBL: u8 = 1;
const ROUTE_BODY: usize = 12;

pub fn family(address: IpAddr) -> u8 {
    (if address.is_ipv4() { libc::AF_INET } else { libc::AF_INET6 }) as u8
}

fn octets(address: IpAddr) -> Vec<u8> {
    match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    }
}

fn whole(address: IpAddr) -> u8 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// An address of a device, alone in its network. `is_hidden`: programs of the host do not choose it for what they send.
pub fn put_address(index: u32, address: IpAddr, is_hidden: bool) -> Batch {
    change_address(libc::RTM_NEWADDR, PUT, index, address, is_hidden)
}

pub fn delete_address(index: u32, address: IpAddr) -> Batch {
    change_address(libc::RTM_DELADDR, ACK, index, address, false)
}

fn change_address(kind: u16, flags: libc::c_int, index: u32, address: IpAddr, is_hidden: bool) -> Batch {
    let scope = if is_hidden && address.is_ipv4() { libc::RT_SCOPE_HOST } else { libc::RT_SCOPE_UNIVERSE };
    let mut body = [family(address), whole(address), IFA_F_NODAD | IFA_F_PERMANENT, scope, 0, 0, 0, 0];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    let octets = octets(address);
    let batch = Batch::default().request(kind, flags, &body);
    let batch = batch.attribute(libc::IFA_LOCAL, &octets).attribute(libc::IFA_ADDRESS, &octets);
    if !(is_hidden && address.is_ipv6()) {
        return batch;
    }
    // Deprecated: `struct ifa_cacheinfo` with preferred 0 and valid for ever (RFC 6724, rule 3).
    let mut lifetimes = [0; 16];
    lifetimes[4..8].copy_from_slice(&u32::MAX.to_ne_bytes());
    batch.attribute(libc::IFA_CACHEINFO, &lifetimes)
}

/// Who has an address, so that nobody is asked.
pub fn put_neighbour(index: u32, address: IpAddr, mac: [u8; 6]) -> Batch {
    // `struct ndmsg`.
    let mut body = [0; 12];
    body[0] = family(address);
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..10].copy_from_slice(&libc::NUD_PERMANENT.to_ne_bytes());
    Batch::default()
        .request(libc::RTM_NEWNEIGH, PUT, &body)
        .attribute(libc::NDA_DST, &octets(address))
        .attribute(libc::NDA_LLADDR, &mac)
}

/// A way to somewhere. Without a destination, to everywhere.
#[derive(Clone, Copy)]
pub struct Route {
    pub to: Option<IpAddr>,
    /// Of which family it is when it is to everywhere.
    pub gateway: Option<IpAddr>,
    pub device: u32,
    /// What the host sends by it has this address.
    pub source: Option<IpAddr>,
}

pub fn put_route(route: &Route) -> Batch {
    let like = route.to.or(route.gateway).unwrap_or(IpAddr::from([0; 4]));
    let scope = if route.gateway.is_none() { libc::RT_SCOPE_LINK } else { libc::RT_SCOPE_UNIVERSE };
    let length = route.to.map_or(0, whole);
    let table = libc::RT_TABLE_MAIN;
    let body = [family(like), length, 0, 0, table, libc::RTPROT_STATIC, scope, libc::RTN_UNICAST, 0, 0, 0, 0];
    let mut batch =
        Batch::default().request(libc::RTM_NEWROUTE, PUT, &body).number_attribute(libc::RTA_OIF, route.device);
    for (kind, address) in
        [(libc::RTA_DST, route.to), (libc::RTA_GATEWAY, route.gateway), (libc::RTA_PREFSRC, route.source)]
    {
        if let Some(address) = address {
            batch = batch.attribute(kind, &octets(address));
        }
    }
    batch
}

/// A table of its own in which everything is the host's own: for packets with `mark`, which the gate takes.
#[derive(Clone, Copy)]
pub struct Diversion {
    pub mark: u32,
    pub table: u32,
    pub loopback: u32,
}

impl Diversion {
    pub fn put_route(&self, family: u8) -> Batch {
        self.route(libc::RTM_NEWROUTE, PUT, family)
    }

    pub fn delete_route(&self, family: u8) -> Batch {
        self.route(libc::RTM_DELROUTE, ACK, family)
    }

    fn route(&self, kind: u16, flags: libc::c_int, family: u8) -> Batch {
        let body = [
            family,
            0,
            0,
            0,
            libc::RT_TABLE_UNSPEC,
            libc::RTPROT_STATIC,
            libc::RT_SCOPE_HOST,
            libc::RTN_LOCAL,
            0,
            0,
            0,
            0,
        ];
        Batch::default()
            .request(kind, flags, &body)
            .number_attribute(libc::RTA_TABLE, self.table)
            .number_attribute(libc::RTA_OIF, self.loopback)
    }

    /// Exists already: fine with whoever asks.
    pub fn put_rule(&self, family: u8) -> Batch {
        self.rule(libc::RTM_NEWRULE, ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL, family)
    }

    pub fn delete_rule(&self, family: u8) -> Batch {
        self.rule(libc::RTM_DELRULE, ACK, family)
    }

    fn rule(&self, kind: u16, flags: libc::c_int, family: u8) -> Batch {
        // Before the rule of the main table.
        const PRIORITY: u32 = 1_000;
        let body = [family, 0, 0, 0, libc::RT_TABLE_UNSPEC, 0, 0, FR_ACT_TO_TBL, 0, 0, 0, 0];
        Batch::default()
            .request(kind, flags, &body)
            .number_attribute(FRA_PRIORITY, PRIORITY)
            .number_attribute(FRA_FWMARK, self.mark)
            .number_attribute(FRA_FWMASK, u32::MAX)
            .number_attribute(FRA_TABLE, self.table)
    }
}

pub fn list_routes(family: u8) -> Batch {
    let mut body = [0; ROUTE_BODY];
    body[0] = family;
    Batch::default().request(libc::RTM_GETROUTE, libc::NLM_F_DUMP, &body)
}

pub struct Listed {
    pub to: Option<IpAddr>,
    pub bits: u8,
    pub device: u32,
    pub is_main: bool,
}

fn address_of(bytes: &[u8]) -> Option<IpAddr> {
    match bytes.len() {
        4 => <[u8; 4]>::try_from(bytes).ok().map(IpAddr::from),
        16 => <[u8; 16]>::try_from(bytes).ok().map(IpAddr::from),
        _ => None,
    }
}

/// Reads one that was listed.
pub fn parse_route(payload: &[u8]) -> Option<Listed> {
    let is_main = *payload.get(4)? == libc::RT_TABLE_MAIN;
    let mut route = Listed { to: None, bits: *payload.get(1)?, device: 0, is_main };
    for (kind, value) in attributes(payload, ROUTE_BODY) {
        match kind {
            libc::RTA_DST => route.to = address_of(value),
            libc::RTA_OIF => route.device = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(route)
}
