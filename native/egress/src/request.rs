//! What clients may ask for. Everything is checked here, and nothing in a request is a path.

use std::collections::HashSet;
use std::net::IpAddr;
use std::time::Duration;

use launcher::request::SandboxId;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::cidr::Cidr;
use crate::layout::{
    Address, FLAG_NAMES, FLAG_PUBLIC, FLAG_RESOLVER, FLAG_SERVICES, MAX_PIN_RANGES, MAX_RANGES, Range, address_of,
};
use crate::origins::Asker;
use crate::rules::{self, RuleSet};
use daemon::failure::Failure;

pub const MAX_RULES: usize = 8_192;
pub const MAX_NAMES: usize = 8_192;
pub const MAX_PINS: usize = 4_096;
/// With a wildcard in front.
const MAX_NAME_BYTES: usize = 255;
/// The longest that a sandbox may take to come.
const MAX_WAIT: Duration = Duration::from_secs(120);
const TTL_MS: std::ops::RangeInclusive<u64> = 1..=7 * 86_400_000;

#[derive(Debug, PartialEq)]
pub enum Request {
    NodeInfo,
    Open(SandboxId),
    /// Whether the answer waits until the device is gone.
    Close(SandboxId, bool),
    List,
    SetPolicy(Box<NewPolicy>),
    AddPins {
        id: SandboxId,
        generation: u32,
        pins: Vec<NewPin>,
    },
    Counters(SandboxId),
    Owner {
        id: SandboxId,
        address: IpAddr,
        asker: Asker,
    },
    Events,
}

#[derive(Debug, PartialEq)]
pub struct NewPolicy {
    pub id: SandboxId,
    /// A sandbox without an uplink gets one. One that is not there yet may come for so long.
    pub opens: Option<Duration>,
    pub flags: u8,
    pub rules: RuleSet,
    pub pins: Vec<NewPin>,
    pub names: Vec<Name>,
}

/// An address that a name has, for a while.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPin {
    pub address: Address,
    pub name: String,
    pub ttl: Duration,
    pub ranges: Vec<WireRange>,
}

/// A name, or `*.name` for all below it, with what is allowed by it.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Name {
    pub pattern: String,
    pub ports: Vec<WireRange>,
    /// Whatever a connection carries, its address decides.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub any_protocol: bool,
}

#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Protocol {
    Tcp,
    Udp,
    Icmp,
}

impl Protocol {
    pub fn number(self) -> u8 {
        match self {
            Self::Tcp => 6,
            Self::Udp => 17,
            Self::Icmp => 1,
        }
    }
}

/// Protocol, lowest and highest port, whether it is allowed.
#[derive(Clone, Copy, Debug, Deserialize, PartialEq, Eq, Serialize)]
pub struct WireRange(pub Protocol, pub u16, pub u16, pub bool);

