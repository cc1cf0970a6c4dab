//! The values of the maps, as `bpf/layout.h` has them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Counts the forms that pinned maps have had: other programs cannot read them.
pub const LAYOUT: u32 = 2;

pub const MAX_UPLINKS: usize = 4_094;
pub const MAX_RANGES: usize = 16;
pub const MAX_PIN_RANGES: usize = 4;

pub const FLAG_RESOLVER: u8 = 1;
pub const FLAG_SERVICES: u8 = 2;
pub const FLAG_NAMES: u8 = 4;
pub const FLAG_PUBLIC: u8 = 8;

pub const MARK_ALLOWED: u32 = 1;
pub const MARK_TO_GATE: u32 = 2;
pub const MARK_LOCAL: u32 = 3;
pub const MARK_REFUSED: u32 = 4;
pub const MARK_FROM_GATE: u32 = 5;

/// Why a packet did not pass, in the order of `enum reason`.
pub const REASONS: [&str; 13] = [
    "closed",
    "not-ip",
    "header",
    "fragment",
    "multicast",
    "source",
    "protocol",
    "host",
    "never",
    "rule",
    "quic",
    "default",
    "inbound",
];

/// An address as the programs see it: network order, IPv4 in its mapped form.
pub type Address = [u8; 16];

pub fn address_of(address: IpAddr) -> Address {
    match address {
        IpAddr::V4(address) => address.to_ipv6_mapped().octets(),
        IpAddr::V6(address) => address.octets(),
    }
}

pub fn ip_of(address: Address) -> IpAddr {
    let address = Ipv6Addr::from(address);
    address.to_ipv4_mapped().map_or(IpAddr::V6(address), IpAddr::V4)
}

/// What is read from and written to the kernel as it lies in memory.
///
/// # Safety
/// Every pattern of bytes is a value, and no byte of it is padding.
pub unsafe trait Plain: Copy {
    fn zeroed() -> Self {
        // SAFETY: every pattern of bytes is a value.
        unsafe { std::mem::zeroed() }
    }

    /// What these bytes are; nothing when they are too few.
    fn read(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.get(..size_of::<Self>())?;
        let mut value = Self::zeroed();
        // SAFETY: as many bytes as the value has, every pattern of which is a value.
        unsafe {
            std::ptr::copy_nonoverlapping(bytes.as_ptr(), (&raw mut value).cast::<u8>(), size_of::<Self>());
        }
        Some(value)
    }
}

macro_rules! plain {
    ($($type:ident: $size:literal),+) => {
        $(
            // SAFETY: integers and arrays of them; the size leaves no room for padding.
            unsafe impl Plain for $type {}
            const _: () = assert!(size_of::<$type>() == $size);
        )+
    };
}

plain!(Node: 72, Uplink: 64, Counters: 160, Range: 6, RuleKey: 24, Rule: 98, PinKey: 20, PinRange: 16, Pin: 72, Origin: 184, Space: 16, FlowKey: 8, Flow: 192, Denial: 216);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Node {
    pub first_index: u32,
    pub mark: u32,
    pub gateway4: [u8; 4],
    pub network4: [u8; 4],
    pub mask4: [u8; 4],
    pub gateway6: [u8; 16],
    pub network6: [u8; 16],
    pub mask6: [u8; 16],
    pub service_low: u16,
    pub service_high: u16,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Uplink {
    /// [`PolicyWord`].
    pub policy: u64,
    pub address4: [u8; 4],
    pub address6: [u8; 16],
    pub unused: u32,
    pub net_inode: u64,
    /// Filled up with zeros.
    pub id: [u8; 24],
}

/// What decides about the packets of an uplink: one word, which is stored at once. Generation 0 is closed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PolicyWord {
    pub generation: u32,
    /// 0 for no rules; 24 bits.
    pub ruleset: u32,
    pub flags: u8,
}

/// Sets of rules have numbers below this.
pub const RULESETS: u32 = 1 << 24;

impl PolicyWord {
    pub fn encode(self) -> u64 {
        u64::from(self.generation) << 32 | u64::from(self.ruleset) << 8 | u64::from(self.flags)
    }

