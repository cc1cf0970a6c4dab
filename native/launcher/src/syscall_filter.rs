//! Which system calls a sandbox has. The launcher lives under the same filter: its children inherit it, so that no create pays for one of its own.
//! (What needs more, such as making an uplink's filter, belongs into the helper, which is started before.)
//!
//! Root of a sandbox is an ordinary user of the host, and most of what is dangerous is refused to it anyway. The filter takes away what the kernel
//! offers to ordinary users, and to root of a nested user namespace, and what has been a way out of containers again and again.

use crate::seccomp_program::{
    ALLOW, FIRST_ARGUMENT, Instruction, JUMP_IF_AT_LEAST, JUMP_IF_EQUAL, REFUSE, SECOND_ARGUMENT, THIRD_ARGUMENT,
    begin, give, jump, load, number, verdict_if,
};
use crate::sys::Errno;

/// On x86-64, numbers from here on are of the x32 interface.
const X32: u32 = 0x4000_0000;

const AF_NETLINK: u32 = libc::AF_NETLINK as u32;
/// What programs talk. Others have no place in a sandbox; AF_VSOCK, which knows no namespaces, would reach the hypervisor of the node.
const FAMILIES: [u32; 4] = [libc::AF_UNIX as u32, libc::AF_INET as u32, libc::AF_INET6 as u32, AF_NETLINK];
/// Addresses and routes, socket statistics, device events. Not packet filters and the like, which root of a nested network namespace could use.
const NETLINK_PROTOCOLS: [u32; 3] =
    [libc::NETLINK_ROUTE as u32, libc::NETLINK_SOCK_DIAG as u32, libc::NETLINK_KOBJECT_UEVENT as u32];

/// What aether is in every sandbox. (In a pid namespace inside, it is that one's first process.)
const PID_1: u32 = 1;

/// Limits and scheduling of the process that the first argument names. Root of the sandbox has aether's user: without descriptors, memory or time
/// aether would break, which looks like a fault of the platform, or starve, and no timeout of a command would come. A process names itself by 0.
const OF_A_PROCESS: [libc::c_long; 5] = [
    libc::SYS_prlimit64,
    libc::SYS_sched_setaffinity,
    libc::SYS_sched_setattr,
    libc::SYS_sched_setparam,
    libc::SYS_sched_setscheduler,
];

/// The one keyctl that the launcher itself needs, to give a sandbox its own session keyring.
const KEYCTL_JOIN_SESSION_KEYRING: u32 = 1;

/// Refused as if the kernel did not have them: programs know how to do without.
const ABSENT: [libc::c_long; 4] =
    [libc::SYS_io_uring_setup, libc::SYS_io_uring_enter, libc::SYS_io_uring_register, libc::SYS_kexec_load];

/// Refused as not permitted.
const FORBIDDEN: &[libc::c_long] = &[
    // Programs in the kernel, and looking into it.
    libc::SYS_bpf,
    libc::SYS_perf_event_open,
    libc::SYS_lookup_dcookie,
    libc::SYS_syslog,
    // Faults handled by programs stretch races in the kernel.
    libc::SYS_userfaultfd,
    // Keyrings are only partly bound to namespaces.
    libc::SYS_add_key,
    libc::SYS_request_key,
    // Files by handle, past every directory's permissions.
    libc::SYS_open_by_handle_at,
    // Of the machine as a whole.
    libc::SYS_init_module,
    libc::SYS_finit_module,
    libc::SYS_delete_module,
    libc::SYS_kexec_file_load,
    libc::SYS_reboot,
    libc::SYS_swapon,
    libc::SYS_swapoff,
    libc::SYS_acct,
    libc::SYS_quotactl,
    libc::SYS_quotactl_fd,
    libc::SYS_settimeofday,
    libc::SYS_clock_settime,
    libc::SYS_clock_adjtime,
    libc::SYS_adjtimex,
    libc::SYS_nfsservctl,
    libc::SYS_vhangup,
    // Memory of other nodes and other processes' pages.
    libc::SYS_move_pages,
    libc::SYS_migrate_pages,
    libc::SYS_fanotify_init,
];

#[cfg(target_arch = "x86_64")]
const FORBIDDEN_HERE: &[libc::c_long] = &[
    libc::SYS_iopl,
    libc::SYS_ioperm,
    libc::SYS_modify_ldt,
    libc::SYS_uselib,
    libc::SYS_ustat,
    libc::SYS_sysfs,
    libc::SYS__sysctl,
];
#[cfg(target_arch = "aarch64")]
const FORBIDDEN_HERE: &[libc::c_long] = &[];

fn refuse(errno: Errno) -> Instruction {
    give(REFUSE | (errno.raw_os_error() as u32 & 0xFFFF))
}

/// The whole program.
pub fn program() -> Vec<Instruction> {
    let mut program = begin(refuse(Errno::NOSYS));
    program.extend([jump(JUMP_IF_AT_LEAST, X32, 0, 1), refuse(Errno::NOSYS)]);
    for call in ABSENT {
        program.extend(verdict_if(number(call), refuse(Errno::NOSYS)));
    }
    for call in FORBIDDEN.iter().chain(FORBIDDEN_HERE) {
        program.extend(verdict_if(number(*call), refuse(Errno::PERM)));
    }
    let of_a_process = OF_A_PROCESS.map(|call| (call, process_check(FIRST_ARGUMENT)));
    let others = [
        (libc::SYS_socket, socket_check()),
        (libc::SYS_socketpair, socket_check()),
        (libc::SYS_keyctl, keyctl_check()),
        (libc::SYS_setpriority, priority_check()),
    ];
    for (call, check) in others.into_iter().chain(of_a_process) {
        let length = u8::try_from(check.len()).unwrap_or(u8::MAX);
        program.push(jump(JUMP_IF_EQUAL, number(call), 0, length));
        program.extend(check);
    }
    program.push(give(ALLOW));
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
    let mut check = vec![load(argument)];
    check.extend(verdict_if(PID_1, refuse(Errno::PERM)));
    check.push(give(ALLOW));
    check
}

/// Also not by all processes of a user. (aether leads its process group, which has its number.)
fn priority_check() -> Vec<Instruction> {
    let mut check = vec![load(FIRST_ARGUMENT)];
    check.extend(verdict_if(libc::PRIO_USER, refuse(Errno::PERM)));
    check.extend(process_check(SECOND_ARGUMENT));
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_program::{self, NATIVE};

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
            9_999,
        ] {
            assert_eq!(judge(NATIVE, number(call), [0; 3]), ALLOW, "{call}");
        }
    }

    #[test]
    fn every_listed_call_is_refused() {
        for call in ABSENT {
            assert_eq!(judge(NATIVE, number(call), [0; 3]), refused(Errno::NOSYS), "{call}");
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
    fn limits_and_scheduling_of_pid_1_are_not_to_be_had() {
        for call in OF_A_PROCESS.map(number) {
            assert_eq!(judge(NATIVE, call, [1, 7, 1]), refused(Errno::PERM), "{call}");
            for pid in [0, 2, u32::MAX] {
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
        }
    }

    #[test]
    fn other_interfaces_of_the_processor_are_absent() {
        assert_eq!(judge(0x4000_0003, 1, [0; 3]), refused(Errno::NOSYS));
        #[cfg(target_arch = "x86_64")]
        assert_eq!(judge(NATIVE, X32 | 1, [0; 3]), refused(Errno::NOSYS));
    }
}
