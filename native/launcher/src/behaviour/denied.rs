//! What a refused call is called, and the error that it gets. Which are refused is decided by the filter ([`crate::refusals`]); here its reasons are found again.

use crate::refusals::{AF_NETLINK, OF_A_PROCESS};
use crate::request_filter::TOLD;
use crate::seccomp_program::number;
use crate::sys::Errno;
use crate::syscalls::{FORBIDDEN, FORBIDDEN_HERE};

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Denied {
    pub call: &'static str,
    pub argument: Option<String>,
    pub errno: Errno,
}

impl Denied {
    /// What the error is called.
    pub fn outcome(&self) -> &'static str {
        match self.errno {
            Errno::PERM => "EPERM",
            Errno::NOTTY => "ENOTTY",
            Errno::AFNOSUPPORT => "EAFNOSUPPORT",
            Errno::PROTONOSUPPORT => "EPROTONOSUPPORT",
            _ => "ENOSYS",
        }
    }
}

const FAMILIES: &[(u32, &str)] = &[
    (0, "AF_UNSPEC"),
    (3, "AF_AX25"),
    (4, "AF_IPX"),
    (5, "AF_APPLETALK"),
    (9, "AF_X25"),
    (15, "AF_KEY"),
    (17, "AF_PACKET"),
    (21, "AF_RDS"),
    (24, "AF_PPPOX"),
    (26, "AF_LLC"),
    (27, "AF_IB"),
    (29, "AF_CAN"),
    (30, "AF_TIPC"),
    (31, "AF_BLUETOOTH"),
    (33, "AF_RXRPC"),
    (37, "AF_CAIF"),
    (38, "AF_ALG"),
    (39, "AF_NFC"),
    (40, "AF_VSOCK"),
    (41, "AF_KCM"),
    (42, "AF_QIPCRTR"),
    (43, "AF_SMC"),
    (44, "AF_XDP"),
    (45, "AF_MCTP"),
];

const NETLINK_PROTOCOLS: &[(u32, &str)] = &[
    (5, "NETLINK_NFLOG"),
    (6, "NETLINK_XFRM"),
    (7, "NETLINK_SELINUX"),
    (8, "NETLINK_ISCSI"),
    (10, "NETLINK_FIB_LOOKUP"),
    (11, "NETLINK_CONNECTOR"),
    (12, "NETLINK_NETFILTER"),
    (16, "NETLINK_GENERIC"),
    (18, "NETLINK_SCSITRANSPORT"),
    (20, "NETLINK_RDMA"),
    (21, "NETLINK_CRYPTO"),
    (22, "NETLINK_SMC"),
];

const KEYCTL: &[(u32, &str)] = &[
    (0, "KEYCTL_GET_KEYRING_ID"),
    (2, "KEYCTL_UPDATE"),
    (3, "KEYCTL_REVOKE"),
    (4, "KEYCTL_CHOWN"),
    (5, "KEYCTL_SETPERM"),
    (6, "KEYCTL_DESCRIBE"),
    (7, "KEYCTL_CLEAR"),
    (8, "KEYCTL_LINK"),
    (9, "KEYCTL_UNLINK"),
    (10, "KEYCTL_SEARCH"),
    (11, "KEYCTL_READ"),
    (12, "KEYCTL_INSTANTIATE"),
    (15, "KEYCTL_SET_TIMEOUT"),
    (16, "KEYCTL_ASSUME_AUTHORITY"),
    (17, "KEYCTL_GET_SECURITY"),
    (18, "KEYCTL_SESSION_TO_PARENT"),
    (22, "KEYCTL_GET_PERSISTENT"),
];

fn name_of(names: &[(u32, &str)], value: u32) -> Option<String> {
    let known = names.iter().find(|(number, _)| *number == value);
    Some(known.map_or_else(|| value.to_string(), |(_, name)| (*name).to_owned()))
}

