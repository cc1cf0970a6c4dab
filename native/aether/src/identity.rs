//! Who does something: a user of the sandbox as the kernel wants it.

use crate::errors::{Failure, Outcome};
use crate::passwd::{Accounts, User};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Login name; the number when /etc/passwd has none.
    pub name: String,
    /// An absolute path, `/` when unknown.
    pub home: String,
    pub shell: String,
}

/// (uid_t) -1 and (gid_t) -1 mean "no change" to the kernel and can name nobody.
const NOBODY_AT_ALL: u32 = u32::MAX;

const DEFAULT_SHELL: &str = "/bin/sh";
const ROOT: &str = "root";

/// Root is there whatever /etc/passwd says: an image may have none, and a sandbox may break its own.
fn root() -> User {
    User { name: ROOT.into(), uid: 0, gid: 0, home: "/root".into(), shell: String::new() }
}

/// Resolves `name`, `uid`, `uid:gid` or `name:group`. A number without an entry in /etc/passwd is itself also its group; where a
/// group is given there are no supplementary ones.
pub fn resolve(accounts: &mut Accounts, user: &str) -> Outcome<Identity> {
    let (who, group) = match user.split_once(':') {
        Some((who, group)) => (who, Some(group)),
        None => (user, None),
    };
    let unknown = |what: &str| {
        Failure::new("user_not_found", format!("The sandbox has no {what} as in \"{user}\".")).with("user", user)
    };
    let number = parse_id(who);
    let entry = match number {
        Some(uid) => accounts.by_uid(uid).cloned(),
        None => match accounts.by_name(who).cloned() {
            None if who == ROOT => Some(root()),
            named => Some(named.ok_or_else(|| unknown("user"))?),
        },
    };
    let named_group = match group {
        None => None,
        Some(group) => Some(parse_id(group).or_else(|| accounts.group_id(group)).ok_or_else(|| unknown("group"))?),
    };
    let entry = entry.unwrap_or_else(|| {
        let uid = number.unwrap_or(NOBODY_AT_ALL);
        User { name: uid.to_string(), uid, gid: uid, home: "/".into(), shell: String::new() }
    });
    let gid = named_group.unwrap_or(entry.gid);
    if entry.uid == NOBODY_AT_ALL || gid == NOBODY_AT_ALL {
        return Err(unknown("user or group"));
    }
    let groups = match named_group {
        Some(gid) => vec![gid],
        None => accounts.groups_of(&entry.name, gid),
    };
    let home = if entry.home.starts_with('/') { entry.home } else { "/".into() };
    let shell = if entry.shell.is_empty() { DEFAULT_SHELL.into() } else { entry.shell };
    Ok(Identity { uid: entry.uid, gid, groups, name: entry.name, home, shell })
}

/// A decimal id without sign; anything else is a name.
fn parse_id(text: &str) -> Option<u32> {
    (!text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit())).then(|| text.parse().unwrap_or(NOBODY_AT_ALL))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_need_no_entry_and_names_do() {
        let mut accounts = Accounts::default();
        let number = resolve(&mut accounts, "51234").expect("a number");
        assert_eq!((number.uid, number.gid, number.home.as_str()), (51_234, 51_234, "/"));
        let both = resolve(&mut accounts, "51234:77").expect("numbers");
        assert_eq!((both.uid, both.gid, both.groups), (51_234, 77, vec![77]));
        assert_eq!(resolve(&mut accounts, "root").expect("root").uid, 0);
        for bad in ["no-such-user", "", ":", "root:no-such-group", "4294967295", "99999999999", "-1"] {
            assert_eq!(resolve(&mut accounts, bad).expect_err(bad).code, "user_not_found", "{bad}");
        }
    }
}
