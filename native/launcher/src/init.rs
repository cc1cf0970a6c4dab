//! What a new process does, as root of the host, until it has become the first process of a sandbox: groups, namespaces, mounts, limits, and
//! then it executes aether.
//!
//! ## What of /proc needs covering
//!
//! Runtimes cover or re-mount parts of /proc because their root is root of the host, or shares its user namespace. Here root of the sandbox is an
//! ordinary user of the host, and files of /proc belong to root of the host, so the permissions of the files themselves decide. Each mount would
//! cost a create, and one over /proc would keep nested user namespaces from mounting their own. So nothing is covered:
//!
//! | path | mode | root of the sandbox |
//! |---|---|---|
//! | kcore, kpagecount, kpageflags, kpagecgroup, timer_list, kmsg, vmallocinfo, slabinfo | 0400 | cannot open |
//! | sysrq-trigger | 0200 | cannot open |
//! | keys, key-users | 0444 | sees keys of its own user namespace |
//! | sys, sys/kernel, sys/vm, sys/fs, sys/net | 0644 | reads; writes need the host's root, or power over a namespace that the host's root owns |
//! | sys/user | 0644 | reads; writes need CAP_SYS_RESOURCE, which is taken away |
//! | sys/kernel/ns_last_pid | 0666 | opens; writes need power over its pid namespace, which the host's root owns |
//! | pressure | 0666 | may wait for pressure as every user of the host may |
//! | irq, bus, fs, acpi, scsi, asound | 0644 | reads what every user of the host reads |
//! | 1 and every process of aether | - | aether is not dumpable: nothing but its public status |
//!
//! `tests/isolation.rs` opens every file below /proc and /sys for writing from inside.

use std::ffi::CString;
use std::net::IpAddr;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, IntoRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};
use rustix::thread::CpuSet;

use crate::apparmor;
use crate::cgroup;
use crate::create::shm_inodes;
use crate::namespaces::{self, Namespaces};
use crate::profile::Profile;
use crate::refusals::Refusals;
use crate::rootfs;
use crate::seccomp_program::Instruction;
use crate::sys::mount::{self, Attr, Value};
use crate::sys::{Errno, Result, confinement, process, seccomp_notify};
use crate::templates::{CGROUPS, Templates, hidden, visible_hierarchies};
use crate::volume::Volume;

/// Where aether finds its listening socket.
const LISTENER_FD: i32 = 3;
/// Where aether finds the counter of the kernel's kills for memory, so that it can say why a command ended.
const OOM_COUNTER_FD: i32 = 4;
/// aether's own oom_score_adj.
const OOM_SCORE_FD: i32 = 5;
/// The listener of the sandbox's filter, where refusals are told: aether only holds it.
pub const REFUSALS_FD: i32 = 6;
const AETHER_FD: i32 = 7;
const CHANNEL_FD: i32 = 8;

/// Open files of one process. Programs that close all possible descriptors take long with more.
const MAX_OPEN_FILES: u64 = 65_536;
/// 1 rather than 0: the kernel then also runs no crash handler of the host, which 0 does not prevent.
const CORE_BYTES: u64 = 1;
const LOCKED_BYTES: u64 = 8 << 20;
const STACK_BYTES: u64 = 8 << 20;

/// What a blank is called.
const NAMELESS: &str = "localhost";

/// Group `tty` of the terminals.
const TTY_GROUP: u32 = 5;

macro_rules! stages {
    ($($name:ident = $text:literal,)+) => {
        /// The step that failed.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[repr(u8)]
        pub enum Stage { $($name,)+ }

        impl Stage {
            const ALL: &[Self] = &[$(Self::$name,)+];

            pub fn name(self) -> &'static str {
                match self { $(Self::$name => $text,)+ }
            }
        }
    };
}

stages! {
    Cgroup = "cgroup",
    UserNamespace = "user-namespace",
    NetworkNamespace = "network-namespace",
    Volume = "volume",
    Mounts = "mounts",
    Root = "root",
    Identity = "identity",
    Limits = "limits",
    Privileges = "privileges",
    Execute = "execute",
}

