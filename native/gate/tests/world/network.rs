//! Namespaces and links. `sandbox - host - router - far`, with 1,400 bytes a packet between the last two.

use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU32, Ordering};

use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

pub const SANDBOX_V4: &str = "198.18.0.2";
pub const SANDBOX_V6: &str = "fd00:18::2";
/// Another sandbox, in the same namespace: what tells them apart is their address.
pub const NEIGHBOUR_V4: &str = "198.18.0.3";
/// Where the gate listens on the host.
pub const GATE_PORT: u16 = 18_080;
/// The only port that nft lets past the gate: to compare with.
pub const DIRECT_PORT: u16 = 8_443;
const ROLES: [&str; 4] = ["sandbox", "host", "router", "far"];

pub struct Network {
    tag: String,
}

static COUNT: AtomicU32 = AtomicU32::new(0);

impl Network {
    pub fn begin() -> Self {
        let tag = format!("dsecgate{}n{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let network = Self { tag };
        for role in ROLES {
            command("ip", &["netns", "add", &network.name(role)], "");
        }
        network.link("sandbox", "s0", "host", "h0");
        network.link("host", "h1", "router", "r0");
        network.link("router", "r1", "far", "f0");
        network.ip(
            "sandbox",
            "addr add 198.18.0.2/24 dev s0\naddr add 198.18.0.3/24 dev s0\naddr add fd00:18::2/64 dev s0 nodad\nroute add default via 198.18.0.1\n\
             -6 route add default via fd00:18::1\n",
        );
        network.ip(
            "host",
            "addr add 198.18.0.1/24 dev h0\naddr add fd00:18::1/64 dev h0 nodad\naddr add 192.0.2.1/24 dev h1\n\
             addr add fd00:19::1/64 dev h1 nodad\nroute add default via 192.0.2.2\n-6 route add default via fd00:19::2\n\
             rule add fwmark 1 lookup 100\nroute add local default dev lo table 100\n-6 rule add fwmark 1 lookup 100\n\
             -6 route add local default dev lo table 100\n",
        );
        network.ip(
            "router",
            "addr add 192.0.2.2/24 dev r0\naddr add fd00:19::2/64 dev r0 nodad\naddr add 198.51.100.1/24 dev r1\n\
             addr add fd00:20::1/64 dev r1 nodad\nlink set r1 mtu 1400\nroute add 203.0.113.0/24 via 198.51.100.2\n\
             route add 198.18.0.0/24 via 192.0.2.1\n-6 route add fd00:18::/64 via fd00:19::1\n\
             -6 route add 2001:db8:1::/64 via fd00:20::2\n",
        );
        network.ip(
            "far",
            "addr add 198.51.100.2/24 dev f0\naddr add fd00:20::2/64 dev f0 nodad\nlink set f0 mtu 1400\n\
             addr add 203.0.113.1/32 dev lo\naddr add 203.0.113.2/32 dev lo\naddr add 203.0.113.3/32 dev lo\n\
             addr add 2001:db8:1::1/128 dev lo nodad\nroute add default via 198.51.100.1\n-6 route add default via fd00:20::1\n",
        );
        for role in ["host", "router"] {
            network.inside(role, || {
                for (name, value) in
                    [("ipv4/ip_forward", "1"), ("ipv6/conf/all/forwarding", "1"), ("ipv4/conf/all/rp_filter", "0")]
                {
                    std::fs::write(format!("/proc/sys/net/{name}"), value).expect(name);
                }
            });
        }
        let rules = format!(
            "table inet gate {{ chain before {{ type filter hook prerouting priority mangle; policy accept;
            iifname h0 tcp dport {DIRECT_PORT} accept
            iifname h0 meta nfproto ipv4 meta l4proto tcp tproxy ip to :{GATE_PORT} meta mark set 1 accept
            iifname h0 meta nfproto ipv6 meta l4proto tcp tproxy ip6 to :{GATE_PORT} meta mark set 1 accept\n}}\n}}\n"
        );
        network.inside("host", || command("nft", &["-f", "-"], &rules));
        network
    }

    pub fn name(&self, role: &str) -> String {
        format!("{}-{role}", self.tag)
    }

    pub fn names(&self) -> Vec<String> {
        ROLES.iter().map(|role| self.name(role)).collect()
    }

    /// Does something in the network of one of them.
    pub fn inside<T: Send>(&self, role: &str, work: impl FnOnce() -> T + Send) -> T {
        let namespace = File::open(format!("/run/netns/{}", self.name(role))).expect("namespace");
        let work = || {
            move_into_link_name_space(namespace.as_fd(), Some(LinkNameSpaceType::Network)).expect("entered");
            work()
        };
        std::thread::scope(|scope| scope.spawn(work).join()).unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }

    fn ip(&self, role: &str, commands: &str) {
        // One batch is of one family where a command does not say its own.
        let (v6, others): (Vec<&str>, Vec<&str>) = commands.lines().partition(|line| line.starts_with("-6 "));
        let v6: Vec<&str> = v6.iter().filter_map(|line| line.strip_prefix("-6 ")).collect();
        let name = self.name(role);
        command("ip", &["-n", &name, "-batch", "-"], &format!("{}\n", others.join("\n")));
        command("ip", &["-6", "-n", &name, "-batch", "-"], &format!("{}\n", v6.join("\n")));
    }

    fn link(&self, one: &str, device: &str, other: &str, peer: &str) {
        let (one, other) = (self.name(one), self.name(other));
        command(
            "ip",
            &["link", "add", device, "netns", &one, "type", "veth", "peer", "name", peer, "netns", &other],
            "",
        );
        for (name, device) in [(&one, device), (&other, peer)] {
            command("ip", &["-n", name, "-batch", "-"], &format!("link set lo up\nlink set {device} up\n"));
        }
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for name in self.names() {
            let _ = Command::new("ip").args(["netns", "del", &name]).status();
        }
    }
}

fn command(program: &str, arguments: &[&str], input: &str) {
    let mut child = Command::new(program)
        .args(arguments)
        .stdin(Stdio::piped())
        .stderr(Stdio::piped())
        .stdout(Stdio::null())
        .spawn()
        .expect(program);
    child.stdin.take().expect("input").write_all(input.as_bytes()).expect("written");
    let output = child.wait_with_output().expect("ended");
    assert!(output.status.success(), "{program} {arguments:?}: {}", String::from_utf8_lossy(&output.stderr));
}
