//! The parts of the data directory that egressd uses.
//!
//! | path | owner | what |
//! |---|---|---|
//! | `run/egressd.sock` | resolver | requests |
//! | `run/egress/network.json` | root | what of the host is this server's |
//! | `run/egress/bpf/` | root | pinned maps; a bpffs |
//! | `run/egress/gate.sock` | gate | where the gate gets its listeners |
//! | `run/launcher/<id>.json` | root | read only: which process a sandbox is |

use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FlockOperation, Mode, OFlags, flock, openat, statfs};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use serde::{Deserialize, Serialize};

use crate::layout::LAYOUT;
use crate::sys::{Errno, Result};
use daemon::failure::errno_name;

const BPFFS_MAGIC: i64 = 0xcafe_4a11;
const VERSION: u32 = 2;

pub struct Place {
    /// Absolute, without symbolic links.
    pub data: PathBuf,
    pub run: OwnedFd,
    pub egress: OwnedFd,
    _lock: OwnedFd,
}

/// What of the host is this server's, for the next egressd.
#[derive(Clone, Debug, Deserialize, PartialEq, Eq, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Settled {
    pub version: u32,
    /// What is said of the kernel's state is of this boot.
    pub boot: String,
    /// The form of the maps that are pinned.
    pub layout: u32,
    pub number: u32,
    pub network4: String,
    pub network6: String,
    /// The host forwarded nothing before, and still forwards nothing but what sandboxes send and get.
    pub forwards_only_ours4: bool,
    pub forwards_only_ours6: bool,
}

impl Settled {
    pub fn new(boot: &str, number: u32, network4: String, network6: String) -> Self {
        Self {
            version: VERSION,
            boot: boot.to_owned(),
            layout: LAYOUT,
            number,
            network4,
            network6,
            forwards_only_ours4: false,
            forwards_only_ours6: false,
        }
    }
}

fn directory(path: &Path, mode: u32) -> Result<OwnedFd> {
    match rustix::fs::mkdir(path, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

impl Place {
    /// Opens it, makes what is missing, and takes the lock that keeps a second egressd away.
    pub fn open(path: &Path) -> std::result::Result<Self, String> {
        let data = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
        let at = |name: &'static str| move |errno| format!("{name}: {}", errno_name(errno));
        let run = directory(&data.join("run"), 0o755).map_err(at("run"))?;
        let egress = directory(&data.join("run/egress"), 0o711).map_err(at("run/egress"))?;
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let lock = openat(&egress, "egressd.lock", flags, Mode::from_raw_mode(0o600)).map_err(at("egressd.lock"))?;
        match flock(&lock, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Ok(Self { data, run, egress, _lock: lock }),
            Err(Errno::WOULDBLOCK) => Err("another egressd runs on this data directory".to_owned()),
            Err(errno) => Err(at("egressd.lock")(errno)),
        }
    }

    pub fn pins(&self) -> PathBuf {
        self.data.join("run/egress/bpf")
    }

    pub fn records(&self) -> PathBuf {
        self.data.join("run/launcher")
    }

    /// Mounts the bpffs, unless it is there.
    pub fn mount_pins(&self) -> Result<()> {
        let path = self.pins();
        directory(&path, 0o700)?;
        if is_bpffs(&path)? {
            return Ok(());
        }
        mount("dsec", &path, "bpf", MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC, Some(c"mode=0700"))
    }

    /// Removes all pins: what they held is gone unless it is in use.
    pub fn remove_pins(&self) -> Result<()> {
        let path = self.pins();
        if !path.is_dir() || !is_bpffs(&path)? {
            return Ok(());
        }
        let failed = |error: std::io::Error| error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error);
        for entry in std::fs::read_dir(&path).map_err(failed)? {
            let entry = entry.map_err(failed)?;
            // The kernel's own, which nobody can remove.
            if !entry.file_name().as_encoded_bytes().ends_with(b".debug") {
                std::fs::remove_file(entry.path()).map_err(failed)?;
            }
        }
        unmount(&path, UnmountFlags::DETACH)
    }

    fn settled_path(&self) -> PathBuf {
        self.data.join("run/egress/network.json")
    }

    /// What an egressd before has settled; `None` too when that is unreadable, for then nobody can know it.
    pub fn settled(&self) -> Option<Settled> {
        let text = std::fs::read(self.settled_path()).ok()?;
        serde_json::from_slice(&text)
            .ok()
            .filter(|settled: &Settled| settled.version == VERSION && settled.number < crate::block::SERVERS)
    }

    pub fn settle(&self, settled: &Settled) -> std::io::Result<()> {
        let new = self.data.join("run/egress/network.json.new");
        std::fs::write(&new, serde_json::to_vec(settled)?)?;
        std::fs::rename(&new, self.settled_path())
    }

    pub fn forget_settled(&self) -> std::io::Result<()> {
        match std::fs::remove_file(self.settled_path()) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn is_bpffs(path: &Path) -> Result<bool> {
    Ok(statfs(path)?.f_type as i64 == BPFFS_MAGIC)
}
