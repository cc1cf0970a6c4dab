//! Arguments of the gate.

use daemon::given::Given;

pub const USAGE: &str =
    "usage: gate --uid UID --gid GID, with listeners as descriptors 3 (IPv4), 4 (IPv6, optional) and 5 (control)";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Who the gate is from its first moment on; never root.
    pub uid: u32,
    pub gid: u32,
}

pub fn parse(arguments: &[String]) -> Result<Options, String> {
    let mut given = Given::read(arguments)?;
    let options =
        Options { uid: given.number("uid", None, 1, u32::MAX - 1)?, gid: given.number("gid", None, 1, u32::MAX - 1)? };
    given.finish()?;
    Ok(options)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_never_root() {
        let parse = |text: &str| parse(&text.split(' ').map(str::to_owned).collect::<Vec<_>>());
        assert_eq!(parse("--uid 64804 --gid 64804"), Ok(Options { uid: 64_804, gid: 64_804 }));
        for wrong in
            ["--uid 0 --gid 1", "--uid 1", "--uid 1 --gid x", "--uid 1 --gid 1 --port 3", "--uid 4294967295 --gid 1"]
        {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
