//! Control groups: one group for each slot, below one group for the data directory, in pure v2 or in the v1 hierarchies of memory, pids, cpu and
//! freezer. Nothing of the host's groups is touched, but that v2 controllers are enabled for children where they are not.

mod detect;
mod files;
mod v1;
mod v2;

use std::os::fd::{BorrowedFd, OwnedFd};

use rustix::fs::{AtFlags, Mode, mkdirat, unlinkat};

use crate::request::Limits;
use crate::sys::{Errno, Result};

pub use detect::{Found, detect};
pub use files::write_file;
pub use v2::{costs_io, offered as offered_controllers};

/// What aether itself may need when the sandbox has used up its memory.
pub const MEMORY_RESERVE_BYTES: u64 = 4 << 20;
/// Processes that the platform needs inside beside those of the sandbox.
pub const PIDS_RESERVE: u64 = 16;
/// Period of the cpu quota: what new groups begin with.
const CPU_PERIOD_US: u64 = 100_000;
/// The kernel takes no shorter quota.
const CPU_QUOTA_MIN_US: u64 = 1_000;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub memory_bytes: u64,
    pub memory_peak_bytes: u64,
    /// `None` where only the processes themselves can tell (v1 without cpuacct beside cpu).
    pub cpu_usec: Option<u64>,
    pub pids: u64,
    pub oom_kills: u64,
}

/// How a child gets into its groups.
pub enum Entry {
    /// `cgroup.procs` of each hierarchy, for the child to write itself into.
    Join(Vec<OwnedFd>),
    /// The group to be born in.
    Born(OwnedFd),
}

/// One hierarchy: all of v2, or one of v1.
pub struct Hierarchy {
    /// Names as in /proc/self/mountinfo; empty for v2.
    pub controllers: Vec<String>,
    /// The mount's root.
    root: OwnedFd,
    /// The group of this data directory.
    parent: OwnedFd,
}

impl Hierarchy {
    fn has(&self, controller: &str) -> bool {
        self.controllers.iter().any(|own| own == controller)
    }
}

pub struct Cgroups {
    group: String,
    is_v2: bool,
    hierarchies: Vec<Hierarchy>,
    node_cpus: u64,
}

impl Cgroups {
    /// Makes the group of the data directory where it is missing.
    pub fn open(found: Found, group: &str, node_cpus: u64) -> Result<Self> {
        let is_v2 = matches!(found, Found::V2(_));
        let mut hierarchies = Vec::new();
        for (controllers, root) in found.into_hierarchies() {
            if is_v2 {
                v2::enable_controllers(&root)?;
            }
            make(&root, group)?;
            let parent = files::open_directory(&root, group)?;
            if is_v2 {
                v2::enable_controllers(&parent)?;
            }
            hierarchies.push(Hierarchy { controllers, root, parent });
        }
        Ok(Self { group: group.to_owned(), is_v2, hierarchies, node_cpus })
    }

    pub fn version(&self) -> u32 {
        if self.is_v2 { 2 } else { 1 }
    }

    pub fn hierarchies(&self) -> &[Hierarchy] {
        &self.hierarchies
    }

    /// Whether there are sandboxes in the group of a data directory.
    pub fn is_inhabited(&self, group: &str) -> bool {
        let has_groups = |group| !files::directories(group).is_empty();
        self.hierarchies.iter().any(|hierarchy| files::open_directory(&hierarchy.root, group).is_ok_and(has_groups))
    }

    /// Makes the group of a slot in every hierarchy.
    pub fn create(&self, name: &str) -> Result<Entry> {
        for hierarchy in &self.hierarchies {
            make(&hierarchy.parent, name)?;
        }
        if self.is_v2 {
            return Ok(Entry::Born(files::open_directory(&self.hierarchies[0].parent, name)?));
        }
        let join = |hierarchy: &Hierarchy| files::open_for_write(&hierarchy.parent, name, "cgroup.procs");
        Ok(Entry::Join(self.hierarchies.iter().map(join).collect::<Result<_>>()?))
    }

    pub fn set_limits(&self, name: &str, limits: &Limits) -> Result<()> {
        let set = Set {
            memory_bytes: limits.memory_bytes + MEMORY_RESERVE_BYTES,
            pids: limits.pids + PIDS_RESERVE,
            cpu_millis: limits.cpu_millis,
            // A quota of all cores holds nothing back and costs at every period.
            quota_us: (limits.cpu_millis < self.node_cpus * 1_000)
                .then(|| (limits.cpu_millis * CPU_PERIOD_US / 1_000).max(CPU_QUOTA_MIN_US)),
        };
        if self.is_v2 {
            v2::set_limits(&self.hierarchies[0], name, &set)
        } else {
            v1::set_limits(&self.hierarchies, name, &set)
        }
    }

