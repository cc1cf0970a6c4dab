//! Filesystems that are made once and shared by all sandboxes, read-only: `/dev`, `/sys`, the directories that v1 cgroups are mounted on, and the root
//! that a process has until its own is there.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{AtFlags, CWD, FileType, Mode, chmodat, makedev, mkdirat, mknodat, symlinkat};

use crate::cgroup::Cgroups;
use crate::covers::Covers;
use crate::profile::Profile;
use crate::sys::mount::{self, Attr, Value};
use crate::sys::{Errno, Result, process};

/// A character device: name, major, minor.
pub type Device = (&'static str, u32, u32);

/// What every sandbox has.
const DEVICES: [Device; 6] =
    [("null", 1, 3), ("zero", 1, 5), ("full", 1, 7), ("random", 1, 8), ("urandom", 1, 9), ("tty", 5, 0)];
const LINKS: [(&str, &str); 5] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
    ("ptmx", "pts/ptmx"),
];

/// Where cgroups are mounted.
pub const CGROUPS: &std::ffi::CStr = c"/sys/fs/cgroup";
/// Where the new root is attached before it becomes the root.
pub const NEW_ROOT: &std::ffi::CStr = c"/new";

pub fn small_tmpfs(attributes: Attr) -> Result<OwnedFd> {
    let settings = [("mode", Value::Text("0755")), ("size", Value::Text("64k")), ("nr_inodes", Value::Text("64"))];
    mount::create("tmpfs", &settings, attributes)
}

fn directories(root: &OwnedFd, names: &[&str]) -> Result<()> {
    names.iter().try_for_each(|name| mkdirat(root, *name, Mode::from_raw_mode(0o755)))
}

pub struct Templates {
    devices: OwnedFd,
    /// For profiles that have more of them.
    further_devices: Vec<(Profile, OwnedFd)>,
    pub covers: Covers,
    /// Only for v1: the hierarchies' directories.
    pub cgroup_skeleton: Option<OwnedFd>,
}

impl Templates {
    pub fn new(cgroups: &Cgroups) -> Result<Self> {
        let has_more = |profile: &Profile| !profile.rules().devices.is_empty();
        let further = Profile::ALL.into_iter().filter(has_more);
        Ok(Self {
            devices: devices(&[])?,
            further_devices: further
                .map(|profile| Ok((profile, devices(profile.rules().devices)?)))
                .collect::<Result<_>>()?,
            covers: Covers::new()?,
            cgroup_skeleton: if cgroups.version() == 1 { Some(cgroup_skeleton(cgroups)?) } else { None },
        })
    }

    /// The `/dev` of a profile.
    pub fn devices_of(&self, profile: Profile) -> &OwnedFd {
        let further = self.further_devices.iter().find(|(own, _)| *own == profile);
        further.map_or(&self.devices, |(_, devices)| devices)
    }
}

fn devices(further: &[Device]) -> Result<OwnedFd> {
    let root = small_tmpfs(Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NOEXEC)?;
    for (name, major, minor) in DEVICES.iter().chain(further) {
        mknodat(&root, *name, FileType::CharacterDevice, Mode::from_raw_mode(0o666), makedev(*major, *minor))?;
        // mknod obeys the umask.
        chmodat(&root, *name, Mode::from_raw_mode(0o666), AtFlags::empty())?;
    }
    for (name, target) in LINKS {
        symlinkat(target, &root, name)?;
    }
    directories(&root, &["pts", "shm"])?;
    Ok(root)
}

fn cgroup_skeleton(cgroups: &Cgroups) -> Result<OwnedFd> {
    let root = small_tmpfs(hidden())?;
    for controllers in visible_hierarchies(cgroups) {
        let name = controllers.join(",");
        mkdirat(&root, name.as_str(), Mode::from_raw_mode(0o755))?;
        for alias in controllers.iter().filter(|_| controllers.len() > 1) {
            symlinkat(name.as_str(), &root, alias.as_str())?;
        }
    }
    mount::make_read_only(&root)?;
    Ok(root)
}

/// The v1 hierarchies that show a program its limits.
pub fn visible_hierarchies(cgroups: &Cgroups) -> impl Iterator<Item = &[String]> {
    let is_visible =
        |controllers: &&[String]| controllers.iter().any(|name| matches!(name.as_str(), "memory" | "cpu" | "pids"));
    cgroups.hierarchies().iter().map(|hierarchy| hierarchy.controllers.as_slice()).filter(is_visible)
}

/// Moves this process into a mount namespace that holds nothing but what every sandbox starts with a copy of: an empty read-only root with `/sys` in
/// it. A copy of the host's own table would cost time and show the host. Descriptors that are open stay usable; paths lead nowhere from here on.
///
/// `/sys` is one instance for all, made in a network namespace of its own: it shows the host's devices to read and only a loopback interface. One for
/// each sandbox would cost memory and, as the kernel searches all instances for each new one, time that grows with their number.
/// Returns that network namespace, which must be held.
pub fn enter_scratch_root(skeleton: Option<&OwnedFd>) -> Result<OwnedFd> {
    let root = small_tmpfs(hidden())?;
    directories(&root, &["proc", "sys", "dev", "new"])?;
    let own_network = std::fs::File::open("/proc/self/ns/net").map_err(|_| Errno::NOENT)?;
    process::unshare(libc::CLONE_NEWNET)?;
    let network = std::fs::File::open("/proc/self/ns/net").map_err(|_| Errno::NOENT);
    let sys = mount::create("sysfs", &[], hidden() | Attr::MOUNT_ATTR_RDONLY);
    process::enter(own_network.as_fd(), libc::CLONE_NEWNET)?;
    let sys = sys?;
    mount::unshare_namespace()?;
    mount::make_private()?;
    // Any directory will do: this namespace is seen by nobody else.
    mount::attach(&root, CWD, c"/proc")?;
    mount::exchange_root(root.as_fd())?;
    mount::attach(&sys, CWD, c"/sys")?;
    if let Some(skeleton) = skeleton {
        mount::attach(mount::duplicate(skeleton)?, CWD, CGROUPS)?;
    }
    mount::make_read_only(&root)?;
    Ok(network?.into())
}

/// Attributes of filesystems that show things and hold no programs.
pub fn hidden() -> Attr {
    Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NODEV | Attr::MOUNT_ATTR_NOEXEC
}
