//! The hierarchy of cgroups v2.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Mode, OFlags, openat};
use rustix::mount::{FsMountFlags, FsOpenFlags, MountAttrFlags, fsconfig_create, fsmount, fsopen};

use super::Result;

/// Its root, or what this process is shown as it. Nobody sees the mount, and it goes with the descriptor: so it does not matter where the host has mounted it, or whether.
pub fn root() -> Result<OwnedFd> {
    let filesystem = fsopen("cgroup2", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_create(filesystem.as_fd())?;
    let mount = fsmount(filesystem.as_fd(), FsMountFlags::FSMOUNT_CLOEXEC, MountAttrFlags::empty())?;
    openat(&mount, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
}