    pub fn usage(&self, name: &str) -> Result<Usage> {
        if self.is_v2 { v2::usage(&self.hierarchies[0], name) } else { v1::usage(&self.hierarchies, name) }
    }

    pub fn oom_kills(&self, name: &str) -> Result<u64> {
        if self.is_v2 { v2::oom_kills(&self.hierarchies[0], name) } else { v1::oom_kills(&self.hierarchies, name) }
    }

    /// The file with the counter of `oom_kills`, open for reading.
    pub fn open_oom_counter(&self, name: &str) -> Result<OwnedFd> {
        let (controller, file) = if self.is_v2 { ("", "memory.events") } else { ("memory", "memory.oom_control") };
        let hierarchy = self.hierarchies.iter().find(|hierarchy| self.is_v2 || hierarchy.has(controller));
        files::open_for_read(&hierarchy.ok_or(Errno::NODEV)?.parent, name, file)
    }

    /// Lets frozen processes run, so that a signal can end them. v2 does that by itself.
    pub fn thaw(&self, name: &str) {
        if !self.is_v2 {
            v1::thaw(&self.hierarchies, name);
        }
    }

    /// Has every process of the group stand still; they may take a moment.
    pub fn freeze(&self, name: &str) -> Result<()> {
        if self.is_v2 { v2::freeze(&self.hierarchies[0], name) } else { v1::freeze(&self.hierarchies, name) }
    }

    pub fn is_frozen(&self, name: &str) -> Result<bool> {
        if self.is_v2 { v2::is_frozen(&self.hierarchies[0], name) } else { v1::is_frozen(&self.hierarchies, name) }
    }

    /// The file that [`Self::thawed_word`] is written to, open for writing.
    pub fn open_freezer(&self, name: &str) -> Result<OwnedFd> {
        let file = if self.is_v2 { "cgroup.freeze" } else { "freezer.state" };
        let hierarchy = self.hierarchies.iter().find(|hierarchy| self.is_v2 || hierarchy.has("freezer"));
        files::open_for_write(&hierarchy.ok_or(Errno::NODEV)?.parent, name, file)
    }

    pub fn thawed_word(&self) -> &'static str {
        if self.is_v2 { "0" } else { "THAWED" }
    }

    /// Lets what stands still go on.
    pub fn let_run(&self, name: &str) {
        // A group that is gone has nobody to thaw.
        let _ = self.open_freezer(name).and_then(|freezer| write_file(freezer, self.thawed_word()));
    }

    /// Processes in the group.
    pub fn processes(&self, name: &str) -> Vec<u32> {
        let text = files::read(&self.hierarchies[0].parent, name, "cgroup.procs").unwrap_or_default();
        text.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Removes the group everywhere. `false`: something is still in it.
    pub fn remove(&self, name: &str) -> bool {
        self.hierarchies.iter().filter(|hierarchy| !remove(&hierarchy.parent, name)).count() == 0
    }

    /// Removes the group of the data directory itself, when it is empty.
    pub fn remove_parent(&self) -> bool {
        self.hierarchies.iter().filter(|hierarchy| !remove(&hierarchy.root, &self.group)).count() == 0
    }

    /// Names of all groups below that of the data directory.
    pub fn names(&self) -> Vec<String> {
        let mut names: Vec<String> =
            self.hierarchies.iter().flat_map(|hierarchy| files::directories(&hierarchy.parent)).collect();
        names.sort();
        names.dedup();
        names
    }
}

/// What the files of a group are set to.
struct Set {
    memory_bytes: u64,
    pids: u64,
    cpu_millis: u64,
    quota_us: Option<u64>,
}

fn make(parent: &OwnedFd, name: &str) -> Result<()> {
    match mkdirat(parent, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error),
    }
}

/// Also removes groups inside, which a sandbox cannot make but an operator can.
fn remove(parent: &OwnedFd, name: &str) -> bool {
    match unlinkat(parent, name, AtFlags::REMOVEDIR) {
        Ok(()) | Err(Errno::NOENT) => true,
        Err(_) => {
            let Ok(group) = files::open_directory(parent, name) else { return false };
            for inner in files::directories(&group) {
                let _ = unlinkat(&group, inner.as_str(), AtFlags::REMOVEDIR);
            }
            matches!(unlinkat(parent, name, AtFlags::REMOVEDIR), Ok(()) | Err(Errno::NOENT))
        }
    }
}

/// Moves the calling process into a group by its opened `cgroup.procs`.
pub fn join(procs: BorrowedFd<'_>) -> Result<()> {
    rustix::io::write(procs, b"0").map(|_| ())
}
