//! What of the host's network is this server's: put in force at the start, and taken away by `egressd clear`.

use std::collections::HashSet;
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::path::Path;

use crate::block::Block;
use crate::cidr::Cidr;
use crate::firewall::Rules;
use crate::layout::{LAYOUT, MARK_TO_GATE};
use crate::netlink::paths::{self, Diversion};
use crate::netlink::{Netlink, devices as links};
use crate::options::Serve;
use crate::place::{Place, Settled};
use crate::sys::{Errno, Result};
use crate::{firewall, forwarding, gate, lock};
use daemon::failure::errno_name;

/// Why egressd cannot begin, for the log.
pub type StartError = String;

pub fn at(what: &'static str) -> impl Fn(Errno) -> StartError {
    move |errno| format!("{what}: {}", errno_name(errno))
}

/// Slots whose devices are there.
pub fn devices(netlink: &mut Netlink, block: &Block) -> Result<HashSet<u32>> {
    let listed = netlink.list(links::list())?;
    let found = listed.iter().filter_map(|(_, payload)| {
        let device = links::parse(payload)?;
        let slot = block.slot_of_index(device.index)?;
        (device.name == block.device(slot)).then_some(slot)
    });
    Ok(found.collect())
}

/// Takes a number whose addresses nobody on this host has.
pub fn choose(
    options: &Serve,
    place: &Place,
    netlink: &mut Netlink,
) -> std::result::Result<(Block, OwnedFd), StartError> {
    let routes = netlink.list(paths::list_routes(0)).map_err(at("routes"))?;
    let taken: Vec<Cidr> = routes
        .iter()
        .filter_map(|(_, payload)| paths::parse_route(payload))
        .filter_map(|route| Some(Cidr { address: route.to?, bits: route.bits.into() }))
        .filter(|cidr| cidr.bits > 0)
        .collect();
    let block = |number| Block::new(number, options.network4, options.network6);
    let is_free = |number| {
        let blocks = block(number).blocks();
        !taken.iter().any(|taken| blocks.iter().any(|ours| ours.overlaps(taken)))
    };
    let wanted = place.settled().filter(|settled| {
        // Another network is another beginning: nothing of the old one is adopted.
        (&settled.network4, &settled.network6) == (&options.network4.to_string(), &options.network6.to_string())
    });
    let wanted = wanted.map(|settled| settled.number);
    let (number, lock) = lock::take(wanted, is_free).map_err(at("network number"))?.ok_or_else(|| match wanted {
        Some(number) => format!("another server on this host has taken the network number {number} of this one"),
        None => format!("no part of {} is free on this host: give another --network", options.network4),
    })?;
    Ok((block(number), lock))
}

/// The MTU of the device of the host's default route.
pub fn way_out_mtu(netlink: &mut Netlink) -> Option<u32> {
    let routes = netlink.list(paths::list_routes(libc::AF_INET as u8)).ok()?;
    let default = routes
        .iter()
        .filter_map(|(_, payload)| paths::parse_route(payload))
        .find(|route| route.to.is_none() && route.bits == 0 && route.is_main)?;
    let listed = netlink.list(links::list()).ok()?;
    let device =
        listed.iter().filter_map(|(_, payload)| links::parse(payload)).find(|it| it.index == default.device)?;
    Some(device.mtu.clamp(1_280, 65_535))
}

fn loopback(netlink: &mut Netlink) -> std::result::Result<u32, StartError> {
    let listed = netlink.list(links::list()).map_err(at("devices"))?;
    let found = listed.iter().filter_map(|(_, payload)| links::parse(payload)).find(|device| device.name == "lo");
    found.map(|device| device.index).ok_or_else(|| "the host has no loopback device".to_owned())
}

fn diversion(block: &Block, loopback: u32) -> Diversion {
    Diversion { mark: block.mark(MARK_TO_GATE), table: block.route_table(), loopback }
}

fn gateways(block: &Block, has_ipv6: bool) -> Vec<IpAddr> {
    if has_ipv6 { vec![block.gateway4(), block.gateway6()] } else { vec![block.gateway4()] }
}

