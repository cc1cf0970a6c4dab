//! Frames, built by hand, and a socket that puts them on a device as they are.

use std::net::IpAddr;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

use egress::layout::{Address, address_of};

pub const TCP: u8 = 6;
pub const UDP: u8 = 17;
pub const ICMP: u8 = 1;
pub const ICMP6: u8 = 58;
pub const SYN: u8 = 0x02;
pub const RST: u8 = 0x04;
pub const ACK: u8 = 0x10;

/// RFC 1071.
pub fn checksum(bytes: &[u8]) -> u16 {
    let mut sum: u32 = 0;
    for pair in bytes.chunks(2) {
        sum += u32::from(pair[0]) << 8 | pair.get(1).copied().map_or(0, u32::from);
    }
    while sum >> 16 != 0 {
        sum = (sum & 0xffff) + (sum >> 16);
    }
    !(sum as u16)
}

pub fn ethernet(target: [u8; 6], source: [u8; 6], kind: u16, payload: &[u8]) -> Vec<u8> {
    [&target[..], &source, &kind.to_be_bytes(), payload].concat()
}

/// A packet of either family without its Ethernet header; checksums are right.
pub fn ip(source: IpAddr, target: IpAddr, protocol: u8, payload: &[u8]) -> Vec<u8> {
    match (source, target) {
        (IpAddr::V4(source), IpAddr::V4(target)) => {
            let mut header = vec![0x45, 0, 0, 0, 0, 1, 0, 0, 64, protocol, 0, 0];
            header[2..4].copy_from_slice(&(20 + payload.len() as u16).to_be_bytes());
            header.extend(source.octets());
            header.extend(target.octets());
            let sum = checksum(&header);
            header[10..12].copy_from_slice(&sum.to_be_bytes());
            [header, payload.to_vec()].concat()
        }
        (source, target) => {
            let mut header = vec![0x60, 0, 0, 0, 0, 0, protocol, 64];
            header[4..6].copy_from_slice(&(payload.len() as u16).to_be_bytes());
            header.extend(address_of(source));
            header.extend(address_of(target));
            [header, payload.to_vec()].concat()
        }
    }
}

fn with_sum(source: IpAddr, target: IpAddr, protocol: u8, mut segment: Vec<u8>, at: usize) -> Vec<u8> {
    let octets = |address: IpAddr| match address {
        IpAddr::V4(address) => address.octets().to_vec(),
        IpAddr::V6(address) => address.octets().to_vec(),
    };
    let mut all = [octets(source), octets(target)].concat();
    all.extend((segment.len() as u32).to_be_bytes());
    all.extend([0, 0, 0, protocol]);
    all.extend(&segment);
    let sum = checksum(&all);
    segment[at..at + 2].copy_from_slice(&sum.to_be_bytes());
    segment
}

pub fn tcp(source: (IpAddr, u16), target: (IpAddr, u16), flags: u8, payload: &[u8]) -> Vec<u8> {
    let mut segment = [source.1.to_be_bytes(), target.1.to_be_bytes()].concat();
    segment.extend([0, 0, 0, 1, 0, 0, 0, 0, 0x50, flags, 0xff, 0xff, 0, 0, 0, 0]);
    segment.extend(payload);
    ip(source.0, target.0, TCP, &with_sum(source.0, target.0, TCP, segment, 16))
}

pub fn udp(source: (IpAddr, u16), target: (IpAddr, u16), payload: &[u8]) -> Vec<u8> {
    let mut segment = [source.1.to_be_bytes(), target.1.to_be_bytes()].concat();
    segment.extend((8 + payload.len() as u16).to_be_bytes());
    segment.extend([0, 0]);
    segment.extend(payload);
    ip(source.0, target.0, UDP, &with_sum(source.0, target.0, UDP, segment, 6))
}

pub fn icmp(source: IpAddr, target: IpAddr, kind: u8, code: u8, payload: &[u8]) -> Vec<u8> {
    let mut message = vec![kind, code, 0, 0];
    message.extend(payload);
    if source.is_ipv4() {
        let sum = checksum(&message);
        message[2..4].copy_from_slice(&sum.to_be_bytes());
        ip(source, target, ICMP, &message)
    } else {
        ip(source, target, ICMP6, &with_sum(source, target, ICMP6, message, 2))
    }
}

pub fn kind_of(address: IpAddr) -> u16 {
    if address.is_ipv4() { 0x0800 } else { 0x86dd }
}

pub fn mapped(text: &str) -> Address {
    address_of(text.parse().expect("an address"))
}

/// A packet socket, in the network of the calling thread.
pub struct Wire {
    socket: OwnedFd,
    index: i32,
}

impl Wire {
    pub fn open(device: &str) -> Self {
        let name = std::ffi::CString::new(device).expect("a name");
        // SAFETY: a name that ends with zero; the descriptor is new.
        let (index, socket) = unsafe {
            let index = libc::if_nametoindex(name.as_ptr());
            let fd = libc::socket(libc::AF_PACKET, libc::SOCK_RAW | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, 0x0300);
            assert!(index > 0 && fd >= 0, "{device}");
            (index.cast_signed(), OwnedFd::from_raw_fd(fd))
        };
        let wire = Self { socket, index };
        let address = wire.address();
        let length = size_of::<libc::sockaddr_ll>() as u32;
        // SAFETY: an address of this length.
        let bound = unsafe { libc::bind(wire.socket.as_raw_fd(), (&raw const address).cast(), length) };
        assert_eq!(bound, 0, "bound");
        wire
    }

    fn address(&self) -> libc::sockaddr_ll {
        // SAFETY: zeros are a valid address.
        let mut address: libc::sockaddr_ll = unsafe { std::mem::zeroed() };
        address.sll_family = libc::AF_PACKET as u16;
        address.sll_protocol = 0x0300;
        address.sll_ifindex = self.index;
        address
    }

    pub fn send(&self, frame: &[u8]) {
        rustix::io::write(&self.socket, frame).expect("sent");
    }

    /// All frames that have come.
    pub fn received(&self) -> Vec<Vec<u8>> {
        let mut frames = Vec::new();
        let mut buffer = vec![0; 65_536];
        while let Ok(length) = rustix::io::read(&self.socket, &mut buffer) {
            frames.push(buffer[..length].to_vec());
        }
        frames
    }
}
