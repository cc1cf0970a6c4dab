//! Extended attributes of a writable layer: which of them describe a file of the sandbox, and how they read inside.

use crate::sys::{Errno, Result};
use crate::uid_range::UIDS_PER_SLOT;

/// The owner of what belongs to nobody of the sandbox.
pub const NOBODY: u32 = 65_534;

/// A directory hides what lower layers have in its place.
pub const OPAQUE: &[u8] = b"trusted.overlay.opaque";
const CAPABILITY: &[u8] = b"security.capability";
const ACLS: [&[u8]; 2] = [b"system.posix_acl_access", b"system.posix_acl_default"];
/// What a mount with `redirect_dir=nofollow,metacopy=off` never writes: data elsewhere, or under another name.
const IMPOSSIBLE: [&[u8]; 2] = [b"trusted.overlay.redirect", b"trusted.overlay.metacopy"];

/// How an id of the host reads in the sandbox whose root has `root` on the host.
pub fn id_inside(id: u32, root: u32) -> u32 {
    match id.checked_sub(root) {
        Some(inside) if inside < UIDS_PER_SLOT => inside,
        _ => NOBODY,
    }
}

/// The value as it reads inside; `None`: the attribute is no part of the file. `EOPNOTSUPP` for what says that the file's data are elsewhere.
pub fn inside(name: &[u8], value: Vec<u8>, root: u32) -> Result<Option<Vec<u8>>> {
    if IMPOSSIBLE.contains(&name) {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(match name {
        OPAQUE => (value == b"y").then_some(value),
        CAPABILITY => capability_inside(value, root),
        _ if ACLS.contains(&name) => acl_inside(value, root),
        // A record of pax has its key up to the first `=`.
        _ => (name.starts_with(b"user.") && !name.starts_with(b"user.overlay.") && !name.contains(&b'='))
            .then_some(value),
    })
}

/// Files of the sandbox have capabilities of its own user namespace (`struct vfs_ns_cap_data` of linux/capability.h); in a layer they are the
/// plain ones, which each sandbox on it takes for its own.
fn capability_inside(value: Vec<u8>, root: u32) -> Option<Vec<u8>> {
    const PLAIN_LENGTH: usize = 20;
    const OWNED_LENGTH: usize = 24;
    const PLAIN: u8 = 2;
    const OWNED: u8 = 3;
    const REVISION: usize = 3;
    match (value.len(), value.get(REVISION)) {
        (PLAIN_LENGTH, Some(&PLAIN)) => Some(value),
        (OWNED_LENGTH, Some(&OWNED)) if word(&value, PLAIN_LENGTH) == root => {
            let mut plain = value;
            plain.truncate(PLAIN_LENGTH);
            plain[REVISION] = PLAIN;
            Some(plain)
        }
        _ => None,
    }
}

/// Ids in an access list (linux/posix_acl_xattr.h) are those of the host.
fn acl_inside(mut value: Vec<u8>, root: u32) -> Option<Vec<u8>> {
    const HEADER: usize = 4;
    const ENTRY: usize = 8;
    const ID: usize = 4;
    const USER: u16 = 2;
    const GROUP: u16 = 8;
    if value.len() < HEADER || !(value.len() - HEADER).is_multiple_of(ENTRY) {
        return None;
    }
    for entry in value[HEADER..].chunks_exact_mut(ENTRY) {
        if [USER, GROUP].contains(&u16::from_le_bytes([entry[0], entry[1]])) {
            let id = id_inside(word(entry, ID), root);
            entry[ID..].copy_from_slice(&id.to_le_bytes());
        }
    }
    Some(value)
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

#[cfg(test)]
mod tests {
    use super::*;

    const ROOT: u32 = 0x4001_0000;

    #[test]
    fn ids_outside_of_the_sandbox_are_nobody() {
        for (id, expected) in [
            (ROOT, 0),
            (ROOT + 1_000, 1_000),
            (ROOT + 65_535, 65_535),
            (ROOT + 65_536, NOBODY),
            (0, NOBODY),
            (1, NOBODY),
        ] {
            assert_eq!(id_inside(id, ROOT), expected, "{id}");
        }
    }

    fn capability(revision: u8, owner: Option<u32>) -> Vec<u8> {
        let mut value = vec![1, 0, 0, revision];
        value.extend([7; 16]);
        value.extend(owner.into_iter().flat_map(u32::to_le_bytes));
        value
    }

    #[test]
    fn capabilities_of_the_sandbox_become_plain_and_those_of_others_are_dropped() {
        let plain = Some(capability(2, None));
        assert_eq!(inside(CAPABILITY, capability(3, Some(ROOT)), ROOT), Ok(plain.clone()));
        assert_eq!(inside(CAPABILITY, capability(2, None), ROOT), Ok(plain));
        for value in [capability(3, Some(0)), capability(3, Some(ROOT + 1)), capability(1, None), vec![], vec![0; 3]] {
            assert_eq!(inside(CAPABILITY, value, ROOT), Ok(None));
        }
    }

    #[test]
    fn access_lists_name_ids_of_the_sandbox() {
        let acl = |id: u32| {
            let mut value = vec![2, 0, 0, 0, 1, 0, 6, 0, 255, 255, 255, 255, 2, 0, 4, 0];
            value.extend(id.to_le_bytes());
            value
        };
        assert_eq!(inside(ACLS[0], acl(ROOT + 33), ROOT), Ok(Some(acl(33))));
        assert_eq!(inside(ACLS[1], vec![2, 0, 0], ROOT), Ok(None));
        assert_eq!(inside(ACLS[1], vec![2, 0, 0, 0, 9], ROOT), Ok(None));
    }

    #[test]
    fn marks_of_the_overlay_are_kept_refused_or_dropped() {
        assert_eq!(inside(OPAQUE, b"y".to_vec(), ROOT), Ok(Some(b"y".to_vec())));
        assert_eq!(inside(OPAQUE, b"x".to_vec(), ROOT), Ok(None));
        for name in IMPOSSIBLE {
            assert_eq!(inside(name, Vec::new(), ROOT), Err(Errno::OPNOTSUPP));
        }
        for name in
            [&b"trusted.overlay.origin"[..], b"trusted.x", b"security.selinux", b"user.overlay.opaque", b"user.a=b"]
        {
            assert_eq!(inside(name, b"y".to_vec(), ROOT), Ok(None));
        }
        assert_eq!(inside(b"user.\xff", b"v".to_vec(), ROOT), Ok(Some(b"v".to_vec())));
    }
}
