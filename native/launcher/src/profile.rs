//! How closely a sandbox is held: one table. What no sandbox may do at all is in `syscall_filter` and `refusals`.

use std::ffi::CStr;

use crate::sandbox_filter::NestedUsers;
use crate::templates::Device;

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Profile {
    /// For programs that nobody trusts and that need no sandbox of their own.
    Strict,
    /// For agents: setuid programs and sandboxes inside the sandbox work.
    #[default]
    Default,
    /// For building images: filesystems that programs serve (FUSE) come to it.
    Builder,
}

pub struct Rules {
    pub name: &'static str,
    /// May programs make user namespaces?
    pub nested_users: NestedUsers,
    /// No program gains anything by setuid or by capabilities of files.
    pub has_no_new_privileges: bool,
    /// What root has at most.
    pub capabilities: Capabilities,
    /// Shown as empty. A cover keeps user namespaces from mounting /proc or /sys of their own: only where there are none.
    pub covered: &'static [&'static CStr],
    /// Besides those of every sandbox.
    pub devices: &'static [Device],
}

pub enum Capabilities {
    AllBut(u64),
    Only(u64),
}

const fn bits(capabilities: &[u32]) -> u64 {
    let (mut bits, mut i) = (0, 0);
    while i < capabilities.len() {
        bits |= 1 << capabilities[i];
        i += 1;
    }
    bits
}

/// Lets the owner of a user namespace lift the limits that the kernel sets on what it may make; nothing else of it works outside the host.
const CAP_SYS_RESOURCE: u32 = 24;
/// Gives nobody a better place, and lets root set the timers of all processes back, aether's with them: no timeout of a command would come.
const CAP_SYS_NICE: u32 = 23;
const MOST: Capabilities = Capabilities::AllBut(bits(&[CAP_SYS_NICE, CAP_SYS_RESOURCE]));

/// What aether and a package manager need: owners, permissions and modes of files (0, 1, 3, 4, 31), other users (6, 7), signals (5), low ports (10),
/// other roots (18), and to give capabilities up (8).
const FEW: Capabilities = Capabilities::Only(bits(&[0, 1, 3, 4, 5, 6, 7, 8, 10, 18, 31]));

/// What tells of the host or of other users of it, as runtimes cover it. Where a kernel lacks one, nothing is covered.
const COVERED: &[&CStr] = &[
    c"/proc/acpi",
    c"/proc/asound",
    c"/proc/bus",
    c"/proc/cmdline",
    c"/proc/config.gz",
    c"/proc/fs",
    c"/proc/interrupts",
    c"/proc/irq",
    c"/proc/kallsyms",
    c"/proc/kcore",
    c"/proc/key-users",
    c"/proc/keys",
    c"/proc/kpagecgroup",
    c"/proc/kpagecount",
    c"/proc/kpageflags",
    c"/proc/latency_stats",
    c"/proc/modules",
    c"/proc/pressure",
    c"/proc/sched_debug",
    c"/proc/scsi",
    c"/proc/swaps",
    c"/proc/sysrq-trigger",
    c"/proc/timer_list",
    c"/sys/bus",
    c"/sys/devices/virtual/block",
    c"/sys/devices/virtual/dmi",
    c"/sys/devices/virtual/powercap",
    c"/sys/firmware",
    c"/sys/fs/bpf",
    c"/sys/fs/btrfs",
    c"/sys/kernel",
    c"/sys/module",
];

const FUSE: Device = ("fuse", 10, 229);

const STRICT: Rules = Rules {
    name: "strict",
    nested_users: NestedUsers::Refused,
    has_no_new_privileges: true,
    capabilities: FEW,
    covered: COVERED,
    devices: &[],
};

const DEFAULT: Rules = Rules {
    name: "default",
    nested_users: NestedUsers::Allowed,
    has_no_new_privileges: false,
    capabilities: MOST,
    covered: &[],
    devices: &[],
};

const BUILDER: Rules = Rules { name: "builder", devices: &[FUSE], ..DEFAULT };

impl Profile {
    pub const ALL: [Self; 3] = [Self::Strict, Self::Default, Self::Builder];

    pub fn rules(self) -> &'static Rules {
        match self {
            Self::Strict => &STRICT,
            Self::Default => &DEFAULT,
            Self::Builder => &BUILDER,
        }
    }

    pub fn name(self) -> &'static str {
        self.rules().name
    }

    pub fn parse(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|profile| profile.name() == name)
    }
}

impl Capabilities {
    /// Whether root inside may have it.
    pub fn contains(&self, capability: u32) -> bool {
        match self {
            Self::AllBut(without) => without & 1 << capability == 0,
            Self::Only(with) => with & 1 << capability != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn profiles_are_known_by_their_names() {
        for profile in Profile::ALL {
            assert_eq!(Profile::parse(profile.name()), Some(profile));
        }
        for name in ["", "Strict", "none", "default "] {
            assert_eq!(Profile::parse(name), None);
        }
    }

    #[test]
    fn nothing_is_covered_where_sandboxes_may_nest() {
        for rules in Profile::ALL.map(Profile::rules) {
            assert!(rules.covered.is_empty() || matches!(rules.nested_users, NestedUsers::Refused), "{}", rules.name);
        }
    }

    #[test]
    fn no_profile_lets_limits_be_lifted_or_aether_be_slowed() {
        for rules in Profile::ALL.map(Profile::rules) {
            let has = |capability| rules.capabilities.contains(capability);
            assert!(!has(CAP_SYS_RESOURCE) && !has(CAP_SYS_NICE), "{}", rules.name);
        }
    }
}
