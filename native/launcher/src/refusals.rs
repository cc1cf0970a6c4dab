//! What of the system calls that exist is refused to sandboxes, and by which error: whole calls, and calls for the sake of their arguments. Each refusal is an
//! event of the sandbox ([`crate::behaviour`]), so it is a verdict of the sandbox's own filter ([`crate::sandbox_filter`]), whose listener that sandbox's is alone.

use crate::seccomp_program::{
    ALLOW, ASK, FIRST_ARGUMENT, Instruction, JUMP_IF_ANY_BIT, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, SECOND_ARGUMENT,
    THIRD_ARGUMENT, give, jump, load, number, refuse, verdict_if,
};
use crate::sys::Errno;
use crate::syscalls::{FORBIDDEN, FORBIDDEN_HERE};

pub const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
/// What programs talk. Others have no place in a sandbox; AF_VSOCK, which knows no namespaces, would reach the hypervisor of the node.
const FAMILIES: [u32; 4] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, AF_NETLINK];
/// Addresses and routes, socket statistics, device events. Not packet filters and the like, which root of a nested network namespace could use.
const NETLINK_PROTOCOLS: [u32; 3] =
    [libc::NETLINK_ROUTE as u32, libc::NETLINK_SOCK_DIAG as u32, libc::NETLINK_KOBJECT_UEVENT as u32];
/// Whether there is an audit log is asked by whatever logs somebody in (su, useradd): no event.
const NETLINK_AUDIT: u32 = libc::NETLINK_AUDIT as u32;

/// The threads of aether have ids up to this one: it is the first process, and starts its other thread before any program. The making of a sandbox may
/// have used up an id between. (In a pid namespace inside, they are those of its first processes.)
pub const LAST_OF_AETHER: u32 = 3;

/// Limits and scheduling of the process that the first argument names. Root of the sandbox has aether's user: without descriptors, memory or time
/// aether would break, which looks like a fault of the platform, or starve, and no timeout of a command would come. A process names itself by 0.
pub const OF_A_PROCESS: [(libc::c_long, &str); 5] = [
    (libc::SYS_prlimit64, "prlimit64"),
    (libc::SYS_sched_setaffinity, "sched_setaffinity"),
    (libc::SYS_sched_setattr, "sched_setattr"),
    (libc::SYS_sched_setparam, "sched_setparam"),
    (libc::SYS_sched_setscheduler, "sched_setscheduler"),
];

const IOPRIO_WHO_USER: u32 = 3;

/// Packet filters are also spoken to by options of any socket: of IPv4 (with ARP, bridges and virtual servers) those from here on, which are nothing else.
pub const FIRST_TABLE_OPTION: u32 = 64;
/// Of IPv6 they lie between others: IP6T_SO_SET_REPLACE and SET_ADD_COUNTERS, which are also GET_INFO and GET_ENTRIES, and the revisions of matches and
/// targets.
pub const TABLE_OPTIONS6: [u32; 4] = [64, 65, 68, 69];

/// The one keyctl that the launcher itself needs, to give a sandbox its own session keyring.
pub const KEYCTL_JOIN_SESSION_KEYRING: u32 = 1;

/// Whether refusals are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusals {
    /// The filter asks its listener, which answers with the error.
    Told,
    /// The filter answers by itself.
    Silent,
}

impl Refusals {
    pub fn verdict(self, errno: Errno) -> Instruction {
        match self {
            Self::Told => give(ASK),
            Self::Silent => refuse(errno),
        }
    }

    /// Calls, and what is looked at in each.
    pub fn of_every_sandbox(self) -> Vec<(u32, Vec<Instruction>)> {
        let forbidden = FORBIDDEN.iter().chain(FORBIDDEN_HERE);
        let mut calls: Vec<(u32, Vec<Instruction>)> =
            forbidden.map(|(call, _)| (number(*call), vec![self.verdict(Errno::PERM)])).collect();
        calls.extend(OF_A_PROCESS.map(|(call, _)| (number(call), self.process_check(FIRST_ARGUMENT))));
        calls.extend(
            [
                (libc::SYS_socket, self.socket_check()),
                (libc::SYS_socketpair, self.socket_check()),
                (libc::SYS_keyctl, self.keyctl_check()),
                (libc::SYS_setsockopt, option_check()),
                (libc::SYS_getsockopt, option_check()),
                (libc::SYS_setpriority, self.priority_check(libc::PRIO_USER)),
                (libc::SYS_ioprio_set, self.priority_check(IOPRIO_WHO_USER)),
            ]
            .map(|(call, check)| (number(call), check)),
        );
        calls
    }