/// The message that comes right before execution: without it, the end of the channel means that the process died on its way.
pub const READY: [u8; 1] = [0xFF];
/// Bytes of a failure's message.
pub const REPORT_LENGTH: usize = 5;

pub fn encode_report(stage: Stage, errno: Errno) -> [u8; REPORT_LENGTH] {
    let number = errno.raw_os_error().to_le_bytes();
    [stage as u8, number[0], number[1], number[2], number[3]]
}

pub fn decode_report(bytes: &[u8]) -> Option<(Stage, Errno)> {
    let (stage, errno) = bytes.split_first()?;
    let stage = Stage::ALL.get(usize::from(*stage))?;
    Some((*stage, Errno::from_raw_os_error(i32::from_le_bytes(errno.try_into().ok()?))))
}

/// What the process needs to know. It is a copy of the launcher, and may use all that the launcher has.
pub struct Plan<'a> {
    pub slot_name: &'a str,
    /// The host's id behind root.
    pub root_uid: u32,
    pub listener: BorrowedFd<'a>,
    /// Failures go out; the word to start comes in.
    pub channel: BorrowedFd<'a>,
    pub aether: BorrowedFd<'a>,
    pub groups: &'a cgroup::Entry,
    pub namespaces: Option<&'a Namespaces>,
    pub volume: &'a Volume,
    pub templates: &'a Templates,
    pub profile: Profile,
    /// What is refused to programs.
    pub filter: &'a [Instruction],
    pub refusals: Refusals,
    pub cgroups: &'a cgroup::Cgroups,
    pub has_oom_adjustment: bool,
    /// Where the kernel has AppArmor: how to get into the profile.
    pub apparmor: Option<&'a str>,
    /// `None` for a blank, which gets it later.
    pub content: Option<Content<'a>>,
}

/// What turns a blank into somebody's sandbox.
pub struct Content<'a> {
    pub lower: BorrowedFd<'a>,
    pub hostname: &'a str,
    pub nameserver: Option<IpAddr>,
    pub disk_bytes: u64,
    pub shm_bytes: u64,
    pub cpus: Option<&'a CpuSet>,
}

/// Becomes the sandbox of the plan. Must be called in a new process only.
pub fn run(plan: &Plan<'_>) -> ! {
    // Who reads the messages may be gone, which changes nothing: this process is over then.
    let held = match become_sandbox(plan) {
        Ok(held) => held,
        Err((stage, errno)) => {
            let _ = rustix::io::write(plan.channel, &encode_report(stage, errno));
            process::exit_now(127)
        }
    };
    if place_descriptors(plan, held).is_ok() {
        let channel = process::borrow_fixed(CHANNEL_FD);
        let errno =
            match wait_for_word(channel).and_then(|()| plan.apparmor.map_or(Ok(()), apparmor::enter_at_execution)) {
                Ok(()) => {
                    let _ = rustix::io::write(channel, &READY);
                    process::execute(process::borrow_fixed(AETHER_FD), c"aether")
                }
                Err(errno) => errno,
            };
        let _ = rustix::io::write(channel, &encode_report(Stage::Execute, errno));
    }
    process::exit_now(127)
}

/// What aether finds open beside its socket.
struct Held {
    /// Its own oom_score_adj.
    score: OwnedFd,
    listener: Option<OwnedFd>,
}

