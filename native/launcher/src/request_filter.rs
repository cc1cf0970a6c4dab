//! Which requests (ioctl) the programs of a sandbox may make of descriptors.
//!
//! Requests are the largest and least tested part of the kernel that programs reach: exchanging extents of files under an integrity check, freezing a
//! filesystem, typing into another's terminal. What is not in the list is answered as if the descriptor did not know it (ENOTTY), which
//! programs are used to. What no program tries by mistake is told as well.

use crate::refusals::Refusals;
use crate::seccomp_program::{ALLOW, Instruction, Range, SECOND_ARGUMENT, decide, give, load, refuse};
use crate::sys::Errno;

/// Requests by their numbers, first and last, sorted. The kernel looks at the low 32 bits alone, and so does the filter.
pub const REQUESTS: &[(u32, u32)] = &[
    (0x0000_0002, 0x0000_0002), // FIGETBSZ
    // Terminals, and what every descriptor knows. Between them are typing into one (TIOCSTI, TIOCLINUX), the console, line disciplines (TIOCSETD) and
    // what serial lines alone know.
    (0x0000_5401, 0x0000_5411), // TCGETS to TIOCOUTQ
    (0x0000_5413, 0x0000_541B), // TIOCGWINSZ to FIONREAD
    (0x0000_5420, 0x0000_5422), // TIOCPKT, FIONBIO, TIOCNOTTY
    (0x0000_5424, 0x0000_5429), // TIOCGETD to TIOCGSID
    (0x0000_5440, 0x0000_5441), // TIOCGPTPEER
    (0x0000_5450, 0x0000_5452), // FIONCLEX, FIOCLEX, FIOASYNC
    (0x0000_5456, 0x0000_5456), // TIOCGLCKTRMIOS
    (0x0000_5460, 0x0000_5460), // FIOQSIZE
    // Sockets: owners, marks, routes, addresses, devices; not bridges, bonds, VLANs and what drivers have of their own.
    (0x0000_8901, 0x0000_893F),
    (0x0000_8942, 0x0000_897F),
    (0x0000_B701, 0x0000_B704), // NS_GET_USERNS to NS_GET_OWNER_UID
    (0x0000_FF01, 0x0000_FF0A), // PIDFD_GET_*_NAMESPACE
    // Terminals.
    (0x4004_5431, 0x4004_5431), // TIOCSPTLCK
    (0x4004_5436, 0x4004_5436), // TIOCSIG
    (0x4004_9409, 0x4004_9409), // FICLONE
    (0x4008_5400, 0x4008_5400), // TFD_IOC_SET_TICKS
    (0x4008_6602, 0x4008_6602), // FS_IOC_SETFLAGS
    (0x401C_5820, 0x401C_5820), // FS_IOC_FSSETXATTR
    (0x4020_940D, 0x4020_940D), // FICLONERANGE
    (0x402C_542B, 0x402C_542D), // TCSETS2 and its like
    (0x8004_5200, 0x8004_5200), // RNDGETENTCNT
    (0x8004_5430, 0x8004_5430), // TIOCGPTN
    (0x8004_5432, 0x8004_5432), // TIOCGDEV
    (0x8004_5438, 0x8004_5440), // TIOCGPKT, TIOCGPTLCK, TIOCGEXCL
    (0x8004_B706, 0x8004_B709), // NS_GET_PID_FROM_PIDNS and its like
    (0x8004_E500, 0x8004_E500), // FUSE_DEV_IOC_CLONE
    (0x8008_6601, 0x8008_6601), // FS_IOC_GETFLAGS
    (0x8008_7601, 0x8008_7601), // FS_IOC_GETVERSION
    (0x8008_B705, 0x8008_B705), // NS_GET_MNTNS_ID
    (0x8010_8906, 0x8010_8907), // SIOCGSTAMP, SIOCGSTAMPNS
    (0x801C_581F, 0x801C_581F), // FS_IOC_FSGETXATTR
    (0x802C_542A, 0x802C_542A), // TCGETS2
    (0xC020_660B, 0xC020_660B), // FS_IOC_FIEMAP
    (0xC040_FF0B, 0xC040_FF0B), // PIDFD_GET_INFO
];

/// Those not allowed that are events of the sandbox, by number, sorted. The descriptor is not looked at: whoever asks a terminal to freeze a filesystem
/// is told of as well.
pub const TOLD: &[(u32, &str)] = &[
    (0x0000_5412, "TIOCSTI"),
    (0x0000_541C, "TIOCLINUX"),
    (0x0000_541D, "TIOCCONS"),
    (0x0000_5423, "TIOCSETD"),
    (0x0000_6611, "EXT4_IOC_SWAP_BOOT"),
    (0x4028_5881, "XFS_IOC_EXCHANGE_RANGE"),
    (0x4038_586B, "XFS_IOC_OPEN_BY_HANDLE"),
    (0x4058_5883, "XFS_IOC_COMMIT_RANGE"),
    (0x5000_9401, "BTRFS_IOC_SNAP_CREATE"),
    (0x8004_587D, "XFS_IOC_GOINGDOWN"),
    (0x8058_5882, "XFS_IOC_START_COMMIT"),
    (0xC004_5877, "FIFREEZE"),
    (0xC004_5878, "FITHAW"),
    (0xC018_5879, "FITRIM"),
    (0xC018_9436, "FIDEDUPERANGE"),
    (0xC028_660F, "EXT4_IOC_MOVE_EXT"),
    (0xC0C0_586D, "XFS_IOC_SWAPEXT"),
    (0xC0C8_9425, "BTRFS_IOC_SET_RECEIVED_SUBVOL"),
    (0xD000_9411, "BTRFS_IOC_TREE_SEARCH"),
];

