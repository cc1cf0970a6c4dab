//! All that the launcher holds of the host: opened once at the start and never looked up again.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{Mode, OFlags, openat};
use rustix::thread::CpuSet;

use crate::apparmor::AppArmor;
use crate::cgroup::{self, Cgroups};
use crate::data_dir::{DataDir, open_host_directory};
use crate::failure::errno_name;
use crate::host_limits::HostLimits;
use crate::options::Serve;
use crate::profile::Profile;
use crate::refusals::Refusals;
use crate::sandbox_filter;
use crate::seccomp_program::Instruction;
use crate::sys::{Errno, process};
use crate::templates::{self, Templates};
use crate::uid_range::{Claimant, TABLE, Table, UidRange};
use crate::volume::Volume;

/// Slots beyond what may live: sandboxes that are being removed still have theirs.
const SPARE_SLOTS: u32 = 64;

pub struct Node {
    pub data: DataDir,
    pub volume: Volume,
    pub cgroups: Cgroups,
    pub templates: Templates,
    refusals: Refusals,
    sandbox_filters: [Vec<Instruction>; Profile::ALL.len()],
    pub uids: UidRange,
    pub aether: OwnedFd,
    /// The host's /proc.
    pub proc: OwnedFd,
    pub boot: String,
    pub kernel: String,
    pub edge: (u32, u32),
    pub cpus: Vec<usize>,
    /// This process's own mount and uts namespaces, to come back to.
    pub mount_namespace: OwnedFd,
    pub uts_namespace: OwnedFd,
    /// What a sandbox has to reset: the launcher's own is not for it.
    pub has_oom_adjustment: bool,
    /// `None` where the kernel has none, or it cannot be used.
    pub apparmor: Option<AppArmor>,
    /// Why it cannot be used where the kernel has it.
    pub apparmor_lack: Option<String>,
    /// Which limit of the host is too low and cannot be raised.
    pub host_limits_lack: Option<String>,
    /// What `/sys` shows of the network.
    _shown_network: OwnedFd,
    _lock: OwnedFd,
}

/// A step of the start that failed, for the log.
pub type StartError = String;

fn at<E: Into<Errno>>(what: &str) -> impl Fn(E) -> StartError {
    move |error| format!("{what}: {}", errno_name(error.into()))
}

