//! What a server's number makes its own: addresses, names and indexes of devices, marks, tables.

use std::net::IpAddr;

use crate::cidr::{Cidr, number};
use crate::layout::{self, MAX_UPLINKS};

/// Servers with networks on one host.
pub const SERVERS: u32 = 32;
/// Addresses of one server: the gateway and the uplinks.
const BLOCK_BITS4: u32 = 20;
const BLOCK_BITS6: u32 = 64;
/// The network that sandboxes have addresses of unless the operator names another: for measurements between networks (RFC 2544), on no LAN.
pub const NETWORK4: &str = "198.18.0.0/15";
/// A unique local prefix (RFC 4193) for the same.
pub const NETWORK6: &str = "fd64:7365:6300::/48";
/// Bits that the operator may give.
const BITS4: std::ops::RangeInclusive<u32> = 8..=28;
const BITS6: std::ops::RangeInclusive<u32> = 16..=64;
/// Addresses in front of the first uplink: the network's own and the gateway's.
const FIRST: u32 = 2;
/// Far above what the kernel counts up to.
const FIRST_INDEX: u32 = 0x0d5e_0000;
const INDEXES: u32 = 4_096;
/// `ds` in front of number and meaning: nobody else's mark.
const MARK: u32 = 0x6473_0000;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    pub number: u32,
    /// What all servers on the host take their blocks from; closed to every sandbox.
    pub network4: Cidr,
    pub network6: Cidr,
    block4: Cidr,
    block6: Cidr,
}

/// Reads a network that an operator names.
pub fn parse_network(option: &str, text: &str) -> Result<Cidr, String> {
    let cidr =
        Cidr::parse(text).ok_or_else(|| format!("--{option} must be a CIDR such as {NETWORK4} or {NETWORK6}"))?;
    let (family, bits) = if option == "network6" { (6, BITS6) } else { (4, BITS4) };
    if cidr.address.is_ipv4() != (family == 4) || !bits.contains(&cidr.bits) {
        return Err(format!("--{option} must be of IPv{family} with {} to {} bits", bits.start(), bits.end()));
    }
    Ok(cidr)
}

fn part(network: &Cidr, bits: u32, index: u32) -> Cidr {
    let bits = bits.max(network.bits);
    let blocks = 1u128 << (bits - network.bits).min(32);
    let size = 1u128 << (crate::cidr::width(network.address) - bits);
    Cidr { address: network.at(u128::from(index) % blocks * size), bits }
}

impl Block {
    /// The block of a number, which is less than [`SERVERS`].
    pub fn new(number: u32, network4: Cidr, network6: Cidr) -> Self {
        let (block4, block6) = (part(&network4, BLOCK_BITS4, number), part(&network6, BLOCK_BITS6, number));
        Self { number, network4, network6, block4, block6 }
    }

    pub fn gateway4(&self) -> IpAddr {
        self.block4.at(1)
    }

    pub fn gateway6(&self) -> IpAddr {
        self.block6.at(1)
    }

    pub fn address4(&self, slot: u32) -> IpAddr {
        self.block4.at((slot + FIRST).into())
    }

    pub fn address6(&self, slot: u32) -> IpAddr {
        self.block6.at((slot + FIRST).into())
    }

    pub fn blocks(&self) -> [Cidr; 2] {
        [self.block4, self.block6]
    }

    /// How many uplinks it has addresses for: the last address of IPv4 is no sandbox's.
    pub fn uplinks(&self) -> u32 {
        let addresses = 1u32 << (32 - self.block4.bits);
        (addresses - FIRST - 1).min(MAX_UPLINKS as u32)
    }

    /// What the names of all its devices begin with.
    pub fn device_prefix(&self) -> String {
        format!("dsec{}.", self.number)
    }

    pub fn device(&self, slot: u32) -> String {
        format!("{}{slot}", self.device_prefix())
    }

    pub fn first_index(&self) -> u32 {
        FIRST_INDEX + self.number * INDEXES
    }

