//! Which system calls a sandbox has. The launcher lives under the same filter: its children inherit it, so that no create pays for one of its own.
//! (What needs more, such as making an uplink's filter, belongs into the helper, which is started before.)
//!
//! Root of a sandbox is an ordinary user of the host, and most of what is dangerous is refused to it anyway. The filter takes away what the kernel
//! offers to ordinary users, and to root of a nested user namespace, and what has been a way out of containers again and again.

use std::collections::BTreeMap;

use crate::seccomp_program::{
    ALLOW, FIRST_ARGUMENT, Instruction, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, Range, SECOND_ARGUMENT, THIRD_ARGUMENT, begin,
    decide, give, jump, load, number, refuse, verdict_if,
};
use crate::sys::Errno;
use crate::syscalls::{FORBIDDEN, FORBIDDEN_HERE, KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER};

const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
/// What programs talk. Others have no place in a sandbox; AF_VSOCK, which knows no namespaces, would reach the hypervisor of the node.
const FAMILIES: [u32; 4] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, AF_NETLINK];
/// Addresses and routes, socket statistics, device events. Not packet filters and the like, which root of a nested network namespace could use.
const NETLINK_PROTOCOLS: [u32; 3] =
    [libc::NETLINK_ROUTE as u32, libc::NETLINK_SOCK_DIAG as u32, libc::NETLINK_KOBJECT_UEVENT as u32];

/// The threads of aether have ids up to this one: it is the first process, and starts its other thread before any program. The making of a sandbox may
/// have used up an id between. (In a pid namespace inside, they are those of its first processes.)
const LAST_OF_AETHER: u32 = 3;

