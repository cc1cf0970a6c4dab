//! The system calls of a process that reads a tree and sends it: nothing can be written, made, changed or executed with them.

use crate::seccomp_program::{
    ALLOW, Instruction, JUMP_IF_ANY_BIT, JUMP_IF_EQUAL, KILL, THIRD_ARGUMENT, begin, give, jump, load, number,
    verdict_if,
};

/// A descriptor that can be written to is not to be had.
const WRITING: u32 = (libc::O_WRONLY | libc::O_RDWR | libc::O_CREAT | libc::O_TRUNC) as u32;

const ALLOWED: &[libc::c_long] = &[
    libc::SYS_read,
    libc::SYS_getdents64,
    libc::SYS_lseek,
    libc::SYS_close,
    libc::SYS_fstat,
    libc::SYS_newfstatat,
    libc::SYS_statx,
    libc::SYS_readlinkat,
    libc::SYS_flistxattr,
    libc::SYS_fgetxattr,
    libc::SYS_fcntl,
    libc::SYS_ppoll,
    libc::SYS_accept4,
    libc::SYS_setsockopt,
    libc::SYS_sendto,
    libc::SYS_write,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_clock_gettime,
    libc::SYS_rt_sigreturn,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
];

/// The whole program.
pub fn program() -> Vec<Instruction> {
    let mut program = begin(give(KILL));
    for call in ALLOWED {
        program.extend(verdict_if(number(*call), give(ALLOW)));
    }
    program.extend([
        jump(JUMP_IF_EQUAL, number(libc::SYS_openat), 1, 0),
        give(KILL),
        load(THIRD_ARGUMENT),
        jump(JUMP_IF_ANY_BIT, WRITING, 0, 1),
        give(KILL),
        give(ALLOW),
    ]);
    program
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp_program::{self, NATIVE};

    fn judge(architecture: u32, call: libc::c_long, third: u32) -> u32 {
        seccomp_program::judge(&program(), architecture, number(call), [0, 0, third])
    }

    #[test]
    fn only_reading_and_sending_is_allowed() {
        for call in ALLOWED {
            assert_eq!(judge(NATIVE, *call, 0), ALLOW, "{call}");
        }
        for call in [
            libc::SYS_execve,
            libc::SYS_mount,
            libc::SYS_unlinkat,
            libc::SYS_fsetxattr,
            libc::SYS_fchownat,
            libc::SYS_socket,
            libc::SYS_ioctl,
            libc::SYS_kill,
            libc::SYS_clone3,
            libc::SYS_ptrace,
        ] {
            assert_eq!(judge(NATIVE, call, 0), KILL, "{call}");
        }
    }

    #[test]
    fn files_are_opened_for_reading_alone() {
        let reading = (libc::O_RDONLY | libc::O_NOFOLLOW | libc::O_DIRECTORY) as u32;
        assert_eq!(judge(NATIVE, libc::SYS_openat, reading), ALLOW);
        for flags in [libc::O_WRONLY, libc::O_RDWR, libc::O_CREAT, libc::O_TRUNC] {
            assert_eq!(judge(NATIVE, libc::SYS_openat, reading | flags as u32), KILL, "{flags}");
        }
        assert_eq!(judge(0x4000_0003, libc::SYS_read, 0), KILL);
    }
}
