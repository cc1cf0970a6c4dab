//! Which system calls there are for the launcher and all that it starts: it lives under this filter itself, so that no create pays for one of its own.
//! (What needs more, such as making an uplink's filter, belongs into the helper, which is started before.)
//!
//! Root of a sandbox is an ordinary user of the host, and most of what is dangerous is refused to it anyway. The filter takes away what the kernel
//! offers to ordinary users, and to root of a nested user namespace. What has been a way out of containers again and again exists, and is refused by the
//! sandbox's own filter ([`crate::sandbox_filter`]): an error given here would go before the question that one asks.

use crate::seccomp_program::{ALLOW, Instruction, Range, begin, decide, give, number, refuse};
use crate::sys::Errno;
use crate::syscalls::{FORBIDDEN, FORBIDDEN_HERE, KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER};

/// The whole program.
pub fn program() -> Vec<Instruction> {
    let mut calls = [KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER].concat();
    calls.extend(FORBIDDEN.iter().chain(FORBIDDEN_HERE).map(|(call, _)| *call));
    let mut calls: Vec<u32> = calls.into_iter().map(number).collect();
    calls.sort_unstable();
    let ranges = calls.into_iter().map(|call| Range { first: call, last: call, then: vec![give(ALLOW)] }).collect();
    let mut program = begin(refuse(Errno::NOSYS));
    program.extend(decide(ranges, refuse(Errno::NOSYS)));
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_program::{self, NATIVE, REFUSE};
    use crate::syscalls::ABSENT;

    const ABSENT_VERDICT: u32 = REFUSE | libc::ENOSYS as u32;

    fn judge(architecture: u32, call: u32) -> u32 {
        seccomp_program::judge(&program(), architecture, call, [0; 3])
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
            assert_eq!(judge(NATIVE, number(call)), ALLOW, "{call}");
        }
    }

    #[test]
    fn calls_that_nobody_knows_do_not_exist() {
        for call in [470, 500, 9_999, 0x3FFF_FFFF, u32::MAX] {
            assert_eq!(judge(NATIVE, call), ABSENT_VERDICT, "{call}");
        }
        for call in ABSENT {
            assert_eq!(judge(NATIVE, number(*call)), ABSENT_VERDICT, "{call}");
        }
    }

    #[test]
    fn no_call_is_in_two_lists() {
        let mut calls = [KNOWN, KNOWN_BY_NUMBER, KNOWN_HERE, KNOWN_HERE_BY_NUMBER, ABSENT].concat();
        calls.extend(FORBIDDEN.iter().chain(FORBIDDEN_HERE).map(|(call, _)| *call));
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
    fn other_interfaces_of_the_processor_are_absent() {
        assert_eq!(judge(0x4000_0003, 1), ABSENT_VERDICT);
        #[cfg(target_arch = "x86_64")]
        assert_eq!(judge(NATIVE, 0x4000_0001), ABSENT_VERDICT);
    }
}
