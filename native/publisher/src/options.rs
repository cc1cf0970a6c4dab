//! The command line.

use std::path::PathBuf;

use daemon::given::Given;

pub const USAGE: &str = "usage:
  publisher serve --data DIR [--edge-uid UID] [--packer-uid UID]

It ends when its standard input does. Beside root, the edge and the packer may ask; they are root unless they are named.";

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    pub data: PathBuf,
    pub edge_uid: u32,
    pub packer_uid: u32,
}

/// Reads the arguments after the program's name.
pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let (name, rest) = arguments.split_first().ok_or("a command is missing")?;
    if name != "serve" {
        return Err(format!("there is no command {name}"));
    }
    let mut given = Given::read(rest)?;
    let options = Options {
        data: given.need("data")?.into(),
        edge_uid: given.number("edge-uid", Some(0), 0, u32::MAX - 1)?,
        packer_uid: given.number("packer-uid", Some(0), 0, u32::MAX - 1)?,
    };
    given.finish()?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_line(line: &str) -> Result<Options, String> {
        parse(&line.split_whitespace().map(str::to_owned).collect::<Vec<_>>())
    }

    #[test]
    fn lines_are_read() {
        let options = Options { data: "/d".into(), edge_uid: 1, packer_uid: 2 };
        assert_eq!(parse_line("serve --data /d --edge-uid 1 --packer-uid 2"), Ok(options));
        for line in ["", "serve", "explode --data /d", "serve --data /d --edge-uid -1", "serve --data /d --force 1"] {
            assert!(parse_line(line).is_err(), "{line}");
        }
    }
}