/// What is looked at in an ioctl.
pub fn check(refusals: Refusals) -> Vec<Instruction> {
    let allowed = REQUESTS.iter().map(|&(first, last)| Range { first, last, then: vec![give(ALLOW)] });
    let told = TOLD.iter().map(|&(request, _)| Range {
        first: request,
        last: request,
        then: vec![refusals.verdict(Errno::NOTTY)],
    });
    let mut ranges: Vec<Range> = allowed.chain(told).collect();
    ranges.sort_by_key(|range| range.first);
    let mut check = vec![load(SECOND_ARGUMENT)];
    check.extend(decide(ranges, refuse(Errno::NOTTY)));
    check
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_program::{ASK, NATIVE, REFUSE, judge};

    fn request(request: u32) -> u32 {
        judge(&check(Refusals::Silent), NATIVE, 0, [0, request, 0])
    }

    const UNKNOWN: u32 = REFUSE | libc::ENOTTY as u32;

    #[test]
    fn the_list_is_sorted_and_nothing_is_in_it_twice() {
        assert!(REQUESTS.iter().all(|(first, last)| first <= last));
        assert!(REQUESTS.windows(2).all(|pair| pair[0].1 < pair[1].0));
        assert!(TOLD.windows(2).all(|pair| pair[0].0 < pair[1].0));
        let is_allowed = |told: u32| REQUESTS.iter().any(|(first, last)| (*first..=*last).contains(&told));
        assert!(TOLD.iter().all(|(told, _)| !is_allowed(*told)));
    }

    #[test]
    fn requests_of_usual_programs_pass() {
        for usual in [
            libc::TCGETS,
            libc::TCSETSW,
            libc::TIOCSCTTY,
            libc::TIOCGPGRP,
            libc::TIOCSPGRP,
            libc::TIOCGWINSZ,
            libc::TIOCSWINSZ,
            libc::FIONREAD,
            libc::FIONBIO,
            libc::FIOCLEX,
            libc::TIOCGPTN,
            libc::TIOCSPTLCK,
            libc::TIOCGPTPEER,
            libc::SIOCGIFCONF,
            libc::SIOCGIFFLAGS,
            libc::SIOCETHTOOL,
            libc::FICLONE,
            libc::FICLONERANGE,
            libc::FS_IOC_GETFLAGS,
            libc::FS_IOC_SETFLAGS,
        ] {
            assert_eq!(request(usual as u32), ALLOW, "{usual:#x}");
        }
    }

    #[test]
    fn requests_that_administer_or_deceive_are_unknown() {
        for (name, number) in [
            ("XFS_IOC_SWAPEXT", 0xC0C0_586D),
            ("XFS_IOC_EXCHANGE_RANGE", 0x4028_5881),
            ("XFS_IOC_START_COMMIT", 0x8058_5882),
            ("XFS_IOC_COMMIT_RANGE", 0x4058_5883),
            ("XFS_IOC_GOINGDOWN", 0x8004_587D),
            ("XFS_IOC_OPEN_BY_HANDLE", 0x4038_586B),
            ("FIDEDUPERANGE", 0xC018_9436),
            ("EXT4_IOC_MOVE_EXT", 0xC028_660F),
            ("EXT4_IOC_RESIZE_FS", 0x4008_6610),
            ("EXT4_IOC_SWAP_BOOT", 0x0000_6611),
            ("EXT4_IOC_CHECKPOINT", 0x4004_662B),
            ("BTRFS_IOC_SNAP_CREATE", 0x5000_9401),
            ("BTRFS_IOC_DEFRAG", 0x5000_9402),
            ("BTRFS_IOC_TREE_SEARCH", 0xD000_9411),
            ("BTRFS_IOC_DEV_INFO", 0xD000_941E),
            ("BTRFS_IOC_SET_RECEIVED_SUBVOL", 0xC0C8_9425),
            ("FIBMAP", 0x0000_0001),
            ("FIFREEZE", 0xC004_5877),
            ("FITHAW", 0xC004_5878),
            ("FITRIM", 0xC018_5879),
            ("TIOCSTI", 0x5412),
            ("TIOCLINUX", 0x541C),
            ("TIOCCONS", 0x541D),
            ("TIOCSETD", 0x5423),
            ("TIOCVHANGUP", 0x5437),
            ("KDSETMODE", 0x4B3A),
            ("VT_ACTIVATE", 0x5606),
            ("BLKRRPART", 0x125F),
            ("BLKDISCARD", 0x1277),
            ("LOOP_CTL_GET_FREE", 0x4C82),
            ("SG_IO", 0x2285),
            ("SIOCBRADDBR", 0x89A0),
            ("SIOCSIFBR", 0x8941),
            ("TUNSETIFF", 0x4004_54CA),
            ("KVM_CREATE_VM", 0xAE01),
            ("UFFDIO_API", 0xC018_AA3F),
            ("PERF_EVENT_IOC_ENABLE", 0x2400),
            ("FS_IOC_ENABLE_VERITY", 0x4080_6685),
            ("FS_IOC_ADD_ENCRYPTION_KEY", 0xC050_6617),
        ] {
            assert_eq!(request(number), UNKNOWN, "{name}");
            let is_told = TOLD.contains(&(number, name));
            let verdict = judge(&check(Refusals::Told), NATIVE, 0, [0, number, 0]);
            assert_eq!(verdict, if is_told { ASK } else { UNKNOWN }, "{name}");
        }
    }
}
