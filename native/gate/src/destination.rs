//! Where a connection wanted to go, and where none ever goes.

use std::net::IpAddr;

/// Addresses that no connection of a sandbox is made to, whatever it is told: the last of three places that say so, after resolver and packet filter.
pub fn is_never_reachable(address: IpAddr) -> bool {
    match address {
        IpAddr::V4(v4) => {
            let [first, ..] = v4.octets();
            first == 0 || v4.is_loopback() || v4.is_link_local() || first >= 224
        }
        IpAddr::V6(v6) => {
            let words = v6.segments();
            let carries_v4 = words[..5] == [0; 5] || words[..6] == [0x64, 0xff9b, 0, 0, 0, 0] || words[0] == 0x2002;
            let is_metadata = words == [0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254];
            // The first of these are the unspecified address and loopback as well.
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
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "::ffff:127.0.0.1",
            "::10.0.0.1",
            "64:ff9b::7f00:1",
            "2002:7f00:1::",
            "fe80::1",
            "ff02::1",
            "fd00:ec2::254",
        ] {
            assert!(is_never_reachable(text.parse().expect(text)), "{text}");
        }
        for text in ["1.1.1.1", "10.0.0.1", "192.0.2.1", "223.255.255.255", "2001:db8::1", "fd00::1", "2003::1"] {
            assert!(!is_never_reachable(text.parse().expect(text)), "{text}");
        }
    }
}
