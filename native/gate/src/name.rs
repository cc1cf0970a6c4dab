//! Names of hosts, in the one form in which they are compared.

use std::borrow::Borrow;
use std::fmt;

/// RFC 1035 2.3.4, without the final dot.
const MAX_NAME: usize = 253;
const MAX_LABEL: usize = 63;

/// A name in lower case without a final dot; IDN as A-labels. Never an address.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct HostName(Box<str>);

impl HostName {
    /// Reads a name as it came in; `None` for what is none, an address among them.
    pub fn parse(bytes: &[u8]) -> Option<Self> {
        if bytes.is_empty() || bytes.len() > MAX_NAME {
            return None;
        }
        let text = std::str::from_utf8(bytes).ok()?.to_ascii_lowercase();
        let is_sound = text.split('.').all(is_label);
        let last = text.rsplit('.').next()?;
        // What ends in a number is an address in one of the forms that inet_aton knows (WHATWG URL, "ends in a number").
        let is_number = last.bytes().all(|byte| byte.is_ascii_digit())
            || last.strip_prefix("0x").is_some_and(|rest| rest.bytes().all(|byte| byte.is_ascii_hexdigit()));
        (is_sound && !is_number).then(|| Self(text.into_boxed_str()))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// The names that this one is below, nearest first: `a.b.c` has `b.c` and `c`.
    pub fn parents(&self) -> impl Iterator<Item = &str> {
        self.0.match_indices('.').map(|(at, _)| &self.0[at + 1..])
    }
}

fn is_label(label: &str) -> bool {
    let bytes = label.as_bytes();
    (1..=MAX_LABEL).contains(&bytes.len())
        && bytes.iter().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'))
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

impl Borrow<str> for HostName {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for HostName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_one_form() {
        let parse = |text: &str| HostName::parse(text.as_bytes()).map(|name| name.to_string());
        assert_eq!(parse("A.Example.TEST").as_deref(), Some("a.example.test"));
        assert_eq!(parse("_srv.xn--bcher-kva.test").as_deref(), Some("_srv.xn--bcher-kva.test"));
        for wrong in [
            "",
            ".",
            "a.",
            ".a",
            "a..b",
            "-a.test",
            "a-.test",
            "a b.test",
            "a.test\0",
            "a.test/",
            "*.a.test",
            "b\u{fc}cher.test",
            "1.2.3.4",
            "0x7f.0x1",
            "127.1",
            "2130706433",
            "[::1]",
            "::1",
            "a.test:443",
            "user@a.test",
        ] {
            assert_eq!(parse(wrong), None, "{wrong:?}");
        }
        assert!(parse(&["a"; 127].join(".")).is_some());
        assert!(parse(&["a"; 128].join(".")).is_none());
        assert!(parse(&"a".repeat(64)).is_none());
    }

    #[test]
    fn parents_are_nearest_first() {
        let name = HostName::parse(b"a.b.c").expect("a name");
        assert_eq!(name.parents().collect::<Vec<_>>(), ["b.c", "c"]);
    }
}
