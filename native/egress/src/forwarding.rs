//! Whether the host forwards packets at all (ip-sysctl of the kernel): for a sandbox to reach anything it must.

use std::path::Path;

const IPV4: &str = "/proc/sys/net/ipv4/ip_forward";
const IPV6: &str = "/proc/sys/net/ipv6/conf/all/forwarding";
const IPV6_DEVICES: &str = "/proc/sys/net/ipv6/conf";

fn read(path: impl AsRef<Path>) -> Option<String> {
    std::fs::read_to_string(path).ok().map(|text| text.trim().to_owned())
}

/// Turns it on. Whether it was off.
pub fn turn_on4() -> std::io::Result<bool> {
    turn_on(IPV4)
}

/// The same. A host that forwards no longer listens to router advertisements, unless told to go on: it would lose its own way out.
pub fn turn_on6() -> std::io::Result<bool> {
    if read(IPV6).as_deref() == Some("0") {
        for device in std::fs::read_dir(IPV6_DEVICES)? {
            let setting = device?.path().join("accept_ra");
            if read(&setting).as_deref() == Some("1") {
                std::fs::write(&setting, "2")?;
            }
        }
    }
    turn_on(IPV6)
}

fn turn_on(path: &str) -> std::io::Result<bool> {
    match read(path).as_deref() {
        // The host has no such protocol.
        None => Ok(false),
        Some("0") => std::fs::write(path, "1").map(|()| true),
        Some(_) => Ok(false),
    }
}

pub fn turn_off4() -> std::io::Result<()> {
    std::fs::write(IPV4, "0")
}

pub fn turn_off6() -> std::io::Result<()> {
    std::fs::write(IPV6, "0")
}

/// Whether the host has IPv6, and its devices too: it may be turned off for all, for new ones, or for the one that has the gateway's address.
pub fn has_ipv6() -> bool {
    let is_off = |device| read(Path::new(IPV6_DEVICES).join(device).join("disable_ipv6")).as_deref() != Some("0");
    !["all", "default", "lo"].into_iter().any(is_off)
}
