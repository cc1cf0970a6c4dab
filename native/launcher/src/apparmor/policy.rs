//! What AppArmor is told: for each profile two of its own, one for aether and one for the programs that aether starts.
//!
//! The programs' denies what the default one of container runtimes denies (docker-default), by path: settings and memory of the host in /proc and /sys,
//! signals and traces beyond the sandbox, capabilities that work on the host alone. It is a second lock on what ids and namespaces hold already, and
//! one that the paths are a part of: a program that may mount can show itself /proc elsewhere, where only its most dangerous files are still closed.
//!
//! aether's own forbids nothing, as aether works on behalf of the edge wherever programs have files. What it executes comes into the programs' by the kernel's
//! doing, at no cost; and programs have no signal and no trace for it.

use std::fmt::Write;

use crate::profile::Profile;
use crate::sandbox_filter::NestedUsers;

/// Of linux/capability.h, in the order of their numbers.
const CAPABILITIES: [&str; 41] = [
    "chown",
    "dac_override",
    "dac_read_search",
    "fowner",
    "fsetid",
    "kill",
    "setgid",
    "setuid",
    "setpcap",
    "linux_immutable",
    "net_bind_service",
    "net_broadcast",
    "net_admin",
    "net_raw",
    "ipc_lock",
    "ipc_owner",
    "sys_module",
    "sys_rawio",
    "sys_chroot",
    "sys_ptrace",
    "sys_pacct",
    "sys_admin",
    "sys_boot",
    "sys_nice",
    "sys_resource",
    "sys_time",
    "sys_tty_config",
    "mknod",
    "lease",
    "audit_write",
    "audit_control",
    "setfcap",
    "mac_override",
    "mac_admin",
    "syslog",
    "wake_alarm",
    "block_suspend",
    "audit_read",
    "perfmon",
    "bpf",
    "checkpoint_restore",
];

/// Those that mean something to the host alone: no program in a user namespace of its own needs them.
const HOST_ONLY: [&str; 8] =
    ["bpf", "mac_admin", "mac_override", "perfmon", "sys_boot", "sys_module", "sys_rawio", "syslog"];

/// Closed wherever /proc is mounted.
const SECRETS: &str = "{kcore,kmsg,kpagecgroup,kpagecount,kpageflags,sysrq-trigger,timer_list,vmallocinfo}";

const SECRETS_OF_SYS: &str = "{firmware,devices/virtual/powercap,kernel/debug,kernel/security,kernel/tracing}";

/// Rules that do not depend on the profile. Denials that are spelled out are not logged by the kernel.
const COMMON: &str = r"
  file,
  network,

  deny /proc/* w,
  deny /proc/{[^1-9],[^1-9][^0-9],[^1-9s][^0-9y][^0-9s],[^1-9][^0-9][^0-9][^0-9]*}/** w,
  deny /proc/sys/kernel/{?,??,[^s][^h][^m]**} w,

  deny /sys/[^f]*/** wklx,
  deny /sys/f[^s]*/** wklx,
  deny /sys/fs/[^c]*/** wklx,
  deny /sys/fs/c[^g]*/** wklx,
  deny /sys/fs/cg[^r]*/** wklx,
";

/// Settings of network and user namespaces are a nested sandbox's own.
const SETTINGS_OF_NESTED: &str = "  deny /proc/sys/{[^knu]**,n[^e]**,ne[^t]**,u[^s]**} w,\n";
const NO_SETTINGS: &str = "  deny /proc/sys/[^k]** w,\n";

/// Names and text of one profile's pair.
pub struct Policy {
    /// What aether is executed into.
    pub aether: String,
    pub programs: String,
    pub text: String,
}

impl Policy {
    pub fn of(profile: Profile) -> Self {
        let unnamed = text(profile, "A", "P");
        let version = digest(unnamed.as_bytes());
        let aether = format!("dsec-aether-{}-{version:016x}", profile.name());
        let programs = format!("dsec-{}-{version:016x}", profile.name());
        let text = text(profile, &aether, &programs);
        Self { aether, programs, text }
    }
}

/// Whether a profile of AppArmor is one of these, of whatever version.
pub fn is_ours(name: &str) -> bool {
    let Some(rest) = name.strip_prefix("dsec-") else { return false };
    let rest = rest.strip_prefix("aether-").unwrap_or(rest);
    let Some((profile, version)) = rest.split_once('-') else { return false };
    Profile::parse(profile).is_some() && version.len() == 16 && version.bytes().all(|byte| byte.is_ascii_hexdigit())
}