/// Of a call that the filter asks about. The kernel looks at the low halves of these arguments alone.
pub fn describe(call: u32, arguments: &[u64; 6]) -> Denied {
    let [first, second, third] = [arguments[0] as u32, arguments[1] as u32, arguments[2] as u32];
    let is = |known: libc::c_long| call == number(known);
    let denied = |call, argument, errno| Denied { call, argument, errno };
    if is(libc::SYS_ioctl) {
        return denied("ioctl", name_of(TOLD, second), Errno::NOTTY);
    }
    for (known, name) in [(libc::SYS_socket, "socket"), (libc::SYS_socketpair, "socketpair")] {
        if is(known) && first == AF_NETLINK {
            return denied(name, name_of(NETLINK_PROTOCOLS, third), Errno::PROTONOSUPPORT);
        }
        if is(known) {
            return denied(name, name_of(FAMILIES, first), Errno::AFNOSUPPORT);
        }
    }
    for (known, name) in [(libc::SYS_clone, "clone"), (libc::SYS_unshare, "unshare")] {
        if is(known) {
            return denied(name, Some("CLONE_NEWUSER".to_owned()), Errno::PERM);
        }
    }
    if is(libc::SYS_keyctl) {
        return denied("keyctl", name_of(KEYCTL, first), Errno::PERM);
    }
    for (known, name) in [(libc::SYS_setpriority, "setpriority"), (libc::SYS_ioprio_set, "ioprio_set")] {
        if is(known) {
            return denied(name, Some(second.to_string()), Errno::PERM);
        }
    }
    if let Some((_, name)) = OF_A_PROCESS.iter().find(|(known, _)| is(*known)) {
        return denied(name, Some(first.to_string()), Errno::PERM);
    }
    let forbidden = FORBIDDEN.iter().chain(FORBIDDEN_HERE).find(|(known, _)| is(*known));
    forbidden.map_or(denied("unknown", Some(call.to_string()), Errno::NOSYS), |(_, name)| {
        denied(name.strip_prefix("SYS_").unwrap_or(name), None, Errno::PERM)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::refusals::Refusals;
    use crate::sandbox_filter::{NestedUsers, program};
    use crate::seccomp_program::{ASK, NATIVE, REFUSE, judge};

    #[test]
    fn the_answer_is_what_the_filter_would_say_by_itself() {
        let told = program(NestedUsers::Refused, Refusals::Told);
        let silent = program(NestedUsers::Refused, Refusals::Silent);
        let values = |count: u32| (0..count).chain([0x1000_0011, u32::MAX]);
        let requests = TOLD.iter().map(|(request, _)| *request);
        let mut asked = 0;
        for call in 0..600 {
            let cases = values(48).flat_map(|first| values(24).map(move |third| [first, first, third]));
            for arguments in cases.chain(requests.clone().map(|request| [0, request, 0])) {
                if judge(&told, NATIVE, call, arguments) != ASK {
                    continue;
                }
                asked += 1;
                let [first, second, third] = arguments.map(u64::from);
                let denied = describe(call, &[first, second, third, 0, 0, 0]);
                let verdict = REFUSE | denied.errno.raw_os_error() as u32;
                assert_eq!(judge(&silent, NATIVE, call, arguments), verdict, "{denied:?}");
                assert_ne!(denied.call, "unknown", "{call}");
            }
        }
        assert!(asked > 10_000, "{asked}");
    }

    #[test]
    fn what_the_kernel_does_not_look_at_changes_nothing() {
        let denied = describe(number(libc::SYS_ioctl), &[0, 0xDEAD_BEEF_0000_5412, 0, 0, 0, 0]);
        assert_eq!(denied.argument.as_deref(), Some("TIOCSTI"));
        assert_eq!(describe(number(libc::SYS_socket), &[40, 0, 0, 0, 0, 0]).argument.as_deref(), Some("AF_VSOCK"));
        assert_eq!(describe(number(libc::SYS_socket), &[777, 0, 0, 0, 0, 0]).argument.as_deref(), Some("777"));
        assert_eq!(describe(number(libc::SYS_bpf), &[0; 6]).call, "bpf");
    }
}
