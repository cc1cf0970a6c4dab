//! The mount API of file descriptors: a mount is made, changed and put into its place without any path of the host.

use std::ffi::CStr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::fs::CWD;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, FsPickFlags, MountAttrFlags, MoveMountFlags, OpenTreeFlags, UnmountFlags,
    fsconfig_create, fsconfig_reconfigure, fsconfig_set_fd, fsconfig_set_flag, fsconfig_set_string, fsmount, fsopen,
    fspick, move_mount, open_tree, unmount,
};

use super::{Errno, Result, check};

pub use rustix::mount::MountAttrFlags as Attr;

/// A value for one key of a new filesystem.
pub enum Value<'a> {
    Flag,
    Text(&'a str),
    Fd(BorrowedFd<'a>),
}

/// Makes a filesystem and a mount of it that is attached nowhere. Mount tables show its kind as its source, unless `source` is set.
pub fn create(kind: &str, settings: &[(&str, Value<'_>)], attributes: MountAttrFlags) -> Result<OwnedFd> {
    let context = fsopen(kind, FsOpenFlags::FSOPEN_CLOEXEC)?;
    if !settings.iter().any(|(key, _)| *key == "source") {
        fsconfig_set_string(context.as_fd(), "source", kind)?;
    }
    for (key, value) in settings {
        match value {
            Value::Flag => fsconfig_set_flag(context.as_fd(), *key)?,
            Value::Text(text) => fsconfig_set_string(context.as_fd(), *key, *text)?,
            Value::Fd(fd) => fsconfig_set_fd(context.as_fd(), *key, *fd)?,
        }
    }
    fsconfig_create(context.as_fd())?;
    fsmount(context.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Changes one setting of the filesystem that is mounted at `name` in `directory`.
pub fn reconfigure(directory: impl AsFd, name: &str, settings: &[(&str, String)]) -> Result<()> {
    let context = fspick(directory, name, FsPickFlags::FSPICK_CLOEXEC | FsPickFlags::FSPICK_SYMLINK_NOFOLLOW)?;
    for (key, value) in settings {
        fsconfig_set_string(context.as_fd(), *key, value.as_str())?;
    }
    fsconfig_reconfigure(context.as_fd())
}

/// A second mount of the same filesystem, attached nowhere.
pub fn duplicate(mount: impl AsFd) -> Result<OwnedFd> {
    open_tree(
        mount,
        c"",
        OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC | OpenTreeFlags::AT_EMPTY_PATH,
    )
}

/// A mount of what is at `name` in another, attached nowhere.
pub fn duplicate_below(mount: impl AsFd, name: &CStr) -> Result<OwnedFd> {
    open_tree(mount, name, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)
}

/// A second mount in which owners appear shifted by the mapping of the user namespace.
pub fn duplicate_mapped(
    mount: impl AsFd,
    user_namespace: BorrowedFd<'_>,
    attributes: MountAttrFlags,
) -> Result<OwnedFd> {
    let copy = duplicate(mount)?;
    let set = u64::from((attributes | MountAttrFlags::MOUNT_ATTR_IDMAP).bits());
    change(
        copy.as_fd(),
        c"",
        libc::AT_EMPTY_PATH,
        &MountAttr { set, user_namespace: user_namespace.as_raw_fd() as u64, ..MountAttr::default() },
    )?;
    Ok(copy)
}

/// Forbids writing through this mount.
pub fn make_read_only(mount: impl AsFd) -> Result<()> {
    let set = u64::from(MountAttrFlags::MOUNT_ATTR_RDONLY.bits());
    change(mount.as_fd(), c"", libc::AT_EMPTY_PATH, &MountAttr { set, ..MountAttr::default() })
}

/// No mount of this namespace spreads to another, or the other way.
pub fn make_private() -> Result<()> {
    change(CWD, c"/", libc::AT_RECURSIVE, &MountAttr { propagation: libc::MS_PRIVATE, ..MountAttr::default() })
}

fn change(directory: BorrowedFd<'_>, path: &CStr, flags: libc::c_int, change: &MountAttr) -> Result<()> {
    // SAFETY: the path is a C string and the structure has the size that is passed.
    check(unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            directory.as_raw_fd(),
            path.as_ptr(),
            flags,
            std::ptr::from_ref(change),
            size_of::<MountAttr>(),
        )
    })?;
    Ok(())
}

/// Gives this process a mount namespace of its own.
pub fn unshare_namespace() -> Result<()> {
    super::process::unshare(libc::CLONE_NEWNS)
}

/// `struct mount_attr` of linux/mount.h.
#[repr(C)]
#[derive(Default)]
struct MountAttr {
    set: u64,
    clear: u64,
    propagation: u64,
    user_namespace: u64,
}

/// Attaches a mount at `name` in `directory`. Never follows a symbolic link there.
pub fn attach(mount: impl AsFd, directory: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    move_mount(mount, c"", directory, name, MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH)
}

/// Moves what is mounted at `from`, an absolute path, to `name` in `directory`.
pub fn move_to(from: &CStr, directory: BorrowedFd<'_>, name: &CStr) -> Result<()> {
    move_mount(CWD, from, directory, name, MoveMountFlags::empty())
}

/// Makes an attached mount the root of this mount namespace and of every process in it whose root was the old one, and lets go of the old root.
pub fn exchange_root(mount: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(mount)?;
    rustix::process::pivot_root(c".", c".")?;
    unmount(c".", UnmountFlags::DETACH)?;
    rustix::process::chdir(c"/")
}

/// Makes a mount that covers the root of this mount namespace the root of this process. It is that of the namespace too: the kernel follows what is
/// mounted over a namespace's root.
pub fn cover_root(mount: BorrowedFd<'_>) -> Result<()> {
    rustix::process::fchdir(mount)?;
    rustix::process::chroot(c".")
}

/// The magic number of the filesystem that the descriptor is on.
pub fn filesystem_magic(fd: impl AsFd) -> Result<u64> {
    let found = rustix::fs::fstatfs(fd)?;
    u64::try_from(found.f_type).map_err(|_| Errno::INVAL)
}
