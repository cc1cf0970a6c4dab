//! The command line.

use std::path::PathBuf;

use crate::block::{NETWORK4, NETWORK6, parse_network};
use crate::cidr::Cidr;
use daemon::given::Given;

pub const USAGE: &str = "usage:
  egressd serve --data DIR [--network CIDR] [--network6 CIDR] [--service-ports LOW-HIGH]
                [--mtu BYTES] [--max-flows N]
                [--resolver-uid UID --resolver-gid GID [--gate PROGRAM]] [--gate-port PORT]
  egressd clear --data DIR

Sandboxes get addresses of --network (198.18.0.0/15) and --network6 (fd64:7365:6300::/48), of which each server on a
host takes a part. Mirror services of the resolver listen on its address at --service-ports (7300-7399), the gate at
--gate-port (7299). One sandbox may have --max-flows (1024) connections and other flows at once. run/egressd.sock
belongs to root unless a resolver is named, and the gate is started as that user; without --gate nothing passes by name
but UDP. clear takes all that a server has of the host's network away, its gate too, when no egressd runs.";

const DEFAULT_SERVICE_PORTS: (u16, u16) = (7_300, 7_399);
const DEFAULT_GATE_PORT: u16 = 7_299;
/// Below, anybody's programs may need rights that the gate does not have.
const LEAST_PORT: u16 = 1_024;
const MTU: std::ops::RangeInclusive<u32> = 1_280..=65_535;
const MAX_FLOWS: std::ops::RangeInclusive<u32> = 1..=65_536;
const DEFAULT_MAX_FLOWS: u32 = 1_024;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    pub data: PathBuf,
    pub network4: Cidr,
    pub network6: Cidr,
    pub service_ports: (u16, u16),
    pub gate_port: u16,
    /// Without one connections by name are refused.
    pub gate: Option<PathBuf>,
    /// That of the way out of the host when none is given.
    pub mtu: Option<u32>,
    pub max_flows: u32,
    /// Uid and gid.
    pub resolver: (u32, u32),
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Serve(Box<Serve>),
    Clear(PathBuf),
}

fn serve(given: &mut Given) -> Result<Serve, String> {
    let network4 = given.take("network").unwrap_or_else(|| NETWORK4.to_owned());
    let network6 = given.take("network6").unwrap_or_else(|| NETWORK6.to_owned());
    let service_ports = given.take("service-ports").map_or(Ok(DEFAULT_SERVICE_PORTS), |text| {
        let ports = text.split_once('-').and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
        ports
            .filter(|(low, high)| LEAST_PORT <= *low && low <= high)
            .ok_or_else(|| format!("--service-ports must be LOW-HIGH, {LEAST_PORT} to 65535"))
    })?;
    let serve = Serve {
        data: given.need("data")?.into(),
        network4: parse_network("network", &network4)?,
        network6: parse_network("network6", &network6)?,
        service_ports,
        gate_port: given.number("gate-port", Some(DEFAULT_GATE_PORT), LEAST_PORT, u16::MAX)?,
        gate: given.take("gate").map(PathBuf::from),
        mtu: given.optional_number("mtu", *MTU.start(), *MTU.end())?,
        max_flows: given.number("max-flows", Some(DEFAULT_MAX_FLOWS), *MAX_FLOWS.start(), *MAX_FLOWS.end())?,
        resolver: (
            given.number("resolver-uid", Some(0), 0, u32::MAX - 1)?,
            given.number("resolver-gid", Some(0), 0, u32::MAX - 1)?,
        ),
    };
    if (service_ports.0..=service_ports.1).contains(&serve.gate_port) {
        return Err("--gate-port is one of --service-ports".to_owned());
    }
    if serve.gate.is_some() && serve.resolver.0 == 0 {
        return Err("--gate needs --resolver-uid: it is never root".to_owned());
    }
    Ok(serve)
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: &[String]) -> Result<Command, String> {
    let (name, rest) = arguments.split_first().ok_or("a command is missing")?;
    let mut given = Given::read(rest)?;
    let command = match name.as_str() {
        "serve" => Command::Serve(Box::new(serve(&mut given)?)),
        "clear" => Command::Clear(given.need("data")?.into()),
        other => return Err(format!("there is no command {other}")),
    };
    given.finish()?;
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn what_is_not_given_has_a_default() {
        let Ok(Command::Serve(serve)) = parse_line("serve --data /d") else { panic!("not read") };
        assert_eq!(serve.network4.to_string(), NETWORK4);
        assert_eq!((serve.gate_port, serve.mtu, serve.max_flows), (7_299, None, 1_024));
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "",
            "explode",
            "serve",
            "clear",
            "clear --data /d --mtu 1500",
            "serve --data /d --network 10.0.0.0",
            "serve --data /d --network fd00::/48",
            "serve --data /d --network6 10.0.0.0/16",
            "serve --data /d --service-ports 80-90",
            "serve --data /d --service-ports 9000-8000",
            "serve --data /d --service-ports 9000",
            "serve --data /d --gate-port 7300",
            "serve --data /d --mtu 500",
            "serve --data /d --max-flows 0",
            "serve --data /d --gate /gate",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
