//! The root filesystem of a sandbox: shared read-only layers below, its own writable layer above, and what the platform puts into it.

use std::ffi::CStr;
use std::net::IpAddr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, mkdirat, openat};

use crate::sys::mount::{self, Attr, Value};
use crate::sys::{Errno, Result};
use crate::templates::NEW_ROOT;
use crate::volume::Upper;

/// Directories that exist in every sandbox whatever its image has in their place; the writable layer hides a file or a link of these names.
const DIRECTORIES: [(&str, u32); 5] =
    [("etc", 0o755), ("proc", 0o555), ("sys", 0o555), ("dev", 0o755), ("tmp", 0o1777)];
/// Mounts that move from the scratch root into the real one.
const MOVED: [(&CStr, &CStr); 3] = [(c"/proc", c"proc"), (c"/sys", c"sys"), (c"/dev", c"dev")];

/// Without a network there is nobody to ask; without this file a resolver would look for one on this host.
const RESOLV_CONF: &str = "options timeout:1 attempts:1\n";

/// Of a sandbox with a network, as the edge writes it into one that gets a network later.
const NETWORK: &str = "# The resolver of this node: the names that the network policy allows.\n";

fn hosts(hostname: &str) -> String {
    format!("127.0.0.1\tlocalhost\n::1\tlocalhost ip6-localhost ip6-loopback\n127.0.1.1\t{hostname}\n")
}

/// Makes the platform's directories in an empty writable layer. New files belong to whoever this process makes files for.
pub fn prepare(upper: &Upper) -> Result<()> {
    for (name, mode) in DIRECTORIES {
        mkdirat(&upper.data, name, Mode::from_raw_mode(mode))?;
    }
    write(upper.data.as_fd(), "etc/resolv.conf", RESOLV_CONF)
}

/// Writes the files that tell the sandbox its own name and where others are asked for, below its root or in a writable layer that is not mounted yet. They must be in the layer before
/// it is mounted: then whatever an image has in their place is hidden.
pub fn name(root: BorrowedFd<'_>, hostname: &str, nameserver: Option<IpAddr>) -> Result<()> {
    if let Some(nameserver) = nameserver {
        write(root, "etc/resolv.conf", &format!("{NETWORK}nameserver {nameserver}\n"))?;
    }
    write(root, "etc/hostname", &format!("{hostname}\n"))?;
    write(root, "etc/hosts", &hosts(hostname))
}

fn write(root: BorrowedFd<'_>, path: &str, text: &str) -> Result<()> {
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = openat(root, path, flags, Mode::from_raw_mode(0o644))?;
    match rustix::io::write(&file, text.as_bytes())? {
        written if written == text.len() => Ok(()),
        _ => Err(Errno::NOSPC),
    }
}

/// Mounts layer or set, and the writable layer over it, as one tree, attached nowhere. Owners in the layers appear as those of the user namespace.
///
/// The writable layer itself must not be mapped: overlayfs works on it as root of the host, who has no name in that mapping. Its files are stored
/// under the host's ids instead. Devices in an image stay closed: the mount allows none.
pub fn assemble(lower: BorrowedFd<'_>, user_namespace: BorrowedFd<'_>, upper: &Upper) -> Result<OwnedFd> {
    let mapped = mount::duplicate_mapped(lower, user_namespace, Attr::empty())?;
    let settings = [
        ("lowerdir+", Value::Fd(mapped.as_fd())),
        ("upperdir", Value::Fd(upper.data.as_fd())),
        ("workdir", Value::Fd(upper.work.as_fd())),
        // What an image may carry in its extended attributes is not followed.
        ("redirect_dir", Value::Text("nofollow")),
        ("metacopy", Value::Text("off")),
        ("index", Value::Text("off")),
        ("uuid", Value::Text("off")),
        // One device number for the whole tree: programs that stay on one filesystem would leave out what is in layers.
        ("xino", Value::Text("on")),
        // The end of a sandbox must not write back the volume of all: its data are either deleted then or in a snapshot, which writes back itself.
        ("volatile", Value::Flag),
    ];
    mount::create("overlay", &settings, Attr::MOUNT_ATTR_NODEV)
}

/// Makes `root` the root of this mount namespace for every process that has the scratch root, and moves into it what was prepared there.
///
/// The names in it are directories of the writable layer, made by [`prepare`]: no link of an image can lead elsewhere.
pub fn enter_all(root: &OwnedFd) -> Result<()> {
    attach(root, NEW_ROOT)?;
    mount::exchange_root(root.as_fd())
}

/// The same for this process alone, which is the only one of its mount namespace: its root covers the scratch root, which stays below, empty and out
/// of reach. To exchange them would make the kernel look at every process of the host.
pub fn enter_alone(root: &OwnedFd) -> Result<()> {
    attach(root, c"/")?;
    mount::cover_root(root.as_fd())
}

fn attach(root: &OwnedFd, at: &CStr) -> Result<()> {
    mount::attach(root, rustix::fs::CWD, at)?;
    MOVED.iter().try_for_each(|(from, to)| mount::move_to(from, root.as_fd(), to))
}