    pub fn decode(word: u64) -> Self {
        Self { generation: (word >> 32) as u32, ruleset: (word >> 8) as u32 & (RULESETS - 1), flags: word as u8 }
    }
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Counters {
    pub sent_packets: u64,
    pub sent_bytes: u64,
    pub received_packets: u64,
    pub received_bytes: u64,
    pub denied: [u64; REASONS.len()],
    pub untold: u64,
    pub told_second: u32,
    pub told: u32,
    pub refused_second: u32,
    pub refused: u32,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct Range {
    pub low: u16,
    pub high: u16,
    pub protocol: u8,
    pub allow: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct RuleKey {
    /// Of what follows.
    pub prefix_bits: u32,
    /// With [`OF_IPV6`].
    ruleset: u32,
    pub address: Address,
}

/// Keeps the families apart: else a short prefix of IPv6, such as all of it, would cover IPv4 in its mapped form.
const OF_IPV6: u32 = 1 << 31;

impl RuleKey {
    /// `bits` of an address in its mapped form.
    pub fn new(ruleset: u32, address: Address, bits: u32) -> Self {
        let family = if ip_of(address).is_ipv4() { 0 } else { OF_IPV6 };
        Self { prefix_bits: 32 + bits, ruleset: ruleset | family, address }
    }

    pub fn ruleset(&self) -> u32 {
        self.ruleset & !OF_IPV6
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Rule {
    pub count: u16,
    pub ranges: [Range; MAX_RANGES],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(C)]
pub struct PinKey {
    pub generation: u32,
    pub address: Address,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct PinRange {
    /// Nanoseconds of `CLOCK_BOOTTIME`; 0 for none.
    pub expires_at: u64,
    pub low: u16,
    pub high: u16,
    pub protocol: u8,
    pub unused: [u8; 3],
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Pin {
    pub generation: u32,
    pub unused: u32,
    pub ranges: [PinRange; MAX_PIN_RANGES],
}

pub const MAX_ANCESTORS: usize = 32;
pub const COMM_BYTES: usize = 16;

/// Which process has made a socket, or has connected it since. Processes have the numbers that the sandbox knows them by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Origin {
    /// Nanoseconds of `CLOCK_BOOTTIME`.
    pub noted_at: u64,
    /// Of the socket's network namespace (`SO_NETNS_COOKIE`); 0 is nobody's origin.
    pub net_cookie: u64,
    /// Its number here.
    pub outer_pid: u32,
    pub pid: u32,
    pub session: u32,
    /// As the host knows it.
    pub user: u32,
    pub ancestor_count: u32,
    /// Its number for the kernel itself.
    pub process: u32,
    /// Nearest first.
    pub ancestors: [u32; MAX_ANCESTORS],
    pub comm: [u8; COMM_BYTES],
}

/// By the cookie of a sandbox's network namespace.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Space {
    pub slot: u32,
    /// Inode of the pid namespace in which its processes have their numbers.
    pub pid_inode: u32,
    /// What the host calls its user 0.
    pub first_user: u32,
    pub unused: u32,
}

/// Sockets of one sandbox, of one protocol and family, that are known to have asked something: the port tells who is in a place.
pub const FLOW_PLACES: u16 = 256;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct FlowKey {
    pub slot: u32,
    pub place: u16,
    pub protocol: u8,
    pub is_ipv6: u8,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(C)]
pub struct Flow {
    pub port: u64,
    pub origin: Origin,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Denial {
    pub slot: u32,
    pub generation: u32,
    pub address: Address,
    pub count: u32,
    pub port: u16,
    pub protocol: u8,
    pub reason: u8,
    pub origin: Origin,
}

pub fn mapped_bits(address: IpAddr, bits: u32) -> u32 {
    if address.is_ipv4() { 96 + bits } else { bits }
}

pub fn octets4(address: Address) -> Ipv4Addr {
    Ipv4Addr::new(address[12], address[13], address[14], address[15])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_policy_is_one_word() {
        for word in [
            PolicyWord::default(),
            PolicyWord { generation: 7, ruleset: 3, flags: FLAG_NAMES | FLAG_RESOLVER },
            PolicyWord { generation: u32::MAX, ruleset: RULESETS - 1, flags: u8::MAX },
        ] {
            assert_eq!(PolicyWord::decode(word.encode()), word);
        }
    }

    #[test]
    fn addresses_keep_their_family() {
        for text in ["198.51.100.7", "2001:db8::1", "::1"] {
            let address: IpAddr = text.parse().expect(text);
            assert_eq!(ip_of(address_of(address)), address);
        }
    }
}
