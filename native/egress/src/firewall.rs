//! The host's packet filter: one table of nft(8), which lets through from uplinks only what a program has marked, and lets nobody in.

use std::io::Write;
use std::process::{Command, Stdio};

use crate::block::Block;
use crate::layout::{MARK_ALLOWED, MARK_FROM_GATE, MARK_LOCAL, MARK_TO_GATE};

const NFT: &str = "nft";
/// What every device of every server begins with.
const ALL_DEVICES: &str = "dsec*";

/// Connections that one sandbox may begin in a second, and questions that it may ask the resolver; as many again at once after a pause.
const MAX_BEGUN: u32 = 500;
const MAX_ASKED: u32 = 1_000;

pub struct Rules<'a> {
    pub block: &'a Block,
    pub gate_port: u16,
    pub service_ports: (u16, u16),
    /// Flows of one sandbox that the host keeps in mind at once.
    pub max_flows: u32,
    pub forwards_only_ours4: bool,
    pub forwards_only_ours6: bool,
}

impl Rules<'_> {
    fn text(&self) -> String {
        let block = self.block;
        let devices = format!("\"{}*\"", block.device_prefix());
        let (gateway4, gateway6) = (block.gateway4(), block.gateway6());
        let mark = |meaning| format!("{:#x}", block.mark(meaning));
        let (allowed, to_gate) = (mark(MARK_ALLOWED), mark(MARK_TO_GATE));
        let (local, from_gate) = (mark(MARK_LOCAL), mark(MARK_FROM_GATE));
        let (low, high) = self.service_ports;
        let Self { gate_port, max_flows, .. } = self;
        let mut others = String::new();
        for (is_so, family) in [(self.forwards_only_ours4, "ipv4"), (self.forwards_only_ours6, "ipv6")] {
            if is_so {
                // What arrives for sandboxes of other servers is for their tables to judge.
                others.push_str(&format!(
                    "    meta nfproto {family} iifname != \"{ALL_DEVICES}\" oifname != \"{ALL_DEVICES}\" drop\n"
                ));
            }
        }
        format!(
            r#"
  set flows4 {{ type ipv4_addr; size 8192; flags dynamic; }}
  set flows6 {{ type ipv6_addr; size 8192; flags dynamic; }}
  set begun4 {{ type ipv4_addr; size 8192; flags dynamic; }}
  set begun6 {{ type ipv6_addr; size 8192; flags dynamic; }}
  set asked4 {{ type ipv4_addr; size 8192; flags dynamic; }}
  set asked6 {{ type ipv6_addr; size 8192; flags dynamic; }}
  chain rates {{
    tcp flags & (syn | ack) == syn add @begun4 {{ ip saddr limit rate over {MAX_BEGUN}/second burst {MAX_BEGUN} packets }} drop
    tcp flags & (syn | ack) == syn add @begun6 {{ ip6 saddr limit rate over {MAX_BEGUN}/second burst {MAX_BEGUN} packets }} drop
    meta mark {local} udp dport 53 add @asked4 {{ ip saddr limit rate over {MAX_ASKED}/second burst {MAX_ASKED} packets }} drop
    meta mark {local} udp dport 53 add @asked6 {{ ip6 saddr limit rate over {MAX_ASKED}/second burst {MAX_ASKED} packets }} drop
  }}
  chain unmarked {{
    type filter hook prerouting priority raw; policy accept;
    iifname != {devices} return
    meta mark {{ {allowed}, {to_gate}, {local} }} jump rates
    meta mark {local} notrack accept
    meta mark {{ {allowed}, {to_gate} }} accept
    meta l4proto tcp reject with tcp reset
    reject with icmpx type admin-prohibited
  }}
  chain flows {{
    type filter hook prerouting priority mangle; policy accept;
    iifname != {devices} return
    meta mark {local} accept
    ct state new add @flows4 {{ ip saddr ct count over {max_flows} }} drop
    ct state new add @flows6 {{ ip6 saddr ct count over {max_flows} }} drop
    meta mark {allowed} accept
    meta nfproto ipv4 meta l4proto tcp tproxy ip to {gateway4}:{gate_port} accept
    meta nfproto ipv6 meta l4proto tcp tproxy ip6 to [{gateway6}]:{gate_port} accept
    meta l4proto tcp reject with tcp reset
    drop
  }}
  chain input {{
    type filter hook input priority filter; policy accept;
    iifname {devices} goto from_uplink
    iifname != "lo" ip daddr {gateway4} drop
    iifname != "lo" ip6 daddr {gateway6} drop
  }}
  chain from_uplink {{
    meta mark {local} ip daddr {gateway4} accept
    meta mark {local} ip6 daddr {gateway6} accept
    meta mark {to_gate} accept
    meta l4proto tcp reject with tcp reset
    reject with icmpx type admin-prohibited
  }}
  chain forward {{
    type filter hook forward priority filter; policy accept;
    iifname {devices} goto depart
    oifname {devices} goto arrive
{others}  }}
  chain depart {{
    oifname "{ALL_DEVICES}" drop
    meta mark {allowed} accept
    drop
  }}
  chain arrive {{
    ct direction reply ct state established accept
    ct state related accept
    drop
  }}
  chain untracked {{
    type filter hook output priority raw; policy accept;
    oifname != {devices} return
    ip saddr {gateway4} meta l4proto {{ tcp, udp }} th sport {{ 53, {low}-{high} }} notrack
    ip6 saddr {gateway6} meta l4proto {{ tcp, udp }} th sport {{ 53, {low}-{high} }} notrack
  }}
  chain output {{
    type filter hook output priority filter; policy accept;
    oifname {devices} goto to_uplink
  }}
  chain to_uplink {{
    tcp flags & (syn | ack) == syn drop
    ct state untracked accept
    meta mark {from_gate} accept
    ct state established,related accept
    tcp flags & rst == rst accept
    icmp type {{ destination-unreachable, time-exceeded }} accept
    icmpv6 type {{ destination-unreachable, packet-too-big, time-exceeded, parameter-problem }} accept
    drop
  }}
  chain leave {{
    type nat hook postrouting priority srcnat; policy accept;
    meta mark {allowed} oifname != {devices} masquerade
  }}
"#
        )
    }

    /// Puts the table in force, all of it at once; nothing when it is there already, so that what it counts goes on.
    pub fn apply(&self) -> Result<(), String> {
        let (table, text) = (self.block.table(), self.text());
        let comment = format!("dsec {:016x}", digest(&text));
        if run(&["list", "table", "inet", &table], "").is_ok_and(|present| present.contains(&comment)) {
            return Ok(());
        }
        // A table that is not there cannot be deleted.
        let whole = format!(
            "table inet {table}\ndelete table inet {table}\ntable inet {table} {{\n  comment \"{comment}\"\n{text}}}\n"
        );
        run(&["-f", "-"], &whole).map(drop)
    }
}