impl Node {
    /// Opens everything and leaves the host's mount namespace. Takes the lock first: nothing is changed beside another launcher.
    pub fn open(options: &Serve) -> Result<Self, StartError> {
        let data = DataDir::open(&options.data).map_err(|error| error.to_string())?;
        let lock = data.lock()?;
        let boot = read_text("/proc/sys/kernel/random/boot_id")?;
        let cpus = allowed_cpus().map_err(at("cpu affinity"))?;
        let cgroups = Cgroups::open(cgroup::detect()?, &data.group_name(), cpus.len() as u64).map_err(at("cgroups"))?;
        let uids = claim_uids(&data, &cgroups, &boot, options)?;
        let volume = Volume::open(&data.volume, &data.uppers).map_err(at("volume"))?;
        let aether =
            data.install_aether(&options.aether).map_err(|error| format!("{}: {error}", options.aether.display()))?;
        // After the claim: from here on nobody takes the profiles away.
        let (apparmor, apparmor_lack) = match AppArmor::load() {
            Ok(apparmor) => (apparmor, None),
            Err(lack) => (None, Some(lack)),
        };
        // After the claim: nobody takes itself for the last from here on.
        let host_limits_lack = HostLimits::of_this_host().raise().err();
        let proc = open_host_directory("/proc").map_err(at("/proc"))?;
        process::keep_capabilities_across_uids().map_err(at("securebits"))?;
        process::limit_resource(libc::RLIMIT_NOFILE, u64::MAX, u64::MAX).map_err(at("open files"))?;
        let has_oom_adjustment = protect_from_oom();
        let templates = Templates::new(&cgroups).map_err(at("templates"))?;
        let shown_network =
            templates::enter_scratch_root(templates.cgroup_skeleton.as_ref()).map_err(at("scratch root"))?;
        let own = |kind: &str| {
            openat(&proc, format!("self/ns/{kind}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
                .map_err(at("own namespaces"))
        };
        let (mount_namespace, uts_namespace) = (own("mnt")?, own("uts")?);
        Ok(Self {
            data,
            volume,
            cgroups,
            templates,
            refusals: Refusals::Silent,
            sandbox_filters: filters(Refusals::Silent),
            uids,
            aether,
            proc,
            boot,
            kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
            edge: (options.edge_uid, options.edge_gid),
            cpus,
            mount_namespace,
            uts_namespace,
            has_oom_adjustment,
            apparmor,
            apparmor_lack,
            host_limits_lack,
            _shown_network: shown_network,
            _lock: lock,
        })
    }

    /// The filter of this profile's programs.
    pub fn sandbox_filter(&self, profile: Profile) -> &[Instruction] {
        let at = Profile::ALL.iter().position(|other| *other == profile).unwrap_or_default();
        &self.sandbox_filters[at]
    }

    pub fn refusals(&self) -> Refusals {
        self.refusals
    }

    /// For sandboxes that are made from here on.
    pub fn set_refusals(&mut self, refusals: Refusals) {
        self.refusals = refusals;
        self.sandbox_filters = filters(refusals);
    }

    /// A name for a slot in cgroups and on the volume.
    pub fn slot_name(slot: u32) -> String {
        format!("s{slot}")
    }

    /// Reads the slot from such a name.
    pub fn slot_of_name(name: &str) -> Option<u32> {
        let slot = name.strip_prefix('s')?.parse().ok()?;
        (Self::slot_name(slot) == name).then_some(slot)
    }

    /// The cores of a sandbox with fewer than the node has, taken in turn, so that programs that count cores see its limit.
    pub fn cores_for(&self, cpu_millis: u64, turn: usize) -> Option<CpuSet> {
        let count = usize::try_from(cpu_millis.div_ceil(1_000)).unwrap_or(usize::MAX);
        if count >= self.cpus.len() {
            return None;
        }
        let mut set = CpuSet::new();
        for offset in 0..count {
            set.set(self.cpus[(turn + offset) % self.cpus.len()]);
        }
        Some(set)
    }
}

fn filters(refusals: Refusals) -> [Vec<Instruction>; Profile::ALL.len()] {
    Profile::ALL.map(|profile| sandbox_filter::program(profile.rules().nested_users, refusals))
}

/// When the node runs out of memory, the launcher should be the last to go. Returns whether this process differs from the usual now.
fn protect_from_oom() -> bool {
    const FILE: &str = "/proc/self/oom_score_adj";
    // Only possible with CAP_SYS_RESOURCE.
    let _ = std::fs::write(FILE, "-900");
    std::fs::read_to_string(FILE).map_or(true, |text| text.trim() != "0")
}

fn claim_uids(data: &DataDir, cgroups: &Cgroups, boot: &str, options: &Serve) -> Result<UidRange, StartError> {
    let slots = options.max_sandboxes + options.pool_namespaces + options.pool_blanks + SPARE_SLOTS;
    let records = crate::record::read_all(&data.records).map_err(at("run/launcher"))?;
    let claimant = Claimant {
        boot,
        path: &data.path,
        group: &data.group_name(),
        has_sandboxes: records.iter().any(|record| record.boot == boot) || !cgroups.names().is_empty(),
    };
    let table = Table::open(Path::new(TABLE)).map_err(|error| format!("{TABLE}: {error}"))?;
    let claimed = table
        .claim(&claimant, slots, |group| cgroups.is_inhabited(group))
        .map_err(|error| format!("{TABLE}: {error}"))?;
    claimed.ok_or_else(|| format!("{TABLE}: no room for {slots} more sandboxes; other data directories hold all uids"))
}

fn allowed_cpus() -> Result<Vec<usize>, Errno> {
    let set = rustix::thread::sched_getaffinity(None)?;
    Ok((0..CpuSet::MAX_CPU).filter(|cpu| set.is_set(*cpu)).collect())
}

fn read_text(path: &str) -> Result<String, StartError> {
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_names_of_slots_are_slots() {
        assert_eq!(Node::slot_of_name("s12"), Some(12));
        for name in ["", "s", "12", "s-1", "s012", "s+1", "s1/", "blank"] {
            assert_eq!(Node::slot_of_name(name), None, "{name}");
        }
    }
}
