//! Devices.

use std::os::fd::{AsRawFd, BorrowedFd};

use super::message::{Batch, attributes, u32_at};

const ACK: libc::c_int = libc::NLM_F_ACK;
const NEW: libc::c_int = libc::NLM_F_ACK | libc::NLM_F_CREATE | libc::NLM_F_EXCL;
const VETH_INFO_PEER: u16 = 1;
const IFLA_INET6_ADDR_GEN_MODE: u16 = 8;
/// No link-local address: nothing is to be said by one.
const ADDR_GEN_MODE_NONE: u8 = 1;
/// RFC 2863.
const IF_OPER_UP: u8 = 6;
/// Of `struct ifinfomsg`.
pub const LINK_BODY: usize = 16;

fn link_body(index: u32, flags: u32, change: u32) -> [u8; LINK_BODY] {
    let mut body = [0; LINK_BODY];
    body[4..8].copy_from_slice(&index.to_ne_bytes());
    body[8..12].copy_from_slice(&flags.to_ne_bytes());
    body[12..16].copy_from_slice(&change.to_ne_bytes());
    body
}

/// One end of a veth, with an index of our choice.
pub struct End<'a> {
    pub name: &'a str,
    pub mac: [u8; 6],
    pub index: u32,
}

/// A veth whose one end is here, and whose other end is in another network namespace. Both are down.
pub fn create_veth(here: &End<'_>, there: &End<'_>, namespace: BorrowedFd<'_>, mtu: u32) -> Batch {
    let end = |batch: Batch, end: &End<'_>| {
        batch
            .text_attribute(libc::IFLA_IFNAME, end.name)
            .attribute(libc::IFLA_ADDRESS, &end.mac)
            .number_attribute(libc::IFLA_MTU, mtu)
    };
    let batch = Batch::default().request(libc::RTM_NEWLINK, NEW, &link_body(here.index, 0, 0));
    end(batch, here).nested(libc::IFLA_LINKINFO, |batch| {
        batch.text_attribute(libc::IFLA_INFO_KIND, "veth").nested(libc::IFLA_INFO_DATA, |batch| {
            batch.nested(VETH_INFO_PEER, |batch| {
                end(batch.plain(&link_body(there.index, 0, 0)), there)
                    .number_attribute(libc::IFLA_NET_NS_FD, namespace.as_raw_fd().unsigned_abs())
            })
        })
    })
}

/// Sets a device up that gives itself no addresses.
pub fn raise(index: u32) -> Batch {
    quiet(index).and(Batch::default().request(
        libc::RTM_NEWLINK,
        ACK,
        &link_body(index, libc::IFF_UP as u32, libc::IFF_UP as u32),
    ))
}

fn quiet(index: u32) -> Batch {
    Batch::default().request(libc::RTM_NEWLINK, ACK, &link_body(index, 0, 0)).nested(libc::IFLA_AF_SPEC, |batch| {
        batch.nested(libc::AF_INET6 as u16, |batch| batch.attribute(IFLA_INET6_ADDR_GEN_MODE, &[ADDR_GEN_MODE_NONE]))
    })
}

pub fn delete(index: u32) -> Batch {
    Batch::default().request(libc::RTM_DELLINK, ACK, &link_body(index, 0, 0))
}

/// Puts a device into a group.
pub fn set_group(index: u32, group: u32) -> Batch {
    Batch::default().request(libc::RTM_NEWLINK, ACK, &link_body(index, 0, 0)).number_attribute(libc::IFLA_GROUP, group)
}

/// All devices of a group at once. `NODEV`: it has none.
pub fn delete_group(group: u32) -> Batch {
    Batch::default().request(libc::RTM_DELLINK, ACK, &link_body(0, 0, 0)).number_attribute(libc::IFLA_GROUP, group)
}

pub fn list() -> Batch {
    Batch::default().request(libc::RTM_GETLINK, libc::NLM_F_DUMP, &link_body(0, 0, 0))
}

/// One device, with all that the kernel has still to do for its state done before (Linux 6.8).
pub fn get(index: u32) -> Batch {
    Batch::default().request(libc::RTM_GETLINK, ACK, &link_body(index, 0, 0))
}

/// Whether a device that was asked for carries packets.
pub fn is_operational(payload: &[u8]) -> bool {
    attributes(payload, LINK_BODY).any(|(kind, value)| kind == libc::IFLA_OPERSTATE && value == [IF_OPER_UP])
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Device {
    pub index: u32,
    pub name: String,
    pub mtu: u32,
}

pub fn index_of(payload: &[u8]) -> Option<u32> {
    u32_at(payload, 4)
}

/// Reads one that was listed.
pub fn parse(payload: &[u8]) -> Option<Device> {
    let mut device = Device { index: index_of(payload)?, name: String::new(), mtu: 0 };
    for (kind, value) in attributes(payload, LINK_BODY) {
        match kind {
            libc::IFLA_IFNAME => {
                device.name = String::from_utf8_lossy(value.strip_suffix(b"\0").unwrap_or(value)).into_owned();
            }
            libc::IFLA_MTU => device.mtu = u32_at(value, 0)?,
            _ => {}
        }
    }
    Some(device)
}
