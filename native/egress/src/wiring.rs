//! What makes a veth a way: addresses, neighbours and routes on both ends. Nobody ever asks who has an address.

use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::Duration;

use crate::block::Block;
use crate::netlink::devices::{self, End};
use crate::netlink::paths::{self, Route};
use crate::netlink::{Netlink, message::Batch};
use crate::sys::{Result, process};

/// Older kernels have to be waited for.
const SETTLING_TRIES: u32 = 20;
const SETTLING_PAUSE: Duration = Duration::from_millis(1);

/// What the device is called inside.
const INSIDE: &str = "eth0";
/// Its index there: only the host makes devices in a sandbox's own namespace, and the kernel counts from 1.
const INSIDE_INDEX: u32 = 0x0d5e_0000;

/// Makes the veth of a slot, whose other end is in `namespace`; both are down.
pub fn create(netlink: &mut Netlink, block: &Block, slot: u32, namespace: &OwnedFd, mtu: u32) -> Result<()> {
    let (outside_mac, inside_mac) = block.macs(slot);
    let outside = End { name: &block.device(slot), mac: outside_mac, index: block.index(slot) };
    let inside = End { name: INSIDE, mac: inside_mac, index: INSIDE_INDEX };
    netlink.ask_one(devices::create_veth(&outside, &inside, namespace.as_fd(), mtu))
}

/// Sets both ends up. The host's end must have its programs already. `home` is the network namespace of the calling thread.
pub fn connect(
    netlink: &mut Netlink,
    block: &Block,
    slot: u32,
    (home, namespace): (&OwnedFd, &OwnedFd),
    has_ipv6: bool,
) -> Result<()> {
    let index = block.index(slot);
    let (_, inside_mac) = block.macs(slot);
    let mut batch = devices::raise(index);
    for (address, gateway) in pairs(block, slot, has_ipv6) {
        let route = Route { to: Some(address), gateway: None, device: index, source: Some(gateway) };
        batch = batch.and(paths::put_route(&route)).and(paths::put_neighbour(index, address, inside_mac));
    }
    netlink.ask_one(batch)?;
    inside(home.as_fd(), namespace.as_fd(), |netlink| connect_inside(netlink, block, slot, has_ipv6))?;
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
    let (outside_mac, _) = block.macs(slot);
    let index = INSIDE_INDEX;
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

/// Asks in another network namespace: a socket stays in the one that it was opened in.
fn inside(home: BorrowedFd<'_>, namespace: BorrowedFd<'_>, ask: impl FnOnce(&mut Netlink) -> Result<()>) -> Result<()> {
    ask(&mut process::within_network(home, namespace, Netlink::open)?)
}
