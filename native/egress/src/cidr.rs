//! Prefixes of addresses, in the one form that each has: nothing behind the prefix, no zeros in front.

use std::net::IpAddr;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Cidr {
    pub address: IpAddr,
    pub bits: u32,
}

pub fn width(address: IpAddr) -> u32 {
    if address.is_ipv4() { 32 } else { 128 }
}

/// The number that an address is.
pub fn number(address: IpAddr) -> u128 {
    match address {
        IpAddr::V4(address) => u32::from(address).into(),
        IpAddr::V6(address) => address.into(),
    }
}

/// The address that a number is, of the same family as another.
pub fn of_number(number: u128, like: IpAddr) -> IpAddr {
    if like.is_ipv4() { IpAddr::from((number as u32).to_be_bytes()) } else { IpAddr::from(number.to_be_bytes()) }
}

impl Cidr {
    /// Reads `ADDRESS` or `ADDRESS/BITS`.
    pub fn parse(text: &str) -> Option<Self> {
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits)),
            None => (text, None),
        };
        let address: IpAddr = address.parse().ok()?;
        let bits = match bits {
            None => width(address),
            Some(bits) => {
                let parsed: u32 = bits.parse().ok()?;
                (parsed.to_string() == bits && parsed <= width(address)).then_some(parsed)?
            }
        };
        let cidr = Self { address, bits };
        (cidr.first() == number(address)).then_some(cidr)
    }

    /// Bits that are set.
    pub fn mask(&self) -> u128 {
        let host = width(self.address) - self.bits;
        let all = u128::MAX >> (128 - width(self.address));
        if host == 128 { 0 } else { all >> host << host }
    }

    fn first(&self) -> u128 {
        number(self.address) & self.mask()
    }

    pub fn mask_address(&self) -> IpAddr {
        of_number(self.mask(), self.address)
    }

    pub fn overlaps(&self, other: &Self) -> bool {
        let mask = self.mask() & other.mask();
        self.address.is_ipv4() == other.address.is_ipv4() && self.first() & mask == other.first() & mask
    }

    /// An address by its place.
    pub fn at(&self, place: u128) -> IpAddr {
        of_number(self.first() + place, self.address)
    }
}

impl std::fmt::Display for Cidr {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}/{}", self.address, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn prefixes_have_one_form() {
        for text in ["198.51.100.0/24", "0.0.0.0/0", "::/0", "2001:db8::/32", "203.0.113.7/32"] {
            assert_eq!(Cidr::parse(text).expect(text).to_string(), text);
        }
        assert_eq!(Cidr::parse("203.0.113.7").map(|cidr| cidr.bits), Some(32));
        for text in
            ["", "x", "198.51.100.1/24", "198.51.100.0/33", "198.51.100.0/024", "198.51.100.0/", "::1/64", "01.2.3.4"]
        {
            assert_eq!(Cidr::parse(text), None, "{text}");
        }
    }

    #[test]
    fn overlap_goes_both_ways() {
        let cidr = |text: &str| Cidr::parse(text).expect(text);
        for (a, b, overlaps) in [
            ("198.18.0.0/15", "198.19.4.0/24", true),
            ("198.18.0.0/20", "198.18.16.0/20", false),
            ("0.0.0.0/0", "198.18.0.0/20", true),
            ("::/0", "198.18.0.0/20", false),
        ] {
            assert_eq!(cidr(a).overlaps(&cidr(b)), overlaps, "{a} {b}");
            assert_eq!(cidr(b).overlaps(&cidr(a)), overlaps, "{b} {a}");
        }
    }
}