fn become_sandbox(plan: &Plan<'_>) -> std::result::Result<Held, (Stage, Errno)> {
    let at = |stage| move |errno| (stage, errno);
    rustix::process::umask(Mode::empty());
    enter_groups(plan.groups).map_err(at(Stage::Cgroup))?;
    let proc = mount::create("proc", &[], hidden()).map_err(at(Stage::Mounts))?;
    let made;
    let user = match plan.namespaces {
        Some(ready) => {
            process::enter(ready.net.as_fd(), libc::CLONE_NEWNET).map_err(at(Stage::NetworkNamespace))?;
            &ready.user
        }
        None => {
            made = namespaces::start_user(&proc, plan.root_uid).map_err(at(Stage::UserNamespace))?;
            namespaces::enter_new_network(&proc).map_err(at(Stage::NetworkNamespace))?;
            &made.0
        }
    };
    process::set_file_owner(plan.root_uid, plan.root_uid);
    let upper = plan
        .volume
        .create(plan.slot_name, plan.content.as_ref().map(|content| content.disk_bytes))
        .map_err(at(Stage::Volume))?;
    rootfs::prepare(&upper).map_err(at(Stage::Volume))?;
    let hostname = plan.content.as_ref().map_or(NAMELESS, |content| content.hostname);
    let nameserver = plan.content.as_ref().and_then(|content| content.nameserver);
    rootfs::name(upper.data.as_fd(), hostname, nameserver).map_err(at(Stage::Volume))?;
    process::set_file_owner(0, 0);
    mount_system(plan, &proc, user.as_fd()).map_err(at(Stage::Mounts))?;
    if let Some(content) = &plan.content {
        let root = rootfs::assemble(content.lower, user.as_fd(), &upper).map_err(at(Stage::Root))?;
        rootfs::enter_alone(&root).map_err(at(Stage::Root))?;
        plan.templates.covers.lay(plan.profile.rules().covered).map_err(at(Stage::Mounts))?;
        rustix::system::sethostname(content.hostname.as_bytes()).map_err(at(Stage::Identity))?;
        if let Some(cpus) = content.cpus {
            rustix::thread::sched_setaffinity(None, cpus).map_err(at(Stage::Limits))?;
        }
    }
    drop(upper);
    let score = open_oom_score(&proc, plan.has_oom_adjustment).map_err(at(Stage::Limits))?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::setsid().map_err(at(Stage::Identity))?;
    process::reset_signals();
    set_limits().map_err(at(Stage::Limits))?;
    let listener = enter_user(user.as_raw_fd(), plan).map_err(at(Stage::Privileges))?;
    Ok(Held { score, listener })
}

fn enter_groups(groups: &cgroup::Entry) -> Result<()> {
    if let cgroup::Entry::Join(procs) = groups {
        for procs in procs {
            cgroup::join(procs.as_fd())?;
        }
        process::unshare(libc::CLONE_NEWCGROUP)?;
    }
    Ok(())
}