    /// Calls that could make a user namespace.
    pub fn of_nested_users(self) -> [(u32, Vec<Instruction>); 3] {
        [
            (number(libc::SYS_clone), self.flags_check()),
            (number(libc::SYS_unshare), self.flags_check()),
            // Its flags are in memory, where a filter cannot look: libc falls back to clone.
            (number(libc::SYS_clone3), vec![refuse(Errno::NOSYS)]),
        ]
    }

    fn socket_check(self) -> Vec<Instruction> {
        let mut check = vec![load(FIRST_ARGUMENT)];
        for family in FAMILIES.into_iter().filter(|family| *family != AF_NETLINK) {
            check.extend(verdict_if(family, give(ALLOW)));
        }
        let netlink = jump(JUMP_IF_EQUAL, AF_NETLINK, 1, 0);
        check.extend([netlink, self.verdict(Errno::AFNOSUPPORT), load(THIRD_ARGUMENT)]);
        for protocol in NETLINK_PROTOCOLS {
            check.extend(verdict_if(protocol, give(ALLOW)));
        }
        check.extend(verdict_if(NETLINK_AUDIT, refuse(Errno::PROTONOSUPPORT)));
        check.push(self.verdict(Errno::PROTONOSUPPORT));
        check
    }

    fn keyctl_check(self) -> Vec<Instruction> {
        let mut check = vec![load(FIRST_ARGUMENT)];
        check.extend(verdict_if(KEYCTL_JOIN_SESSION_KEYRING, give(ALLOW)));
        check.push(self.verdict(Errno::PERM));
        check
    }

    fn process_check(self, argument: u32) -> Vec<Instruction> {
        vec![
            load(argument),
            jump(JUMP_IF_AT_LEAST, LAST_OF_AETHER + 1, 1, 0),
            jump(JUMP_IF_EQUAL, 0, 0, 1),
            give(ALLOW),
            self.verdict(Errno::PERM),
        ]
    }

    /// Also not by all processes of a user. (aether leads its process group, which has its number.)
    fn priority_check(self, of_user: u32) -> Vec<Instruction> {
        let mut check = vec![load(FIRST_ARGUMENT)];
        check.extend(verdict_if(of_user, self.verdict(Errno::PERM)));
        check.extend(self.process_check(SECOND_ARGUMENT));
        check
    }

    fn flags_check(self) -> Vec<Instruction> {
        let is_meant = jump(JUMP_IF_ANY_BIT, libc::CLONE_NEWUSER as u32, 0, 1);
        vec![load(FIRST_ARGUMENT), is_meant, self.verdict(Errno::PERM), give(ALLOW)]
    }
}

/// Refused as a kernel without packet filters would, which programs that only look for some are used to: no event.
fn option_check() -> Vec<Instruction> {
    let refused = refuse(Errno::NOPROTOOPT);
    let mut check = vec![load(SECOND_ARGUMENT), jump(JUMP_IF_EQUAL, libc::SOL_IP as u32, 0, 4)];
    check.extend([load(THIRD_ARGUMENT), jump(JUMP_IF_AT_LEAST, FIRST_TABLE_OPTION, 0, 1), refused, give(ALLOW)]);
    check.extend([jump(JUMP_IF_EQUAL, libc::SOL_IPV6 as u32, 1, 0), give(ALLOW), load(THIRD_ARGUMENT)]);
    for option in TABLE_OPTIONS6 {
        check.extend(verdict_if(option, refused));
    }
    check.push(give(ALLOW));
    check
}