    pub fn index(&self, slot: u32) -> u32 {
        self.first_index() + slot
    }

    pub fn slot_of_index(&self, index: u32) -> Option<u32> {
        index.checked_sub(self.first_index()).filter(|slot| *slot < self.uplinks())
    }

    pub fn table(&self) -> String {
        format!("dsec{}", self.number)
    }

    pub fn mark(&self, meaning: u32) -> u32 {
        self.base_mark() | meaning
    }

    fn base_mark(&self) -> u32 {
        MARK | self.number << 4
    }

    /// A table of routes has a number of 32 bits.
    pub fn route_table(&self) -> u32 {
        self.base_mark()
    }

    /// Addresses of devices that nobody else has (locally administered): the host's end, and the sandbox's.
    pub fn macs(&self, slot: u32) -> ([u8; 6], [u8; 6]) {
        let [high, low] = (slot as u16).to_be_bytes();
        let mac = |end| [0x02, 0x64, end, self.number as u8, high, low];
        (mac(0), mac(1))
    }

    /// What the programs know of the node.
    pub fn layout(&self, service_ports: (u16, u16)) -> layout::Node {
        let octets4 = |address: IpAddr| (number(address) as u32).to_be_bytes();
        let octets6 = |address: IpAddr| number(address).to_be_bytes();
        layout::Node {
            first_index: self.first_index(),
            mark: self.base_mark(),
            gateway4: octets4(self.gateway4()),
            network4: octets4(self.network4.address),
            mask4: octets4(self.network4.mask_address()),
            gateway6: octets6(self.gateway6()),
            network6: octets6(self.network6.address),
            mask6: octets6(self.network6.mask_address()),
            service_low: service_ports.0,
            service_high: service_ports.1,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn block(number: u32, network4: &str) -> Block {
        let cidr = |text: &str| Cidr::parse(text).expect(text);
        Block::new(number, cidr(network4), cidr(NETWORK6))
    }

    #[test]
    fn servers_share_nothing() {
        let blocks: Vec<Block> = (0..SERVERS).map(|number| block(number, NETWORK4)).collect();
        for (n, a) in blocks.iter().enumerate() {
            for b in &blocks[n + 1..] {
                assert!(a.blocks().iter().zip(b.blocks()).all(|(a, b)| !a.overlaps(&b)));
                assert!(a.index(a.uplinks() - 1) < b.first_index());
                assert_ne!(a.mark(1), b.mark(1));
            }
            assert!(a.network4.overlaps(&a.blocks()[0]));
        }
    }

    #[test]
    fn addresses_follow_the_gateway() {
        let block = block(1, NETWORK4);
        assert_eq!(block.gateway4().to_string(), "198.18.16.1");
        assert_eq!(block.address4(0).to_string(), "198.18.16.2");
        assert_eq!(block.address4(block.uplinks() - 1).to_string(), "198.18.31.254");
        assert_eq!(block.gateway6().to_string(), "fd64:7365:6300:1::1");
        assert_eq!(block.address6(3).to_string(), "fd64:7365:6300:1::5");
        assert_eq!(block.device(4_092), "dsec1.4092");
        assert_eq!(block.slot_of_index(block.index(7)), Some(7));
        assert_eq!(block.slot_of_index(1), None);
    }

    #[test]
    fn a_small_network_is_one_block() {
        let block = block(9, "10.9.8.0/28");
        assert_eq!(block.gateway4().to_string(), "10.9.8.1");
        assert_eq!(block.uplinks(), 13);
    }

    #[test]
    fn other_networks_are_refused() {
        for (option, text) in [
            ("network", "fd00::/48"),
            ("network", "10.0.0.0/30"),
            ("network", "0.0.0.0/0"),
            ("network", "10.0.0.1/24"),
            ("network6", "10.0.0.0/16"),
            ("network6", "fd00::/80"),
        ] {
            assert!(parse_network(option, text).is_err(), "{text}");
        }
        assert!(parse_network("network", "10.64.0.0/12").is_ok());
    }
}
