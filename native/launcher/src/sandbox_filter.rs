//! The filter of a sandbox's own, beside the one of all that the launcher starts ([`crate::syscall_filter`]): what is refused to its programs
//! ([`crate::refusals`]), what they may ask of descriptors ([`crate::request_filter`]), and whether they may make user namespaces.
//!
//! Where refusals are told, its listener ([`crate::behaviour`]) answers them. A process can be under one filter with a listener only, so programs inside
//! cannot have one of their own (EBUSY).

use crate::refusals::Refusals;
use crate::request_filter;
use crate::seccomp_program::{ALLOW, Instruction, REFUSE, Range, begin, decide, give, number, refuse};
use crate::sys::Errno;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NestedUsers {
    Allowed,
    Refused,
}

/// The whole program.
pub fn program(nested_users: NestedUsers, refusals: Refusals) -> Vec<Instruction> {
    let mut calls = refusals.of_every_sandbox();
    calls.push((number(libc::SYS_ioctl), request_filter::check(refusals)));
    // It would write back every filesystem of the host. What a sandbox has written outlives neither it nor the node, and snapshots need no such call:
    // so it is done at once.
    calls.push((number(libc::SYS_sync), vec![give(REFUSE)]));
    if nested_users == NestedUsers::Refused {
        calls.extend(refusals.of_nested_users());
    }
    calls.sort_by_key(|(call, _)| *call);
    let ranges = calls.into_iter().map(|(call, then)| Range { first: call, last: call, then }).collect();
    let mut program = begin(refuse(Errno::NOSYS));
    program.extend(decide(ranges, give(ALLOW)));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusals::{AF_NETLINK, KEYCTL_JOIN_SESSION_KEYRING, LAST_OF_AETHER, OF_A_PROCESS, TABLE_OPTIONS6};
    use crate::seccomp_program::{ASK, NATIVE, REFUSE, judge};
    use crate::syscalls::{ABSENT, FORBIDDEN, FORBIDDEN_HERE};

    fn ask(nested_users: NestedUsers, call: libc::c_long, arguments: [u32; 3]) -> u32 {
        judge(&program(nested_users, Refusals::Silent), NATIVE, number(call), arguments)
    }

    /// Also holds what is told against what is refused: it is the same, but for what programs ask for without meaning it.
    fn judged(call: libc::c_long, arguments: [u32; 3]) -> u32 {
        let silent = ask(NestedUsers::Allowed, call, arguments);
        let told = judge(&program(NestedUsers::Allowed, Refusals::Told), NATIVE, number(call), arguments);
        assert!(told == silent || (told == ASK && silent != ALLOW), "{call} {arguments:?}");
        silent
    }

    fn refused(errno: Errno) -> u32 {
        REFUSE | errno.raw_os_error() as u32
    }

    #[test]
    fn the_program_stays_small() {
        let program = program(NestedUsers::Refused, Refusals::Told);
        assert!(program.len() < 500, "{}", program.len());
    }

    #[test]
    fn every_listed_call_is_refused_and_told() {
        let told = program(NestedUsers::Allowed, Refusals::Told);
        for (call, name) in FORBIDDEN.iter().chain(FORBIDDEN_HERE) {
            assert_eq!(judged(*call, [0; 3]), refused(Errno::PERM), "{name}");
            assert_eq!(judge(&told, NATIVE, number(*call), [0; 3]), ASK, "{name}");
        }
        for call in ABSENT {
            assert_eq!(judged(*call, [0; 3]), ALLOW, "{call} is absent by the other filter");
        }
    }

    #[test]
    fn sockets_are_judged_by_family_and_protocol() {
        for call in [libc::SYS_socket, libc::SYS_socketpair] {
            for family in [libc::AF_UNIX, libc::AF_INET, libc::AF_INET6] {
                assert_eq!(judged(call, [family as u32, 1, 77]), ALLOW);
            }
            for family in [libc::AF_VSOCK, libc::AF_PACKET, libc::AF_ALG, libc::AF_KEY, libc::AF_TIPC, 0, 99] {
                assert_eq!(judged(call, [family as u32, 1, 0]), refused(Errno::AFNOSUPPORT), "{family}");
            }
            assert_eq!(judged(call, [AF_NETLINK, 3, libc::NETLINK_ROUTE as u32]), ALLOW);
            for protocol in [
                libc::NETLINK_NETFILTER,
                libc::NETLINK_GENERIC,
                libc::NETLINK_XFRM,
                libc::NETLINK_CRYPTO,
                libc::NETLINK_AUDIT,
            ] {
                assert_eq!(judged(call, [AF_NETLINK, 3, protocol as u32]), refused(Errno::PROTONOSUPPORT));
            }
        }
    }

    #[test]
    fn no_packet_filter_is_spoken_to_by_options() {
        let (ip, ip6) = (libc::SOL_IP as u32, libc::SOL_IPV6 as u32);
        for call in [libc::SYS_setsockopt, libc::SYS_getsockopt] {
            // IPT_SO_SET_REPLACE, ARPT_SO_SET_REPLACE, EBT_SO_SET_ENTRIES, IP_VS_SO_SET_ADD.
            for option in [64, 67, 96, 128, 1154, u32::MAX] {
                assert_eq!(judged(call, [3, ip, option]), refused(Errno::NOPROTOOPT), "{option}");
            }
            for option in TABLE_OPTIONS6 {
                assert_eq!(judged(call, [3, ip6, option]), refused(Errno::NOPROTOOPT), "{option}");
            }
            let usual = [
                (libc::SOL_SOCKET as u32, libc::SO_REUSEADDR),
                (libc::SOL_TCP as u32, libc::TCP_NODELAY),
                (ip, libc::IP_TOS),
                (ip, libc::IP_UNICAST_IF),
                (ip6, libc::IPV6_V6ONLY),
                (ip6, libc::IPV6_DONTFRAG),
                (ip6, libc::IPV6_RECVTCLASS),
                (ip6, libc::IPV6_TCLASS),
                (ip6, libc::IPV6_FREEBIND),
            ];
            for (level, option) in usual {
                assert_eq!(judged(call, [3, level, option as u32]), ALLOW, "{level} {option}");
            }
        }
    }

    #[test]
    fn nobody_writes_back_all_of_the_host() {
        // An error number of 0: the call is over, and has gone well.
        assert_eq!(judged(libc::SYS_sync, [0; 3]), REFUSE);
        for call in [libc::SYS_syncfs, libc::SYS_fsync, libc::SYS_fdatasync, libc::SYS_msync] {
            assert_eq!(judged(call, [3, 0, 0]), ALLOW);
        }
    }

    #[test]
    fn keyrings_can_only_be_left() {
        assert_eq!(judged(libc::SYS_keyctl, [KEYCTL_JOIN_SESSION_KEYRING, 0, 0]), ALLOW);
        assert_eq!(judged(libc::SYS_keyctl, [11, 0, 0]), refused(Errno::PERM));
    }

    #[test]
    fn limits_and_scheduling_of_aether_are_not_to_be_had() {
        for (call, name) in OF_A_PROCESS {
            for id in 1..=LAST_OF_AETHER {
                assert_eq!(judged(call, [id, 7, 1]), refused(Errno::PERM), "{name}");
            }
            for pid in [0, LAST_OF_AETHER + 1, u32::MAX] {
                assert_eq!(judged(call, [pid, 7, 1]), ALLOW, "{name}");
            }
        }
        for (which, who, verdict) in [
            (libc::PRIO_PROCESS, 1, refused(Errno::PERM)),
            (libc::PRIO_PGRP, 1, refused(Errno::PERM)),
            (libc::PRIO_USER, 0, refused(Errno::PERM)),
            (libc::PRIO_PROCESS, 0, ALLOW),
            (libc::PRIO_PGRP, 7, ALLOW),
        ] {
            assert_eq!(judged(libc::SYS_setpriority, [which, who, 5]), verdict);
            // The same kinds, counted from 1.
            assert_eq!(judged(libc::SYS_ioprio_set, [which + 1, who, 5]), verdict);
        }
    }

    #[test]
    fn only_where_they_are_refused_user_namespaces_are() {
        let users = libc::CLONE_NEWUSER as u32;
        for call in [libc::SYS_clone, libc::SYS_unshare] {
            assert_eq!(ask(NestedUsers::Allowed, call, [users, 0, 0]), ALLOW);
            assert_eq!(ask(NestedUsers::Refused, call, [users | 0x11, 0, 0]), refused(Errno::PERM));
            assert_eq!(ask(NestedUsers::Refused, call, [libc::CLONE_NEWNS as u32, users, 0]), ALLOW);
        }
        assert_eq!(ask(NestedUsers::Allowed, libc::SYS_clone3, [0; 3]), ALLOW);
        assert_eq!(ask(NestedUsers::Refused, libc::SYS_clone3, [0; 3]), refused(Errno::NOSYS));
        assert_eq!(ask(NestedUsers::Refused, libc::SYS_ioctl, [0, libc::FIONREAD as u32, 0]), ALLOW);
    }

    #[test]
    fn other_interfaces_of_the_processor_are_absent() {
        let program = program(NestedUsers::Allowed, Refusals::Told);
        assert_eq!(judge(&program, 0x4000_0003, 1, [0; 3]), refused(Errno::NOSYS));
    }
}
