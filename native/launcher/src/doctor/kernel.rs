//! Processes, namespaces, groups and confinement.

use std::os::fd::AsFd;

use super::Outcome;
use crate::apparmor;
use crate::cgroup;
use crate::data_dir::open_host_directory;
use crate::failure::errno_name;
use crate::host_limits::HostLimits;
use crate::namespaces;
use crate::sys::clone::{self, Fork, Process};
use crate::sys::{Errno, confinement, process};

/// The first kernel on which everything used here is there.
const MIN_KERNEL: (u32, u32) = (6, 15);
/// Landlock: scopes for signals and abstract sockets.
const MIN_LANDLOCK: u32 = 6;
/// Fewer user namespaces than this hold back the number of sandboxes.
const MIN_USER_NAMESPACES: u64 = 1_024;
/// A uid that the throw-away namespace maps from; nobody has it.
pub const TRIAL_UID: u32 = 0xF400_0000;

pub fn explain(what: &'static str) -> impl Fn(Errno) -> String {
    move |errno| format!("{what}: {}", errno_name(errno))
}

/// Forks, does `work` there, and says how it ended: so that what a try changes ends with it.
pub fn in_child(work: impl FnOnce() -> Result<(), Errno>) -> Result<(), String> {
    let process = spawn(work)?;
    match clone::wait(process.pidfd.as_fd()) {
        clone::Ending::Code(0) => Ok(()),
        clone::Ending::Code(number) => Err(errno_name(Errno::from_raw_os_error(number))),
        other => Err(format!("the trial process ended with {other:?}")),
    }
}

fn spawn(work: impl FnOnce() -> Result<(), Errno>) -> Result<Process, String> {
    // SAFETY: this program has one thread.
    match unsafe { clone::fork(0, None) }.map_err(explain("clone3"))? {
        Fork::Parent(process) => Ok(process),
        Fork::Child => process::exit_now(work().map_or_else(Errno::raw_os_error, |()| 0)),
    }
}

pub fn root() -> Outcome {
    if rustix::process::geteuid().is_root() { Ok("runs as root".into()) } else { Err("does not run as root".into()) }
}

pub fn version() -> Outcome {
    let release = rustix::system::uname().release().to_string_lossy().into_owned();
    let mut numbers =
        release.split(|character: char| !character.is_ascii_digit()).map(|number| number.parse::<u32>().unwrap_or(0));
    let found = (numbers.next().unwrap_or(0), numbers.next().unwrap_or(0));
    let (major, minor) = MIN_KERNEL;
    if found >= MIN_KERNEL { Ok(release) } else { Err(format!("{release}; {major}.{minor} is needed")) }
}

pub fn clone3() -> Outcome {
    in_child(|| Ok(()))?;
    Ok("works".into())
}

pub fn pidfd() -> Outcome {
    let (process, other) = (spawn(|| Ok(()))?, spawn(|| Ok(()))?);
    let identities = [&process, &other].map(|process| clone::identity(&process.pidfd));
    let user = clone::user_namespace_of(&process.pidfd).map(|_| ());
    clone::wait(process.pidfd.as_fd());
    clone::wait(other.pidfd.as_fd());
    // A process that is over before it is asked has none; any other refusal counts.
    match user {
        Ok(()) | Err(Errno::SRCH) => {}
        Err(errno) => return Err(explain("PIDFD_GET_USER_NAMESPACE")(errno)),
    }
    let [one, other] = identities;
    if one.map_err(explain("fstat"))? == other.map_err(explain("fstat"))? {
        Err("pidfds are not distinct".into())
    } else {
        Ok("works".into())
    }
}

pub fn user_namespaces() -> Outcome {
    let limit = std::fs::read_to_string("/proc/sys/user/max_user_namespaces").map_err(|error| error.to_string())?;
    let limit: u64 = limit.trim().parse().map_err(|_| "max_user_namespaces is no number".to_owned())?;
    if limit < MIN_USER_NAMESPACES {
        return Err(format!("user.max_user_namespaces is {limit}; {MIN_USER_NAMESPACES} or more are needed"));
    }
    in_child(|| namespaces::make_user(open_host_directory("/proc")?, TRIAL_UID).map(|_| ()))?;
    Ok(format!("at most {limit}"))
}

pub fn network_namespaces() -> Outcome {
    in_child(|| namespaces::enter_new_network(open_host_directory("/proc")?))?;
    Ok("works".into())
}

pub fn cgroups() -> Outcome {
    Ok(match cgroup::detect()? {
        cgroup::Found::V2(root) => {
            let offered = cgroup::offered_controllers(&root);
            if let Some(missing) =
                ["memory", "pids", "cpu"].iter().find(|name| !offered.iter().any(|offered| offered == *name))
            {
                return Err(format!("version 2 without the controller {missing}"));
            }
            format!("version 2 with {}", offered.join(", "))
        }
        cgroup::Found::V1(hierarchies) => {
            let names: Vec<String> = hierarchies.iter().map(|(controllers, _)| controllers.join("+")).collect();
            format!("version 1 with {}", names.join(", "))
        }
    })
}

pub fn seccomp() -> Outcome {
    confinement::seccomp_filters_work().map_err(explain("seccomp"))?;
    Ok("filters work".into())
}

pub fn landlock() -> Outcome {
    let abi = confinement::landlock_abi().map_err(explain("landlock_create_ruleset"))?;
    if abi < MIN_LANDLOCK { Err(format!("ABI {abi}; {MIN_LANDLOCK} is needed")) } else { Ok(format!("ABI {abi}")) }
}

pub fn apparmor() -> Outcome {
    apparmor::examine()
}

pub fn host_limits() -> Outcome {
    let low = HostLimits::of_this_host().low()?;
    for (name, _) in &low {
        let path = format!("/proc/sys/{name}");
        // Opened alone: nothing is changed here.
        let opened = std::fs::OpenOptions::new().write(true).open(&path);
        opened.map_err(|error| format!("{path}: {error}"))?;
    }
    let low: Vec<String> = low.iter().map(|(name, present)| format!("{name} ({present})")).collect();
    Ok(if low.is_empty() { "high enough".into() } else { format!("`dsec up` raises {}", low.join(", ")) })
}

pub fn kvm() -> Outcome {
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/kvm")
        .map_err(|error| format!("/dev/kvm: {error}"))?;
    confinement::create_virtual_machine(&device).map_err(explain("KVM_CREATE_VM"))?;
    Ok("makes virtual machines".into())
}
