//! Where a connection wanted to go, and where none ever goes.

use std::net::IpAddr;

/// Metadata services that are not link-local: of Azure, Alibaba and Oracle.
const METADATA_V4: [[u8; 4]; 3] = [[168, 63, 129, 16], [100, 100, 100, 200], [192, 0, 0, 192]];
/// The same of AWS, Google and Oracle, by their first 32 bits.
const METADATA_V6: [[u16; 2]; 3] = [[0xfd00, 0xec2], [0xfd20, 0xce], [0xfd00, 0xc1]];

/// Addresses that no connection of a sandbox is made to, whatever it is told: the last of three places that say so, after resolver and packet filter, whose list
/// this is (`native/egress/bpf/address.h`).
pub fn is_never_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let bytes = v4.octets();
            let is_special = bytes[0] == 0 || v4.is_loopback() || v4.is_link_local() || v4.is_multicast();
            is_special || v4.is_broadcast() || METADATA_V4.contains(&bytes)
        }
        IpAddr::V6(v6) => {
            let words = v6.segments();
            // The first of these are the unspecified address and loopback as well; then translated, 6to4 and Teredo.
            let is_v4 = words[..5] == [0; 5] && matches!(words[5], 0 | 0xffff);
            let carries_v4 = is_v4 || words[..2] == [0x64, 0xff9b] || words[0] == 0x2002 || words[..2] == [0x2001, 0];
            let is_metadata = METADATA_V6.iter().any(|prefix| words[..2] == prefix[..]);
            carries_v4 || is_metadata || v6.is_unicast_link_local() || v6.is_multicast()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn some_addresses_are_never_reached() {
        for text in [
            "0.0.0.0",
            "0.1.2.3",
            "127.0.0.1",
            "127.9.9.9",
            "169.254.169.254",
            "224.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "ff02::1",
            "2001::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "fd00:c1::a9fe:a9fe",
        ] {
            assert!(is_never_reachable(text.parse().expect(text)), "{text}");
        }
        for text in
            ["1.1.1.1", "10.0.0.1", "192.0.2.1", "223.255.255.255", "2001:db8::1", "2001:1::1", "fd00::1", "2003::1"]
        {
            assert!(!is_never_reachable(text.parse().expect(text)), "{text}");
        }
    }
}