/// Limits and scheduling of the process that the first argument names. Root of the sandbox has aether's user: without descriptors, memory or time
/// aether would break, which looks like a fault of the platform, or starve, and no timeout of a command would come. A process names itself by 0.
const OF_A_PROCESS: [libc::c_long; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

const IOPRIO_WHO_USER: u32 = 3;

/// The one keyctl that the launcher itself needs, to give a sandbox its own session keyring.
const KEYCTL_JOIN_SESSION_KEYRING: u32 = 1;

/// The whole program.
pub fn program() -> Vec<Instruction> {
    let allowed = [KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER].concat();
    let forbidden = [FORBIDDEN, FORBIDDEN_HERE].concat();
    let mut calls: BTreeMap<u32, Vec<Instruction>> = BTreeMap::new();
    calls.extend(allowed.into_iter().map(|call| (number(call), vec![give(ALLOW)])));
    calls.extend(forbidden.into_iter().map(|call| (number(call), vec![refuse(Errno::PERM)])));
    calls.extend(OF_A_PROCESS.map(|call| (number(call), process_check(FIRST_ARGUMENT))));
    calls.extend(
        [
            (libc::SYS_socket, socket_check()),
            (libc::SYS_socketpair, socket_check()),
            (libc::SYS_keyctl, keyctl_check()),
            (libc::SYS_setpriority, priority_check(libc::PRIO_USER)),
            (libc::SYS_ioprio_set, priority_check(IOPRIO_WHO_USER)),
        ]
        .map(|(call, check)| (number(call), check)),
    );
    let ranges = calls.into_iter().map(|(call, then)| Range { first: call, last: call, then }).collect();
    let mut program = begin(refuse(Errno::NOSYS));
    program.extend(decide(ranges, refuse(Errno::NOSYS)));
    program
}

fn socket_check() -> Vec<Instruction> {
    let mut check = vec![load(FIRST_ARGUMENT)];
    for family in FAMILIES.into_iter().filter(|family| *family != AF_NETLINK) {
        check.extend(verdict_if(family, give(ALLOW)));
    }
    check.extend([jump(JUMP_IF_EQUAL, AF_NETLINK, 1, 0), refuse(Errno::AFNOSUPPORT), load(THIRD_ARGUMENT)]);
    for protocol in NETLINK_PROTOCOLS {
        check.extend(verdict_if(protocol, give(ALLOW)));
    }
    check.push(refuse(Errno::PROTONOSUPPORT));
    check
}

fn keyctl_check() -> Vec<Instruction> {
    let mut check = vec![load(FIRST_ARGUMENT)];
    check.extend(verdict_if(KEYCTL_JOIN_SESSION_KEYRING, give(ALLOW)));
    check.push(refuse(Errno::PERM));
    check
}

fn process_check(argument: u32) -> Vec<Instruction> {
    vec![
        load(argument),
        jump(JUMP_IF_AT_LEAST, LAST_OF_AETHER + 1, 1, 0),
        jump(JUMP_IF_EQUAL, 0, 0, 1),
        give(ALLOW),
        refuse(Errno::PERM),
    ]
}

/// Also not by all processes of a user. (aether leads its process group, which has its number.)
fn priority_check(of_user: u32) -> Vec<Instruction> {
    let mut check = vec![load(FIRST_ARGUMENT)];
    check.extend(verdict_if(of_user, refuse(Errno::PERM)));
    check.extend(process_check(SECOND_ARGUMENT));
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_program::{self, NATIVE, REFUSE};
    use crate::syscalls::ABSENT;

    fn judge(architecture: u32, call: u32, arguments: [u32; 3]) -> u32 {
        seccomp_program::judge(&program(), architecture, call, arguments)
    }

    fn refused(errno: Errno) -> u32 {
        REFUSE | errno.raw_os_error() as u32
    }

    #[test]
    fn usual_calls_are_allowed() {
        for call in [
            libc::SYS_read,
            libc::SYS_openat,
            libc::SYS_clone3,
            libc::SYS_ptrace,
            libc::SYS_mount,
            libc::SYS_setns,
            libc::SYS_ioctl,
        ] {
            assert_eq!(judge(NATIVE, number(call), [0; 3]), ALLOW, "{call}");
        }
    }

    #[test]
    fn calls_that_nobody_knows_do_not_exist() {
        for call in [470, 500, 9_999, 0x3FFF_FFFF, u32::MAX] {
            assert_eq!(judge(NATIVE, call, [0; 3]), refused(Errno::NOSYS), "{call}");
        }
    }

    #[test]
    fn no_call_is_in_two_lists() {
        let lists = [KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER, FORBIDDEN, FORBIDDEN_HERE, ABSENT];
        let mut calls = lists.concat();
        calls.sort_unstable();
        let all = calls.len();
        calls.dedup();
        assert_eq!(calls.len(), all);
    }

    #[test]
    fn the_program_stays_small() {
        let program = program();
        assert!(program.len() < 400, "{}", program.len());
    }

    #[test]
    fn every_listed_call_is_refused() {
        for call in ABSENT {
            assert_eq!(judge(NATIVE, number(*call), [0; 3]), refused(Errno::NOSYS), "{call}");
        }
        for call in FORBIDDEN.iter().chain(FORBIDDEN_HERE) {
            assert_eq!(judge(NATIVE, number(*call), [0; 3]), refused(Errno::PERM), "{call}");
        }
    }

    #[test]
    fn sockets_are_judged_by_family_and_protocol() {
        for call in [libc::SYS_socket, libc::SYS_socketpair].map(number) {
            for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
                assert_eq!(judge(NATIVE, call, [family as u32, 1, 77]), ALLOW);
            }
            for family in [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_KEY, libc::AF_TIPC, 0, 99] {
                assert_eq!(judge(NATIVE, call, [family as u32, 1, 0]), refused(Errno::AFNOSUPPORT), "{family}");
            }
            assert_eq!(judge(NATIVE, call, [AF_NETLINK, 3, libc::NETLINK_ROUTE as u32]), ALLOW);
            for protocol in [libc::NETLINK_NETFILTER, libc::NETLINK_GENERIC, libc::NETLINK_XFRM, libc::NETLINK_CRYPTO] {
                assert_eq!(judge(NATIVE, call, [AF_NETLINK, 3, protocol as u32]), refused(Errno::PROTONOSUPPORT));
            }
        }
    }

    #[test]
    fn keyrings_can_only_be_left() {
        assert_eq!(judge(NATIVE, number(libc::SYS_keyctl), [KEYCTL_JOIN_SESSION_KEYRING, 0, 0]), ALLOW);
        assert_eq!(judge(NATIVE, number(libc::SYS_keyctl), [11, 0, 0]), refused(Errno::PERM));
    }

    #[test]
    fn limits_and_scheduling_of_aether_are_not_to_be_had() {
        for call in OF_A_PROCESS.map(number) {
            for id in 1..=LAST_OF_AETHER {
                assert_eq!(judge(NATIVE, call, [id, 7, 1]), refused(Errno::PERM), "{call}");
            }
            for pid in [0, LAST_OF_AETHER + 1, u32::MAX] {
                assert_eq!(judge(NATIVE, call, [pid, 7, 1]), ALLOW, "{call}");
            }
        }
        for (which, who, verdict) in [
            (libc::PRIO_PROCESS, 1, refused(Errno::PERM)),
            (libc::PRIO_PGRP, 1, refused(Errno::PERM)),
            (libc::PRIO_USER, 0, refused(Errno::PERM)),
            (libc::PRIO_PROCESS, 0, ALLOW),
            (libc::PRIO_PGRP, 7, ALLOW),
        ] {
            assert_eq!(judge(NATIVE, number(libc::SYS_setpriority), [which, who, 5]), verdict);
            // The same kinds, counted from 1.
            assert_eq!(judge(NATIVE, number(libc::SYS_ioprio_set), [which + 1, who, 5]), verdict);
        }
    }

    #[test]
    fn other_interfaces_of_the_processor_are_absent() {
        assert_eq!(judge(0x4000_0003, 1, [0; 3]), refused(Errno::NOSYS));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(judge(NATIVE, 0x4000_0001, [0; 3]), refused(Errno::NOSYS));
    }
}