/// Two servers of different versions have different policies, and find each its own. FNV-1a; nobody chooses what goes in.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xCBF2_9CE4_8422_2325, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3))
}

fn text(profile: Profile, aether: &str, programs: &str) -> String {
    let rules = profile.rules();
    // With no_new_privs the kernel lets nobody into another profile but beside the one that it is in: inherited (`i`), and stacked on.
    let (transition, peer) = if rules.has_no_new_privileges {
        ("pix -> &", format!("{aether}//&{programs}"))
    } else {
        ("px -> ", programs.to_owned())
    };
    let capabilities: Vec<&str> = (0..)
        .zip(CAPABILITIES)
        .filter(|(number, name)| rules.capabilities.contains(*number) && !HOST_ONLY.contains(name))
        .map(|(_, name)| name)
        .collect();
    let nested = match rules.nested_users {
        NestedUsers::Allowed => format!("{SETTINGS_OF_NESTED}  mount,\n  umount,\n  pivot_root,\n"),
        NestedUsers::Refused => format!("{NO_SETTINGS}  deny mount,\n  deny umount,\n  deny pivot_root,\n"),
    };
    // What is covered may be read: it is empty, and who reads it is told of.
    let closed = if rules.covered.is_empty() { "rwklx" } else { "wklx" };
    let mut text = String::new();
    // The rules' meaning must not change with the kernel: this version of it is known to every parser since 3.0.
    let _ = write!(
        text,
        "abi <abi/3.0>,
profile {aether} flags=(attach_disconnected,mediate_deleted) {{
  capability,
  network,
  mount,
  umount,
  pivot_root,
  signal,
  ptrace,
  /{{,**}} mrwlk,
  /** {transition}{programs},
}}
profile {programs} flags=(attach_disconnected,mediate_deleted) {{
  capability {},
{COMMON}
  deny /{{,**/}}proc/{SECRETS} {closed},
  deny /sys/{SECRETS_OF_SYS}/** {closed},
{nested}
  # Whoever may end a sandbox is outside, under whatever name.
  signal (receive),
  signal (send) peer=\"{peer}\",
  ptrace (read, readby, trace, tracedby) peer=\"{peer}\",
  ptrace (readby, tracedby) peer=\"{aether}\",
}}
",
        capabilities.join(" "),
    );
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_profile_has_names_that_say_whose_and_which_they_are() {
        let policies = Profile::ALL.map(Policy::of);
        for (policy, profile) in policies.iter().zip(Profile::ALL) {
            assert!(is_ours(&policy.aether) && is_ours(&policy.programs));
            assert!(policy.programs.starts_with(&format!("dsec-{}-", profile.name())));
        }
        let version = |policy: &Policy| policy.programs.rsplit_once('-').map(|(_, version)| version.to_owned());
        assert_ne!(version(&policies[0]), version(&policies[1]), "other rules have other versions");
        for other in ["docker-default", "dsec-", "dsec-default", "dsec-lax-0123456789abcdef", "dsec-default-012345678"]
        {
            assert!(!is_ours(other), "{other}");
        }
    }

    /// Kernels without AppArmor compile them as well, where the compiler is.
    #[test]
    fn the_compiler_takes_every_text() {
        if !std::path::Path::new("/usr/sbin/apparmor_parser").exists() {
            println!("skipped: apparmor_parser is not installed");
            return;
        }
        for profile in Profile::ALL {
            crate::apparmor::parse(&["--skip-kernel-load", "--skip-cache"], &Policy::of(profile).text)
                .expect("compiled");
        }
    }

    #[test]
    fn no_profile_has_what_means_something_to_the_host_alone() {
        for profile in Profile::ALL {
            let policy = Policy::of(profile);
            let (_, programs) = policy.text.split_once(&format!("profile {}", policy.programs)).expect("two profiles");
            let capabilities =
                programs.lines().find(|line| line.trim_start().starts_with("capability ")).expect("capabilities");
            for name in HOST_ONLY.into_iter().chain(["sys_nice", "sys_resource"]) {
                assert!(!capabilities.split([' ', ',']).any(|word| word == name), "{capabilities}");
            }
        }
    }

    #[test]
    fn only_where_sandboxes_nest_may_programs_mount() {
        for profile in Profile::ALL {
            let text = Policy::of(profile).text;
            let may_mount = matches!(profile.rules().nested_users, NestedUsers::Allowed);
            assert_eq!(text.contains("deny mount,"), !may_mount);
        }
    }
}
