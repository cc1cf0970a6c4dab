//! What the gate gives up before it reads a byte of a sandbox: user, capabilities, and all system calls but those that carry bytes between sockets.

use daemon::failure::errno_name;
use launcher::seccomp_program::{
    ALLOW, FIRST_ARGUMENT, Instruction, JUMP_IF_EQUAL, KILL, SECOND_ARGUMENT, THIRD_ARGUMENT, begin, give, jump, load,
    number, verdict_if,
};
use launcher::sys::confinement::filter_system_calls;
use rustix::process::{DumpableBehavior, Gid, Uid, set_dumpable_behavior};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, clear_ambient_capability_set, set_capabilities, set_name,
    set_no_new_privs, set_thread_groups, set_thread_res_gid, set_thread_res_uid,
};

use crate::options::Options;
use crate::{Errno, Result};

const ALLOWED: &[libc::c_long] = &[
    libc::SYS_accept4,
    libc::SYS_connect,
    libc::SYS_getsockname,
    libc::SYS_getpeername,
    libc::SYS_getsockopt,
    libc::SYS_setsockopt,
    libc::SYS_shutdown,
    libc::SYS_recvfrom,
    libc::SYS_sendto,
    libc::SYS_splice,
    libc::SYS_read,
    libc::SYS_write,
    libc::SYS_close,
    libc::SYS_fcntl,
    libc::SYS_pipe2,
    libc::SYS_ppoll,
    libc::SYS_epoll_create1,
    libc::SYS_epoll_ctl,
    libc::SYS_epoll_pwait,
    libc::SYS_epoll_pwait2,
    libc::SYS_brk,
    libc::SYS_mmap,
    libc::SYS_munmap,
    libc::SYS_mremap,
    libc::SYS_madvise,
    libc::SYS_futex,
    libc::SYS_getrandom,
    libc::SYS_clock_gettime,
    libc::SYS_rt_sigreturn,
    libc::SYS_restart_syscall,
    libc::SYS_exit_group,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_poll,
    #[cfg(target_arch = "x86_64")]
    libc::SYS_epoll_wait,
];

/// Sockets of no other family are to be had: without them there is nobody to connect to but on the network.
const FAMILIES: [libc::c_int; 2] = [libc::AF_INET, libc::AF_INET6];
/// With flags above its low bits.
const STREAM: u32 = (libc::SOCK_STREAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK) as u32;

/// The program that judges system calls: any other ends the process.
fn program() -> Vec<Instruction> {
    let mut program = begin(give(KILL));
    for call in ALLOWED {
        program.extend(verdict_if(number(*call), give(ALLOW)));
    }
    program.extend([
        jump(JUMP_IF_EQUAL, number(libc::SYS_socket), 1, 0),
        give(KILL),
        load(SECOND_ARGUMENT),
        jump(JUMP_IF_EQUAL, STREAM, 1, 0),
        give(KILL),
        // No protocol but the usual one: others have stream sockets too.
        load(THIRD_ARGUMENT),
        jump(JUMP_IF_EQUAL, 0, 1, 0),
        give(KILL),
        load(FIRST_ARGUMENT),
    ]);
    for family in FAMILIES {
        program.extend(verdict_if(family as u32, give(ALLOW)));
    }
    program.push(give(KILL));
    program
}

/// Gives up everything, for good. The process has one thread.
pub fn confine(options: Options) -> std::result::Result<(), String> {
    // It is started by a descriptor, whose number would be its name.
    let _ = set_name(c"gate");
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    // Others of the same user cannot look into it.
    set_dumpable_behavior(DumpableBehavior::NotDumpable).map_err(failed("dumpable"))?;
    become_user(options).map_err(failed("user"))?;
    give_up_capabilities().map_err(failed("capabilities"))?;
    set_no_new_privs(true).map_err(failed("no new privileges"))?;
    filter_system_calls(&program()).map_err(failed("system call filter"))
}

