//! What the one who feeds the gate may ask for. Everything is checked here.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::time::Duration;

use daemon::failure::Failure;
use serde::Deserialize;
use serde::de::{DeserializeOwned, IgnoredAny};

use crate::bounds::{MAX_NAMES, MAX_PIN_TIME, MAX_PINS, MAX_PORT_RANGES};
use crate::name::HostName;
use crate::pins::Pin;
use crate::policy::{Pattern, Ports, Rule, Verdict};

const MAX_ID: usize = 24;

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct SandboxId(Box<str>);

impl SandboxId {
    pub fn parse(text: &str) -> Option<Self> {
        let is_sound = text.bytes().all(|byte| byte.is_ascii_lowercase() || byte.is_ascii_digit());
        (is_sound && (1..=MAX_ID).contains(&text.len())).then(|| Self(text.into()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for SandboxId {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Request {
    Set(NewPolicy),
    AddPins(NewPins),
    Remove(SandboxId),
    Flows(SandboxId),
    Info,
    Events,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPolicy {
    pub id: SandboxId,
    pub addresses: Vec<IpAddr>,
    pub generation: u64,
    pub rules: Vec<Rule>,
    pub pins: Vec<Pin>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewPins {
    pub id: SandboxId,
    pub generation: u64,
    pub pins: Vec<Pin>,
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
#[serde(deny_unknown_fields)]
struct PolicyParams {
    id: String,
    address4: Option<Ipv4Addr>,
    address6: Option<Ipv6Addr>,
    generation: u64,
    names: Vec<NameParams>,
    pins: Vec<PinParams>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NameParams {
    pattern: String,
    /// Protocol, both ends, whether they are allowed.
    ports: Vec<(Protocol, u16, u16, bool)>,
    #[serde(default, rename = "anyProtocol")]
    any_protocol: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum Protocol {
    Tcp,
    /// The packet filter's.
    Udp,
    Icmp,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinParams {
    address: IpAddr,
    name: String,
    #[serde(rename = "ttlMs")]
    ttl_ms: u64,
    /// The packet filter's: here the ports are those of the name.
    #[serde(default, rename = "ranges")]
    _ranges: IgnoredAny,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct PinsParams {
    id: String,
    generation: u64,
    pins: Vec<PinParams>,
}

/// Reads a method and the text of its params.
pub fn parse(method: &str, params: &str) -> Result<Request, Failure> {
    Ok(match method {
        "policy.set" => Request::Set(policy(read(params)?)?),
        "pins.add" => {
            let PinsParams { id, generation, pins } = read(params)?;
            Request::AddPins(NewPins { id: sandbox(&id)?, generation, pins: all_pins(pins)? })
        }
        "policy.remove" => Request::Remove(sandbox(&read::<OfSandbox>(params)?.id)?),
        "flows" => Request::Flows(sandbox(&read::<OfSandbox>(params)?.id)?),
        "gate.info" => read::<Nothing>(params).map(|_| Request::Info)?,
        "events" => read::<Nothing>(params).map(|_| Request::Events)?,
        _ => return Err(Failure::new("unknown_method", "the gate has no such method")),
    })
}

fn read<T: DeserializeOwned>(params: &str) -> Result<T, Failure> {
    // The parser's text names members and positions, never values.
    serde_json::from_str(params).map_err(|error| Failure::invalid("params", &format!("do not fit the method: {error}")))
}

fn sandbox(text: &str) -> Result<SandboxId, Failure> {
    SandboxId::parse(text).ok_or_else(|| Failure::invalid("id", "must be 1 to 24 of a-z and 0-9"))
}

fn policy(params: PolicyParams) -> Result<NewPolicy, Failure> {
    let addresses =
        params.address4.map(IpAddr::V4).into_iter().chain(params.address6.map(IpAddr::V6)).collect::<Vec<_>>();
    if addresses.is_empty() {
        return Err(Failure::invalid("params", "must have address4 or address6"));
    }
    if params.names.len() > MAX_NAMES {
        return Err(Failure::invalid("names", &format!("are more than {MAX_NAMES}")));
    }
    let rules = params.names.into_iter().map(rule).collect::<Result<_, _>>()?;
    let (id, pins) = (sandbox(&params.id)?, all_pins(params.pins)?);
    Ok(NewPolicy { id, addresses, generation: params.generation, rules, pins })
}

fn rule(params: NameParams) -> Result<Rule, Failure> {
    let pattern = Pattern::parse(&params.pattern);
    let pattern =
        pattern.ok_or_else(|| Failure::invalid("names", "have a pattern that is no name, nor *. and a name"))?;
    let is_sound = params.ports.iter().all(|(_, low, high, _)| low <= high);
    if !is_sound || !(1..=MAX_PORT_RANGES).contains(&params.ports.len()) {
        return Err(Failure::invalid("names", &format!("must each have 1 to {MAX_PORT_RANGES} ranges of ports")));
    }
    let tcp = params.ports.into_iter().filter(|(protocol, ..)| *protocol == Protocol::Tcp);
    let ports = tcp.map(|(_, low, high, is_allowed)| {
        let verdict = match (is_allowed, params.any_protocol) {
            (false, _) => Verdict::Denied,
            (true, false) => Verdict::Named,
            (true, true) => Verdict::Any,
        };
        Ports { low, high, verdict }
    });
    Ok(Rule { pattern, ports: ports.collect() })
}

fn all_pins(params: Vec<PinParams>) -> Result<Vec<Pin>, Failure> {
    if params.len() > MAX_PINS {
        return Err(Failure::invalid("pins", &format!("are more than {MAX_PINS}")));
    }
    params.into_iter().map(pin).collect()
}

fn pin(params: PinParams) -> Result<Pin, Failure> {
    let name = HostName::parse(params.name.as_bytes());
    let name = name.ok_or_else(|| Failure::invalid("pins", "have one that is for no name of a host"))?;
    // Where an address is never reachable, a pin opens nothing: a name's owner must not be able to have the whole call refused.
    Ok(Pin { address: params.address, name, ttl: Duration::from_millis(params.ttl_ms).min(MAX_PIN_TIME) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_are_read() {
        let set = r#"{"id":"a1","address4":"198.18.0.2","generation":1,"names":[{"pattern":"*.A.test","ports":[["tcp",80,80,true],["udp",1,9,true]]},
            {"pattern":"b.test","ports":[["tcp",1,9,false],["tcp",1,99,true]],"anyProtocol":true}],
            "pins":[{"address":"2001:db8::1","name":"x.a.test","ttlMs":5,"ranges":[["tcp",1,9,true]]}]}"#;
        let Ok(Request::Set(policy)) = parse("policy.set", set) else { panic!("not read") };
        let ports = |low, high, verdict| Ports { low, high, verdict };
        assert_eq!(policy.rules[0].ports, [ports(80, 80, Verdict::Named)]);
        assert_eq!(policy.rules[1].ports, [ports(1, 9, Verdict::Denied), ports(1, 99, Verdict::Any)]);
        assert!(policy.rules[0].pattern.is_wildcard && policy.rules[0].pattern.name.as_str() == "a.test");
        assert_eq!(policy.pins[0].ttl, Duration::from_millis(5));
        assert!(matches!(parse("flows", r#"{"id":"a1"}"#), Ok(Request::Flows(_))));
        assert!(matches!(parse("policy.remove", r#"{"id":"a1"}"#), Ok(Request::Remove(_))));
        assert_eq!(parse("events", "{}"), Ok(Request::Events));
        assert_eq!(parse("gate.info", "{}"), Ok(Request::Info));
        assert_eq!(parse("explode", "{}").expect_err("unknown").code, "unknown_method");
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let policy = |id: &str, names: &str, pins: &str| {
            parse(
                "policy.set",
                &format!(r#"{{"id":"{id}","address4":"198.18.0.2","generation":1,"names":[{names}],"pins":[{pins}]}}"#),
            )
        };
        assert!(policy("a1", "", "").is_ok());
        for (id, names, pins) in [
            ("A", "", ""),
            ("", "", ""),
            ("../a", "", ""),
            ("a1", r#"{"pattern":"*","ports":[["tcp",1,2,true]]}"#, ""),
            ("a1", r#"{"pattern":"a.*.test","ports":[["tcp",1,2,true]]}"#, ""),
            ("a1", r#"{"pattern":"1.2.3.4","ports":[["tcp",1,2,true]]}"#, ""),
            ("a1", r#"{"pattern":"a.test","ports":[]}"#, ""),
            ("a1", r#"{"pattern":"a.test","ports":[["tcp",2,1,true]]}"#, ""),
            ("a1", r#"{"pattern":"a.test","ports":[["sctp",1,2,true]]}"#, ""),
            ("a1", r#"{"pattern":"a.test","ports":[["tcp",1,65536,true]]}"#, ""),
            ("a1", r#"{"pattern":"a.test","ports":[["tcp",1,2]]}"#, ""),
            ("a1", "", r#"{"address":"a.test","name":"a.test","ttlMs":1}"#),
            ("a1", "", r#"{"address":"192.0.2.1","name":"*.a.test","ttlMs":1}"#),
            ("a1", "", r#"{"address":"192.0.2.1","name":"a.test"}"#),
        ] {
            assert_eq!(policy(id, names, pins).expect_err(names).code, "invalid_argument", "{id} {names} {pins}");
        }
        let none = r#"{"id":"a1","generation":1,"names":[],"pins":[]}"#;
        assert_eq!(parse("policy.set", none).expect_err("no address").code, "invalid_argument");
    }
}
