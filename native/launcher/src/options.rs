//! The command line.

use std::path::PathBuf;

use daemon::given::Given;

pub const DEFAULT_MAX_SANDBOXES: u32 = 4_096;
pub const DEFAULT_POOL_NAMESPACES: u32 = 32;
/// Blanks that are kept when nobody says how many: one for so much of the node's memory, of which an idle one takes less than a hundredth.
const MIB_PER_BLANK: u64 = 48;
const DEFAULT_BLANKS: std::ops::RangeInclusive<u64> = 16..=512;
/// Slots are a bounded number of uids.
const MAX_SANDBOXES_LIMIT: u32 = 40_000;
const MAX_POOL: u32 = 4_096;

pub const USAGE: &str = "usage:
  launcher serve --data DIR --aether PATH --edge-uid UID --edge-gid GID
                 [--max-sandboxes N] [--pool-namespaces N] [--pool-blanks N]
  launcher doctor
  launcher prepare --data DIR --size BYTES
  launcher teardown --data DIR";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serve {
    pub data: PathBuf,
    pub aether: PathBuf,
    pub edge_uid: u32,
    pub edge_gid: u32,
    pub max_sandboxes: u32,
    pub pool_namespaces: u32,
    pub pool_blanks: u32,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Serve(Serve),
    Doctor,
    Prepare { data: PathBuf, size: u64 },
    Teardown { data: PathBuf },
}

fn default_blanks(memory_mib: u64) -> u32 {
    (memory_mib / MIB_PER_BLANK).clamp(*DEFAULT_BLANKS.start(), *DEFAULT_BLANKS.end()) as u32
}

fn serve(given: &mut Given, memory_mib: u64) -> Result<Serve, String> {
    let max_sandboxes = given.number("max-sandboxes", Some(DEFAULT_MAX_SANDBOXES), 1, MAX_SANDBOXES_LIMIT)?;
    Ok(Serve {
        data: given.need("data")?.into(),
        aether: given.need("aether")?.into(),
        edge_uid: given.number("edge-uid", None, 0, u32::MAX - 1)?,
        edge_gid: given.number("edge-gid", None, 0, u32::MAX - 1)?,
        max_sandboxes,
        pool_namespaces: given.number(
            "pool-namespaces",
            Some(DEFAULT_POOL_NAMESPACES.min(max_sandboxes)),
            0,
            MAX_POOL,
        )?,
        pool_blanks: given.number("pool-blanks", Some(default_blanks(memory_mib).min(max_sandboxes)), 0, MAX_POOL)?,
    })
}

/// Reads the arguments after the program's name, on a node with so much memory.
pub fn parse(arguments: &[String], memory_mib: u64) -> Result<Command, String> {
    let (name, rest) = arguments.split_first().ok_or("a command is missing")?;
    let mut given = Given::read(rest)?;
    let command = match name.as_str() {
        "serve" => Command::Serve(serve(&mut given, memory_mib)?),
        "doctor" => Command::Doctor,
        "prepare" => Command::Prepare {
            data: given.need("data")?.into(),
            size: given.number("size", None, crate::prepare::MIN_BYTES, 1 << 50)?,
        },
        "teardown" => Command::Teardown { data: given.need("data")?.into() },
        other => return Err(format!("there is no command {other}")),
    };
    given.finish()?;
    Ok(command)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Command, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>(), 24_000)
    }

    #[test]
    fn defaults_fill_what_is_not_said() {
        let Ok(Command::Serve(serve)) = parse_line("serve --data /d --aether /a --edge-uid 1 --edge-gid 2") else {
            panic!()
        };
        assert_eq!((serve.max_sandboxes, serve.pool_namespaces, serve.pool_blanks), (4_096, 32, 500));
        assert_eq!((serve.edge_uid, serve.edge_gid), (1, 2));
        let line = "serve --data /d --aether /a --edge-uid 1 --edge-gid 2 --max-sandboxes 20";
        let Ok(Command::Serve(serve)) = parse_line(line) else { panic!() };
        assert_eq!((serve.pool_namespaces, serve.pool_blanks), (20, 20), "no more ahead than there may be");
    }

    #[test]
    fn small_nodes_keep_few_blanks_and_large_ones_not_too_many() {
        assert_eq!([0, 1_024, 8_192, 24_000, 1 << 20].map(default_blanks), [16, 21, 170, 500, 512]);
    }

    #[test]
    fn wrong_lines_are_refused() {
        for line in [
            "",
            "explode",
            "serve",
            "serve --data /d --aether /a --edge-uid -1 --edge-gid 2",
            "serve --data /d --aether /a --edge-uid 1 --edge-gid 2 --max-sandboxes 0",
            "serve --data /d --data /e --aether /a --edge-uid 1 --edge-gid 2",
            "teardown --data",
            "teardown --data /d --force 1",
            "prepare --data /d --size 5",
            "doctor extra",
        ] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