impl WireRange {
    pub fn layout(self) -> Range {
        Range { low: self.1, high: self.2, protocol: self.0.number(), allow: self.3.into() }
    }
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Nothing {}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OfSandbox {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Closing {
    id: String,
    /// The sandbox is over: its device may go later.
    #[serde(default)]
    is_over: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Opening {
    #[serde(default)]
    wait_ms: u64,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Flags {
    resolver: bool,
    services: bool,
    names: bool,
    public: bool,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WireRule {
    cidr: String,
    ranges: Vec<WireRange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WirePin {
    address: String,
    name: String,
    ttl_ms: u64,
    ranges: Vec<WireRange>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PolicyParams {
    id: String,
    open: Option<Opening>,
    flags: Flags,
    rules: Vec<WireRule>,
    pins: Vec<WirePin>,
    names: Vec<Name>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinsParams {
    id: String,
    generation: u32,
    pins: Vec<WirePin>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct OwnerParams {
    id: String,
    address: IpAddr,
    port: u16,
    protocol: Protocol,
}

/// Reads a method and the text of its params.
pub fn parse(method: &str, params: &str) -> Result<Request, Failure> {
    Ok(match method {
        "node.info" => empty(params, Request::NodeInfo)?,
        "uplink.open" => Request::Open(sandbox(&read::<OfSandbox>(params)?.id)?),
        "uplink.close" => {
            let Closing { id, is_over } = read(params)?;
            Request::Close(sandbox(&id)?, !is_over)
        }
        "uplink.list" => empty(params, Request::List)?,
        "policy.set" => Request::SetPolicy(Box::new(policy(read(params)?)?)),
        "pins.add" => {
            let PinsParams { id, generation, pins } = read(params)?;
            Request::AddPins { id: sandbox(&id)?, generation, pins: new_pins(pins)? }
        }
        "counters" => Request::Counters(sandbox(&read::<OfSandbox>(params)?.id)?),
        "owner" => {
            let OwnerParams { id, address, port, protocol } = read(params)?;
            if protocol == Protocol::Icmp {
                return Err(Failure::invalid("protocol", "must be tcp or udp"));
            }
            let asker = Asker { protocol: protocol.number(), is_ipv6: address.is_ipv6(), port };
            Request::Owner { id: sandbox(&id)?, address, asker }
        }
        "events" => empty(params, Request::Events)?,
        other => return Err(Failure::new("unknown_method", format!("egressd has no method {other}"))),
    })
}

fn empty(params: &str, request: Request) -> Result<Request, Failure> {
    read::<Nothing>(params).map(|Nothing {}| request)
}

fn read<T: DeserializeOwned>(params: &str) -> Result<T, Failure> {
    serde_json::from_str(params).map_err(|error| Failure::invalid("params", &format!("do not fit the method: {error}")))
}

fn sandbox(text: &str) -> Result<SandboxId, Failure> {
    SandboxId::parse(text).ok_or_else(|| Failure::invalid("id", "is not 1 to 24 of a-z and 0-9"))
}

fn bounded(field: &str, length: usize, most: usize) -> Result<(), Failure> {
    if length <= most { Ok(()) } else { Err(Failure::invalid(field, &format!("are more than {most}"))) }
}

fn policy(params: PolicyParams) -> Result<NewPolicy, Failure> {
    bounded("rules", params.rules.len(), MAX_RULES)?;
    bounded("names", params.names.len(), MAX_NAMES)?;
    let Flags { resolver, services, names, public } = params.flags;
    let flag = |is_set: bool, flag: u8| if is_set { flag } else { 0 };
    let flags = flag(resolver, FLAG_RESOLVER)
        | flag(services, FLAG_SERVICES)
        | flag(names, FLAG_NAMES)
        | flag(public, FLAG_PUBLIC);
    for (at, name) in params.names.iter().enumerate() {
        let field = format!("names.{at}");
        check_name(&format!("{field}.pattern"), name.pattern.strip_prefix("*.").unwrap_or(&name.pattern))?;
        check_ranges(&format!("{field}.ports"), &name.ports, MAX_RANGES)?;
    }
    let opens = params.open.map(|open| Duration::from_millis(open.wait_ms));
    if opens.is_some_and(|wait| wait > MAX_WAIT) {
        return Err(Failure::invalid("open.waitMs", &format!("is more than {}", MAX_WAIT.as_millis())));
    }
    Ok(NewPolicy {
        id: sandbox(&params.id)?,
        opens,
        flags,
        rules: rule_set(params.rules)?,
        pins: new_pins(params.pins)?,
        names: params.names,
    })
}

fn rule_set(wire: Vec<WireRule>) -> Result<RuleSet, Failure> {
    let mut seen = HashSet::with_capacity(wire.len());
    let mut entries = Vec::with_capacity(wire.len());
    for (at, rule) in wire.into_iter().enumerate() {
        let field = format!("rules.{at}");
        let cidr = Cidr::parse(&rule.cidr)
            .filter(|cidr| !is_mapped(cidr))
            .ok_or_else(|| Failure::invalid(&format!("{field}.cidr"), "is no address and no CIDR in its one form"))?;
        if !seen.insert(cidr) {
            return Err(Failure::invalid(&format!("{field}.cidr"), "comes twice"));
        }
        check_ranges(&format!("{field}.ranges"), &rule.ranges, MAX_RANGES)?;
        entries.push(rules::entry(&cidr, &rule.ranges));
    }
    Ok(RuleSet::new(entries))
}

/// Such a prefix would speak of IPv4.
fn is_mapped(cidr: &Cidr) -> bool {
    cidr.address.is_ipv6()
        && Cidr::parse("::ffff:0:0/96").is_some_and(|mapped| mapped.overlaps(cidr) && cidr.bits >= 96)
}

fn check_ranges(field: &str, ranges: &[WireRange], most: usize) -> Result<(), Failure> {
    bounded(field, ranges.len(), most)?;
    if ranges.iter().any(|range| range.1 > range.2) {
        return Err(Failure::invalid(field, "have a range that ends before it begins"));
    }
    Ok(())
}

fn check_name(field: &str, name: &str) -> Result<(), Failure> {
    let is_plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-_.".contains(&byte);
    if (1..=MAX_NAME_BYTES).contains(&name.len()) && name.bytes().all(is_plain) {
        return Ok(());
    }
    Err(Failure::invalid(field, "is no name in lower case, with A-labels, without a final dot"))
}

fn new_pins(wire: Vec<WirePin>) -> Result<Vec<NewPin>, Failure> {
    bounded("pins", wire.len(), MAX_PINS)?;
    let one = |(at, pin): (usize, WirePin)| {
        let field = |name: &str| format!("pins.{at}.{name}");
        let address = Cidr::parse(&pin.address).filter(|cidr| {
            cidr.bits == crate::cidr::width(cidr.address) && !pin.address.contains('/') && !is_mapped(cidr)
        });
        let address = address.ok_or_else(|| Failure::invalid(&field("address"), "is no address"))?;
        check_name(&field("name"), &pin.name)?;
        check_ranges(&field("ranges"), &pin.ranges, MAX_PIN_RANGES)?;
        if pin.ranges.iter().any(|range| range.0 == Protocol::Icmp || !range.3) {
            return Err(Failure::invalid(&field("ranges"), "of a pin allow ports of tcp and udp"));
        }
        if !TTL_MS.contains(&pin.ttl_ms) {
            let why = format!("must be {} to {}", TTL_MS.start(), TTL_MS.end());
            return Err(Failure::invalid(&field("ttlMs"), &why));
        }
        Ok(NewPin {
            address: address_of(address.address),
            name: pin.name,
            ttl: Duration::from_millis(pin.ttl_ms),
            ranges: pin.ranges,
        })
    };
    wire.into_iter().enumerate().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::{Value, json};

    fn policy_params() -> Value {
        json!({
            "id": "a1",
            "flags": { "resolver": true, "services": false, "names": true, "public": false },
            "rules": [{ "cidr": "198.51.100.0/24", "ranges": [["tcp", 443, 443, true]] }],
            "pins": [{ "address": "203.0.113.5", "name": "a.example", "ttlMs": 1000, "ranges": [["tcp", 443, 443, true]] }],
            "names": [{ "pattern": "*.example", "ports": [["tcp", 443, 443, true]] }],
        })
    }

    #[test]
    fn a_whole_policy_is_read() {
        let Ok(Request::SetPolicy(policy)) = parse("policy.set", &policy_params().to_string()) else {
            panic!("not read")
        };
        assert_eq!(policy.flags, FLAG_RESOLVER | FLAG_NAMES);
        assert_eq!(policy.rules.entries().len(), 1);
        assert_eq!(policy.pins[0].ttl, Duration::from_secs(1));
        assert_eq!(policy.names[0].pattern, "*.example");
    }

    #[test]
    fn what_is_wrong_is_named() {
        for (pointer, value, field) in [
            ("/id", json!("../a"), "id"),
            ("/rules/0/cidr", json!("198.51.100.1/24"), "rules.0.cidr"),
            ("/rules/0/cidr", json!("::ffff:198.51.100.0/120"), "rules.0.cidr"),
            ("/rules/0/cidr", json!("example.org"), "rules.0.cidr"),
            ("/rules/0/ranges/0", json!(["tcp", 9, 8, true]), "rules.0.ranges"),
            ("/rules/0/ranges", json!(vec![json!(["tcp", 1, 1, true]); 17]), "rules.0.ranges"),
            ("/rules/0/ranges/0", json!(["gre", 1, 1, true]), "params"),
            ("/rules/0/ranges/0", json!(["tcp", 1, 65_536, true]), "params"),
            ("/pins/0/address", json!("203.0.113.0/24"), "pins.0.address"),
            ("/pins/0/ttlMs", json!(0), "pins.0.ttlMs"),
            ("/pins/0/name", json!("A.example"), "pins.0.name"),
            ("/pins/0/ranges", json!(vec![json!(["tcp", 1, 1, true]); 5]), "pins.0.ranges"),
            ("/pins/0/ranges/0", json!(["tcp", 1, 1, false]), "pins.0.ranges"),
            ("/names/0/pattern", json!("*.*.example"), "names.0.pattern"),
            ("/names/0/pattern", json!("x".repeat(300)), "names.0.pattern"),
            ("/flags/public", json!(1), "params"),
        ] {
            let mut params = policy_params();
            *params.pointer_mut(pointer).expect(pointer) = value.clone();
            let failure = parse("policy.set", &params.to_string()).expect_err(pointer);
            assert_eq!(failure.code, "invalid_argument");
            assert_eq!(failure.details["field"], field, "{pointer} {value}");
        }
    }

    #[test]
    fn numbers_of_things_are_bounded() {
        let rule = |n: usize| json!({ "cidr": format!("10.{}.{}.0/24", n / 256, n % 256), "ranges": [] });
        let mut params = policy_params();
        params["rules"] = (0..MAX_RULES).map(rule).collect();
        assert!(parse("policy.set", &params.to_string()).is_ok());
        params["rules"] = (0..=MAX_RULES).map(rule).collect();
        assert_eq!(parse("policy.set", &params.to_string()).expect_err("many").details["field"], "rules");
        params["rules"] = json!([rule(1), rule(1)]);
        assert_eq!(parse("policy.set", &params.to_string()).expect_err("twice").details["field"], "rules.1.cidr");
    }

    #[test]
    fn unknown_members_and_methods_are_refused() {
        let mut params = policy_params();
        params["path"] = json!("/etc");
        assert_eq!(parse("policy.set", &params.to_string()).expect_err("unknown").details["field"], "params");
        assert!(parse("node.info", r#"{"x":1}"#).is_err());
        assert_eq!(parse("uplink.explode", "{}").expect_err("unknown").code, "unknown_method");
    }
}
