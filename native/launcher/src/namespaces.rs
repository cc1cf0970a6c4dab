//! User and network namespaces, made ahead of the sandbox that they are for.
//!
//! The user namespace belongs to the uid behind its own root, not to root of the host: so what is counted per owner (inotify instances, nested
//! namespaces, locked memory) is counted for each sandbox alone and not for all together. The network namespace belongs to the initial user namespace:
//! root of the sandbox has no power over its devices, routes or filters.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::process::Pid;

use crate::cgroup::write_file;
use crate::sys::clone::Holder;
use crate::sys::{Result, loopback, process};
use crate::uid_range::UIDS_PER_SLOT;

pub struct Namespaces {
    pub user: OwnedFd,
    pub net: OwnedFd,
}

/// Per network namespace: every user may listen on every port and send echo requests. There is no other privilege to gain inside it.
const NETWORK_SETTINGS: [(&str, &str); 2] =
    [("sys/net/ipv4/ip_unprivileged_port_start", "0"), ("sys/net/ipv4/ping_group_range", "0 2147483647")];

fn open_in(proc: impl AsFd, path: &str, flags: OFlags) -> Result<OwnedFd> {
    openat(proc, path, flags | OFlags::CLOEXEC, Mode::empty())
}

/// Makes a user namespace that maps 65,536 ids from `root_uid` on. `proc` is a mount of proc in which the caller's children appear.
pub fn make_user(proc: impl AsFd, root_uid: u32) -> Result<OwnedFd> {
    start_user(proc, root_uid).map(|(user, _)| user)
}

/// The same, with the process that was needed for it and is ending.
pub fn start_user(proc: impl AsFd, root_uid: u32) -> Result<(OwnedFd, Holder)> {
    process::set_effective_ids(root_uid, root_uid)?;
    let holder = Holder::in_new_user_namespace();
    process::set_effective_ids(0, 0)?;
    let holder = holder?;
    let pid = Pid::as_raw_nonzero(holder.pid);
    let mapping = format!("0 {root_uid} {UIDS_PER_SLOT}");
    for file in ["uid_map", "gid_map"] {
        write_file(open_in(&proc, &format!("{pid}/{file}"), OFlags::WRONLY)?, &mapping)?;
    }
    let user = open_in(&proc, &format!("{pid}/ns/user"), OFlags::RDONLY)?;
    holder.end();
    Ok((user, holder))
}

/// Moves the caller into a new network namespace that has nothing but its loopback device. This is the place where an uplink and its filter are made.
pub fn enter_new_network(proc: impl AsFd) -> Result<()> {
    process::unshare(libc::CLONE_NEWNET)?;
    loopback::raise()?;
    for (file, value) in NETWORK_SETTINGS {
        write_file(open_in(&proc, file, OFlags::WRONLY)?, value)?;
    }
    Ok(())
}

/// Makes both. The caller's own network namespace becomes the new one.
pub fn make(proc: impl AsFd, root_uid: u32) -> Result<Namespaces> {
    let user = make_user(&proc, root_uid)?;
    enter_new_network(&proc)?;
    let net = open_in(&proc, "self/ns/net", OFlags::RDONLY)?;
    Ok(Namespaces { user, net })
}
