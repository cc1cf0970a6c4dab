//! What makes a veth a way: addresses, neighbours and routes on both ends. Nobody ever asks who has an address.

use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::time::Duration;

use crate::block::Block;
use crate::netlink::devices::{self, Device, End};
use crate::netlink::paths::{self, Route};
use crate::netlink::{Netlink, message::Batch};
use crate::sys::{Errno, Result, process};

/// Older kernels have to be waited for.
const SETTLING_TRIES: u32 = 20;
const SETTLING_PAUSE: Duration = Duration::from_millis(1);

/// What the device is called inside.
const INSIDE: &str = "eth0";

/// Makes the veth of a slot, whose other end is in `namespace`; both are down.
pub fn create(netlink: &mut Netlink, block: &Block, slot: u32, namespace: &OwnedFd, mtu: u32) -> Result<()> {
    let (outside_mac, inside_mac) = block.macs(slot);
    let outside = End { name: &block.device(slot), mac: outside_mac };
    let inside = End { name: INSIDE, mac: inside_mac };
    netlink.ask_one(devices::create_veth(&outside, block.index(slot), &inside, namespace.as_fd(), mtu))
}

/// Sets both ends up. The host's end must have its programs already.
pub fn connect(netlink: &mut Netlink, block: &Block, slot: u32, namespace: &OwnedFd, has_ipv6: bool) -> Result<()> {
    let index = block.index(slot);
    let (_, inside_mac) = block.macs(slot);
    let mut batch = devices::raise(index);
    for (address, gateway) in pairs(block, slot, has_ipv6) {
        let route = Route { to: Some(address), gateway: None, device: index, source: Some(gateway) };
        batch = batch.and(paths::put_route(&route)).and(paths::put_neighbour(index, address, inside_mac));
    }
    netlink.ask_one(batch)?;
    inside(namespace, |netlink| connect_inside(netlink, block, slot, has_ipv6))?;
    settle(netlink, index)
}

/// The end that was set up first drops what it is given until the kernel has got round to its carrier, and the first thing that a sandbox hears would be lost.
fn settle(netlink: &mut Netlink, index: u32) -> Result<()> {
    for _ in 0..SETTLING_TRIES {
        if netlink.list(devices::get(index))?.iter().any(|(_, payload)| devices::is_operational(payload)) {
            return Ok(());
        }
        std::thread::sleep(SETTLING_PAUSE);
    }
    // It will be; only a first packet is at stake.
    Ok(())
}

fn pairs(block: &Block, slot: u32, has_ipv6: bool) -> Vec<(IpAddr, IpAddr)> {
    let mut pairs = vec![(block.address4(slot), block.gateway4())];
    if has_ipv6 {
        pairs.push((block.address6(slot), block.gateway6()));
    }
    pairs
}

fn connect_inside(netlink: &mut Netlink, block: &Block, slot: u32, has_ipv6: bool) -> Result<()> {
    let (outside_mac, inside_mac) = block.macs(slot);
    let index = find_inside(netlink, inside_mac)?.index;
    let mut batch = Batch::default();
    batch = batch.and(devices::raise(index));
    for (address, gateway) in pairs(block, slot, has_ipv6) {
        let near = Route { to: Some(gateway), gateway: None, device: index, source: Some(address) };
        let far = Route { to: None, gateway: Some(gateway), device: index, source: None };
        batch = batch
            .and(paths::put_address(index, address, false))
            .and(paths::put_neighbour(index, gateway, outside_mac))
            .and(paths::put_route(&near))
            .and(paths::put_route(&far));
    }
    netlink.ask_one(batch)
}

fn find_inside(netlink: &mut Netlink, mac: [u8; 6]) -> Result<Device> {
    let listed = netlink.list(devices::list())?;
    let found = listed.iter().find(|(_, payload)| devices::has_mac(payload, mac));
    found.and_then(|(_, payload)| devices::parse(payload)).ok_or(Errno::NODEV)
}

/// Asks in another network namespace: a socket stays in the one that it was opened in, and a thread of its own enters that.
fn inside(namespace: &OwnedFd, ask: impl FnOnce(&mut Netlink) -> Result<()> + Send) -> Result<()> {
    let opened = std::thread::scope(|scope| {
        let thread = std::thread::Builder::new().name("namespace".to_owned());
        let started = thread.spawn_scoped(scope, || {
            process::enter_network(namespace.as_fd())?;
            Netlink::open()
        });
        started.map_err(|_| Errno::AGAIN)?.join().map_err(|_| Errno::IO)?
    });
    ask(&mut opened?)
}
