//! The environment of a program: what the caller gave, and defaults for what a program may expect.

use std::collections::BTreeMap;
use std::ffi::CString;

use crate::errors::{Failure, Outcome};
use crate::identity::Identity;

pub const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

pub type Variables = BTreeMap<String, String>;

/// Keys that any shell and libc take: `[A-Za-z_][A-Za-z0-9_.-]*`. Values may be anything without NUL.
pub fn check(env: &Variables) -> Outcome<()> {
    for (key, value) in env {
        let mut bytes = key.bytes();
        let good_first = bytes.next().is_some_and(|byte| byte.is_ascii_alphabetic() || byte == b'_');
        if !good_first || !bytes.all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte)) {
            return Err(Failure::invalid(
                "env",
                format!("env key {key:?} is not of the form [A-Za-z_][A-Za-z0-9_.-]*"),
            ));
        }
        if value.contains('\0') {
            return Err(Failure::invalid("env", format!("env value of {key} contains a NUL byte")));
        }
    }
    Ok(())
}

/// `KEY=VALUE` strings, with the defaults that are absent.
pub fn build(env: &Variables, identity: &Identity, pty: bool) -> Vec<CString> {
    let defaults = [
        ("PATH", DEFAULT_PATH),
        ("HOME", &identity.home),
        ("USER", &identity.name),
        ("LOGNAME", &identity.name),
        ("SHELL", &identity.shell),
    ];
    let pty_defaults = [("TERM", "xterm-256color"), ("LANG", "C.UTF-8")];
    let pty_defaults = if pty { &pty_defaults[..] } else { &[] };
    let absent = defaults
        .iter()
        .chain(pty_defaults)
        .filter(|(key, _)| !env.contains_key(*key))
        .map(|&(key, value)| (key, value));
    env.iter()
        .map(|(key, value)| (key.as_str(), value.as_str()))
        .chain(absent)
        .filter_map(|(key, value)| CString::new(format!("{key}={value}")).ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn one(key: &str, value: &str) -> Variables {
        Variables::from([(key.to_owned(), value.to_owned())])
    }

    #[test]
    fn x15_keys_are_checked_and_values_are_not_touched() {
        for bad in ["", "1A", "A;touch /tmp/pwn", "A=B", "A B", "A\n", "Ä", "A\0"] {
            assert_eq!(check(&one(bad, "v")).expect_err(bad).code, "invalid_argument", "{bad:?}");
        }
        for good in ["A", "_", "a.b-c", "A1"] {
            assert_eq!(check(&one(good, "a\nb'\"$(id)`x`=ü")), Ok(()));
        }
        assert!(check(&one("A", "a\0b")).is_err());
    }

    #[test]
    fn defaults_yield_to_what_is_given() {
        let identity =
            Identity { uid: 7, gid: 7, groups: vec![], name: "u".into(), home: "/h".into(), shell: "/bin/sh".into() };
        let built = build(&one("PATH", "/p"), &identity, true);
        let text: Vec<_> = built.iter().map(|entry| entry.to_str().expect("UTF-8")).collect();
        assert_eq!(
            text,
            ["PATH=/p", "HOME=/h", "USER=u", "LOGNAME=u", "SHELL=/bin/sh", "TERM=xterm-256color", "LANG=C.UTF-8"]
        );
    }
}