/// Puts in force what of the host is this server's: the packet filter first.
pub fn settle(
    options: &Serve,
    place: &Place,
    (block, boot): (&Block, &str),
    netlink: &mut Netlink,
) -> std::result::Result<bool, StartError> {
    let has_ipv6 = forwarding::has_ipv6();
    let before = place.settled().filter(|settled| settled.number == block.number && settled.boot == boot);
    if before.as_ref().is_some_and(|settled| settled.layout != LAYOUT) {
        // Closed is what sandboxes are until their policies are set again.
        remove_uplinks(place, block, netlink)?;
    }
    let (network4, network6) = (options.network4.to_string(), options.network6.to_string());
    let mut settled = before.unwrap_or_else(|| Settled::new(boot, block.number, network4, network6));
    settled.layout = LAYOUT;
    let stored = |settled: &Settled| place.settle(settled).map_err(|error| format!("network.json: {error}"));
    stored(&settled)?;
    let rules = |settled: &Settled| Rules {
        block,
        gate_port: options.gate_port,
        service_ports: options.service_ports,
        max_flows: options.max_flows,
        forwards_only_ours4: settled.forwards_only_ours4,
        forwards_only_ours6: settled.forwards_only_ours6,
    };
    rules(&settled).apply()?;
    let forwards = |error: std::io::Error| format!("forwarding: {error}");
    let is_new4 = forwarding::turn_on4().map_err(forwards)?;
    let is_new6 = has_ipv6 && forwarding::turn_on6().map_err(forwards)?;
    if is_new4 || is_new6 {
        settled.forwards_only_ours4 |= is_new4;
        settled.forwards_only_ours6 |= is_new6;
        stored(&settled)?;
        rules(&settled).apply()?;
    }
    let index = loopback(netlink)?;
    let diversion = diversion(block, index);
    for gateway in gateways(block, has_ipv6) {
        let family = paths::family(gateway);
        netlink.ask_one(paths::put_address(index, gateway, true)).map_err(at("the gateway's address"))?;
        netlink.ask_one(diversion.put_route(family)).map_err(at("the gate's route"))?;
        match netlink.ask_one(diversion.put_rule(family)) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(at("the gate's rule")(errno)),
        }
    }
    Ok(has_ipv6)
}

/// Removes devices, and all that is pinned.
fn remove_uplinks(place: &Place, block: &Block, netlink: &mut Netlink) -> std::result::Result<(), StartError> {
    for slot in devices(netlink, block).map_err(at("devices"))? {
        match netlink.ask_one(links::delete(block.index(slot))) {
            Ok(()) | Err(Errno::NODEV) => {}
            Err(errno) => return Err(at("device")(errno)),
        }
    }
    place.remove_pins().map_err(at("run/egress/bpf"))
}

/// `egressd clear`: takes away all that a server has of the host's network.
pub fn clear(data: &Path) -> std::result::Result<(), StartError> {
    let place = Place::open(data)?;
    let Some(settled) = place.settled() else { return place.remove_pins().map_err(at("run/egress/bpf")) };
    let network = |text: &str| Cidr::parse(text).ok_or_else(|| format!("network.json has the network {text}"));
    let block = Block::new(settled.number, network(&settled.network4)?, network(&settled.network6)?);
    let mut netlink = Netlink::open().map_err(at("netlink"))?;
    let _lock = lock::try_take(block.number)
        .map_err(at("network number"))?
        .ok_or_else(|| format!("another server on this host has the network number {}", block.number))?;
    gate::end(&place).map_err(at("the gate"))?;
    remove_uplinks(&place, &block, &mut netlink)?;
    let index = loopback(&mut netlink)?;
    let diversion = diversion(&block, index);
    for gateway in gateways(&block, true) {
        let family = paths::family(gateway);
        for batch in
            [diversion.delete_rule(family), diversion.delete_route(family), paths::delete_address(index, gateway)]
        {
            match netlink.ask_one(batch) {
                Ok(())
                | Err(Errno::NOENT | Errno::SRCH | Errno::ADDRNOTAVAIL | Errno::AFNOSUPPORT | Errno::OPNOTSUPP) => {}
                Err(errno) => return Err(at("addresses and routes")(errno)),
            }
        }
    }
    // Another server may need it; what it let through only we needed.
    let is_last = (0..crate::block::SERVERS)
        .filter(|number| *number != block.number)
        .all(|number| matches!(lock::try_take(number), Ok(Some(_))));
    let forwards = |error: std::io::Error| format!("forwarding: {error}");
    if is_last && settled.forwards_only_ours4 {
        forwarding::turn_off4().map_err(forwards)?;
    }
    if is_last && settled.forwards_only_ours6 {
        forwarding::turn_off6().map_err(forwards)?;
    }
    firewall::remove(&block)?;
    place.forget_settled().map_err(|error| format!("network.json: {error}"))
}