fn become_user(options: Options) -> Result<()> {
    let (uid, gid) = (Uid::from_raw(options.uid), Gid::from_raw(options.gid));
    if rustix::process::geteuid().is_root() {
        set_thread_groups(&[])?;
        set_thread_res_gid(gid, gid, gid)?;
        set_thread_res_uid(uid, uid, uid)?;
    }
    let is_uid = rustix::process::geteuid() == uid && rustix::process::getuid() == uid;
    let is_gid = rustix::process::getegid() == gid && rustix::process::getgid() == gid;
    if is_uid && is_gid { Ok(()) } else { Err(Errno::PERM) }
}

fn give_up_capabilities() -> Result<()> {
    let none = CapabilitySet::empty();
    clear_ambient_capability_set()?;
    set_capabilities(None, CapabilitySets { effective: none, permitted: none, inheritable: none })?;
    let left = capabilities(None)?;
    if (left.effective | left.permitted | left.inheritable).is_empty() { Ok(()) } else { Err(Errno::PERM) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// How a process under the filter ends that makes one call: the kernel's word for it.
    fn end_of(call: libc::c_long, arguments: [libc::c_int; 3]) -> Option<i32> {
        let program = program();
        // SAFETY: the child makes system calls alone, and ends.
        let child = unsafe { libc::fork() };
        if child == 0 {
            let is_filtered = set_no_new_privs(true).is_ok() && filter_system_calls(&program).is_ok();
            // SAFETY: the calls that are tried here touch no memory.
            unsafe {
                libc::syscall(call, arguments[0], arguments[1], arguments[2]);
                libc::syscall(libc::SYS_exit_group, libc::c_long::from(!is_filtered));
            }
        }
        assert!(child > 0, "no process to try it in");
        let mut status = 0;
        // SAFETY: the kernel fills one integer.
        assert_eq!(unsafe { libc::waitpid(child, &raw mut status, 0) }, child);
        assert!(!libc::WIFEXITED(status) || libc::WEXITSTATUS(status) == 0, "the filter was not installed");
        libc::WIFSIGNALED(status).then(|| libc::WTERMSIG(status))
    }

    #[test]
    fn only_what_carries_bytes_is_allowed() {
        for call in [libc::SYS_shutdown, libc::SYS_close, libc::SYS_splice, libc::SYS_recvfrom] {
            assert_eq!(end_of(call, [-1; 3]), None, "{call}");
        }
        for call in [
            libc::SYS_openat,
            libc::SYS_execve,
            libc::SYS_clone3,
            libc::SYS_kill,
            libc::SYS_bind,
            libc::SYS_ioctl,
            libc::SYS_ptrace,
            libc::SYS_mprotect,
            libc::SYS_sendmsg,
            libc::SYS_setresuid,
        ] {
            assert_eq!(end_of(call, [0; 3]), Some(libc::SIGSYS), "{call}");
        }
    }

    #[test]
    fn only_tcp_sockets_are_made() {
        let socket = |family, kind, protocol| {
            end_of(libc::SYS_socket, [family, kind | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK, protocol])
        };
        assert_eq!(socket(libc::AF_INET, libc::SOCK_STREAM, 0), None);
        assert_eq!(socket(libc::AF_INET6, libc::SOCK_STREAM, 0), None);
        for (family, kind, protocol) in [
            (libc::AF_UNIX, libc::SOCK_STREAM, 0),
            (libc::AF_INET, libc::SOCK_RAW, 1),
            (libc::AF_INET, libc::SOCK_DGRAM, 0),
            (libc::AF_INET, libc::SOCK_STREAM, libc::IPPROTO_MPTCP),
            (libc::AF_NETLINK, libc::SOCK_RAW, 0),
            (libc::AF_VSOCK, libc::SOCK_STREAM, 0),
        ] {
            assert_eq!(socket(family, kind, protocol), Some(libc::SIGSYS), "{family} {kind} {protocol}");
        }
    }
}