pub fn remove(block: &Block) -> Result<(), String> {
    let table = block.table();
    run(&["-f", "-"], &format!("table inet {table}\ndelete table inet {table}\n")).map(drop)
}

/// FNV-1a: texts need to differ, not to resist anyone.
fn digest(text: &str) -> u64 {
    text.bytes().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(byte)).wrapping_mul(0x100_0000_01B3))
}

fn run(arguments: &[&str], input: &str) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("{NFT}: {error} (Debian package nftables)");
    let mut command = Command::new(NFT);
    // A user's own shell may not have the directories of root's programs.
    let path = std::env::var("PATH").unwrap_or_default();
    command.args(arguments).env("PATH", format!("/usr/sbin:/sbin:{path}"));
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().map_err(failed)?;
    if let Some(mut stdin) = child.stdin.take() {
        // What it does not read it complains about itself.
        let _ = stdin.write_all(input.as_bytes());
    }
    let output = child.wait_with_output().map_err(failed)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    Err(format!("{NFT}: {}", said.lines().next().unwrap_or("failed")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cidr::Cidr;

    #[test]
    fn a_host_that_forwarded_nothing_forwards_for_the_sandboxes_of_all_servers() {
        let cidr = |text: &str| Cidr::parse(text).expect(text);
        let block = Block::new(0, cidr("198.18.0.0/15"), cidr("fd64:7365:6300::/48"));
        let text = |is_so| {
            let rules = Rules {
                block: &block,
                gate_port: 1,
                service_ports: (2, 3),
                max_flows: 4,
                forwards_only_ours4: is_so,
                forwards_only_ours6: is_so,
            };
            rules.text()
        };
        let added: Vec<String> =
            text(true).lines().filter(|line| !text(false).contains(line)).map(|line| line.trim().to_owned()).collect();
        let expected = ["ipv4", "ipv6"]
            .map(|family| format!(r#"meta nfproto {family} iifname != "dsec*" oifname != "dsec*" drop"#));
        assert_eq!(added, expected);
    }
}