/// Mounts /proc and /dev with what belongs below them, and what belongs below /sys, in the scratch root.
fn mount_system(plan: &Plan<'_>, proc: &OwnedFd, user: BorrowedFd<'_>) -> Result<()> {
    mount::attach(proc, CWD, c"/proc")?;
    let shown = hidden() | Attr::MOUNT_ATTR_RDONLY;
    if plan.cgroups.version() == 2 {
        mount::attach(mount::create("cgroup2", &[], shown)?, CWD, CGROUPS)?;
    }
    for controllers in visible_hierarchies(plan.cgroups) {
        let flags: Vec<(&str, Value<'_>)> = controllers.iter().map(|name| (name.as_str(), Value::Flag)).collect();
        let path = CString::new(format!("/sys/fs/cgroup/{}", controllers.join(","))).map_err(|_| Errno::INVAL)?;
        mount::attach(mount::create("cgroup", &flags, shown)?, CWD, &path)?;
    }

    let devices = mount::duplicate_mapped(plan.templates.devices_of(plan.profile), user, Attr::MOUNT_ATTR_RDONLY)?;
    mount::attach(&devices, CWD, c"/dev")?;
    let owner = plan.root_uid.to_string();
    let tty = (plan.root_uid + TTY_GROUP).to_string();
    let terminals = [
        ("newinstance", Value::Flag),
        ("ptmxmode", Value::Text("0666")),
        ("mode", Value::Text("0620")),
        ("gid", Value::Text(&tty)),
    ];
    let pts = mount::create("devpts", &terminals, Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NOEXEC)?;
    mount::attach(&pts, CWD, c"/dev/pts")?;
    let bytes = plan.content.as_ref().map_or(0, |content| content.shm_bytes).max(4_096);
    let (bytes, inodes) = (bytes.to_string(), shm_inodes(bytes).to_string());
    let shared = [
        ("mode", Value::Text("1777")),
        ("uid", Value::Text(&owner)),
        ("gid", Value::Text(&owner)),
        ("size", Value::Text(&bytes)),
        ("nr_inodes", Value::Text(&inodes)),
    ];
    let shm = mount::create("tmpfs", &shared, Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NODEV)?;
    mount::attach(&shm, CWD, c"/dev/shm")
}

/// aether raises and lowers it around the start of each program, which inherits it.
fn open_oom_score(proc: &OwnedFd, reset: bool) -> Result<OwnedFd> {
    let file = openat(proc, "self/oom_score_adj", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    if reset {
        rustix::io::write(&file, b"0")?;
    }
    Ok(file)
}

fn set_limits() -> Result<()> {
    process::limit_resource(libc::RLIMIT_CORE, CORE_BYTES, CORE_BYTES)?;
    process::limit_resource(libc::RLIMIT_NOFILE, MAX_OPEN_FILES, MAX_OPEN_FILES)?;
    process::limit_resource(libc::RLIMIT_MEMLOCK, LOCKED_BYTES, LOCKED_BYTES)?;
    process::limit_resource(libc::RLIMIT_STACK, STACK_BYTES, u64::MAX)
}

/// Enters the user namespace and becomes its root, bound by the profile: from here on this process is an ordinary user of the host.
/// Returns the listener of its filter.
fn enter_user(user: i32, plan: &Plan<'_>) -> Result<Option<OwnedFd>> {
    let rules = plan.profile.rules();
    process::enter(process::borrow_fixed(user), libc::CLONE_NEWUSER)?;
    process::become_namespace_root()?;
    process::limit_bounding(|capability| rules.capabilities.contains(capability))?;
    process::join_new_session_keyring()?;
    if rules.has_no_new_privileges {
        process::forbid_new_privileges()?;
    }
    match plan.refusals {
        Refusals::Told => seccomp_notify::filter_system_calls(plan.filter).map(Some),
        Refusals::Silent => confinement::filter_system_calls(plan.filter).map(|()| None),
    }
}

/// Waits until the launcher has written down what it needs to find this process again. The end of the launcher is the end of the attempt: it is
/// seen because nothing that the launcher holds, its own end of the channel above all, is held here any more.
fn wait_for_word(channel: BorrowedFd<'_>) -> Result<()> {
    let mut word = [0];
    match rustix::io::retry_on_intr(|| rustix::io::read(channel, &mut word))? {
        1 => Ok(()),
        _ => Err(Errno::CONNRESET),
    }
}

/// Leaves exactly 0, 1 and 2 (the sandbox's null device), aether's socket, the counter, the score, the filter's listener, and two that execution closes.
fn place_descriptors(plan: &Plan<'_>, held: Held) -> Result<()> {
    // Nobody owns it: `close_from` closes all that is left.
    let null = openat(CWD, c"/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?.into_raw_fd();
    let counter = plan.cgroups.open_oom_counter(plan.slot_name)?.into_raw_fd();
    // First out of the way of the numbers below, then into place.
    let [null, listener, counter, score, aether, channel] = [
        null,
        plan.listener.as_raw_fd(),
        counter,
        held.score.into_raw_fd(),
        plan.aether.as_raw_fd(),
        plan.channel.as_raw_fd(),
    ]
    .map(process::above_fixed);
    if let Some(refusals) = held.listener {
        process::place_fd(process::above_fixed(refusals.into_raw_fd())?, REFUSALS_FD, false)?;
    }
    for (from, to, close_on_exec) in [
        (null?, 0, false),
        (null?, 1, false),
        (null?, 2, false),
        (listener?, LISTENER_FD, false),
        (counter?, OOM_COUNTER_FD, false),
        (score?, OOM_SCORE_FD, false),
        (aether?, AETHER_FD, true),
        (channel?, CHANNEL_FD, true),
    ] {
        process::place_fd(from, to, close_on_exec)?;
    }
    process::close_from(CHANNEL_FD + 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reports_survive_the_pipe() {
        for stage in Stage::ALL {
            assert_eq!(decode_report(&encode_report(*stage, Errno::NOSPC)), Some((*stage, Errno::NOSPC)));
        }
        assert_eq!(decode_report(&[200, 0, 0, 0, 0]), None);
        assert_eq!(decode_report(&[0, 1]), None);
        assert_eq!(decode_report(&[]), None);
    }
}
