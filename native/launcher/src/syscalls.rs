//! The system calls that there are, by architecture: those that a sandbox has, and those that it is refused. What is in no list is new or unknown,
//! and does not exist for a sandbox: programs fall back on what they used before.

/// Not a list with commas, so that it stays one screen long.
macro_rules! calls {
    ($($name:ident)*) => { &[$(libc::$name),*] };
}

/// The same, with names: who tries them is told of.
macro_rules! named_calls {
    ($($name:ident),* $(,)?) => { &[$((libc::$name, stringify!($name))),*] };
}

/// Those of every architecture, in the order in which x86-64 got them.
pub const KNOWN: &[libc::c_long] = calls![
    SYS_read SYS_write SYS_close SYS_fstat SYS_lseek SYS_mmap SYS_mprotect SYS_munmap SYS_brk SYS_rt_sigaction
    SYS_rt_sigprocmask SYS_rt_sigreturn SYS_ioctl SYS_pread64 SYS_pwrite64 SYS_readv SYS_writev SYS_sched_yield
    SYS_mremap SYS_msync SYS_mincore SYS_madvise SYS_shmget SYS_shmat SYS_shmctl SYS_dup SYS_nanosleep SYS_getitimer
    SYS_setitimer SYS_getpid SYS_sendfile SYS_socket SYS_connect SYS_accept SYS_sendto SYS_recvfrom SYS_sendmsg
    SYS_recvmsg SYS_shutdown SYS_bind SYS_listen SYS_getsockname SYS_getpeername SYS_socketpair SYS_setsockopt
    SYS_getsockopt SYS_clone SYS_execve SYS_exit SYS_wait4 SYS_kill SYS_uname SYS_semget SYS_semop SYS_semctl
    SYS_shmdt SYS_msgget SYS_msgsnd SYS_msgrcv SYS_msgctl SYS_fcntl SYS_flock SYS_fsync SYS_fdatasync SYS_truncate
    SYS_ftruncate SYS_getcwd SYS_chdir SYS_fchdir SYS_fchmod SYS_fchown SYS_umask SYS_gettimeofday SYS_getrlimit
    SYS_getrusage SYS_sysinfo SYS_times SYS_ptrace SYS_getuid SYS_getgid SYS_setuid SYS_setgid SYS_geteuid
    SYS_getegid SYS_setpgid SYS_getppid SYS_setsid SYS_setreuid SYS_setregid SYS_getgroups SYS_setgroups
    SYS_setresuid SYS_getresuid SYS_setresgid SYS_getresgid SYS_getpgid SYS_setfsuid SYS_setfsgid SYS_getsid
    SYS_capget SYS_capset SYS_rt_sigpending SYS_rt_sigtimedwait SYS_rt_sigqueueinfo SYS_rt_sigsuspend
    SYS_sigaltstack SYS_personality SYS_statfs SYS_fstatfs SYS_getpriority SYS_setpriority SYS_sched_setparam
    SYS_sched_getparam SYS_sched_setscheduler SYS_sched_getscheduler SYS_sched_get_priority_max
    SYS_sched_get_priority_min SYS_sched_rr_get_interval SYS_mlock SYS_munlock SYS_mlockall SYS_munlockall
    SYS_pivot_root SYS_prctl SYS_setrlimit SYS_chroot SYS_sync SYS_mount SYS_umount2 SYS_sethostname
    SYS_setdomainname SYS_gettid SYS_readahead SYS_setxattr SYS_lsetxattr SYS_fsetxattr SYS_getxattr SYS_lgetxattr
    SYS_fgetxattr SYS_listxattr SYS_llistxattr SYS_flistxattr SYS_removexattr SYS_lremovexattr SYS_fremovexattr
    SYS_tkill SYS_futex SYS_sched_setaffinity SYS_sched_getaffinity SYS_io_setup SYS_io_destroy SYS_io_getevents
    SYS_io_submit SYS_io_cancel SYS_remap_file_pages SYS_getdents64 SYS_set_tid_address SYS_restart_syscall
    SYS_semtimedop SYS_fadvise64 SYS_timer_create SYS_timer_settime SYS_timer_gettime SYS_timer_getoverrun
    SYS_timer_delete SYS_clock_gettime SYS_clock_getres SYS_clock_nanosleep SYS_exit_group SYS_epoll_ctl SYS_tgkill
    SYS_mbind SYS_set_mempolicy SYS_get_mempolicy SYS_mq_open SYS_mq_unlink SYS_mq_timedsend SYS_mq_timedreceive
    SYS_mq_notify SYS_mq_getsetattr SYS_waitid SYS_keyctl SYS_ioprio_set SYS_ioprio_get SYS_inotify_add_watch
    SYS_inotify_rm_watch SYS_openat SYS_mkdirat SYS_mknodat SYS_fchownat SYS_newfstatat SYS_unlinkat SYS_renameat
    SYS_linkat SYS_symlinkat SYS_readlinkat SYS_fchmodat SYS_faccessat SYS_pselect6 SYS_ppoll SYS_unshare
    SYS_set_robust_list SYS_get_robust_list SYS_splice SYS_tee SYS_sync_file_range SYS_vmsplice SYS_utimensat
    SYS_epoll_pwait SYS_timerfd_create SYS_fallocate SYS_timerfd_settime SYS_timerfd_gettime SYS_accept4
    SYS_signalfd4 SYS_eventfd2 SYS_epoll_create1 SYS_dup3 SYS_pipe2 SYS_inotify_init1 SYS_preadv SYS_pwritev
    SYS_rt_tgsigqueueinfo SYS_recvmmsg SYS_fanotify_mark SYS_prlimit64 SYS_name_to_handle_at SYS_syncfs SYS_sendmmsg
    SYS_setns SYS_getcpu SYS_process_vm_readv SYS_process_vm_writev SYS_kcmp SYS_sched_setattr SYS_sched_getattr
    SYS_renameat2 SYS_seccomp SYS_getrandom SYS_memfd_create SYS_execveat SYS_membarrier SYS_mlock2
    SYS_copy_file_range SYS_preadv2 SYS_pwritev2 SYS_pkey_mprotect SYS_pkey_alloc SYS_pkey_free SYS_statx SYS_rseq
    SYS_pidfd_send_signal SYS_open_tree SYS_move_mount SYS_fsopen SYS_fsconfig SYS_fsmount SYS_fspick SYS_pidfd_open
    SYS_clone3 SYS_close_range SYS_openat2 SYS_pidfd_getfd SYS_faccessat2 SYS_process_madvise SYS_epoll_pwait2
    SYS_mount_setattr SYS_landlock_create_ruleset SYS_landlock_add_rule SYS_landlock_restrict_self SYS_memfd_secret
    SYS_process_mrelease SYS_futex_waitv SYS_set_mempolicy_home_node
];

/// Calls that have the same number everywhere and no name in the library yet.
pub const KNOWN_BY_NUMBER: &[libc::c_long] = &[
    451, // cachestat
    452, // fchmodat2
    453, // map_shadow_stack
    454, // futex_wake
    455, // futex_wait
    456, // futex_requeue
    457, // statmount
    458, // listmount
    459, // lsm_get_self_attr
    460, // lsm_set_self_attr
    461, // lsm_list_modules
    462, // mseal
    463, // setxattrat
    464, // getxattrat
    465, // listxattrat
    466, // removexattrat
    467, // open_tree_attr
    468, // file_getattr
    469, // file_setattr
];

#[cfg(target_arch = "x86_64")]
pub const KNOWN_HERE: &[libc::c_long] = calls![
    SYS_open SYS_stat SYS_lstat SYS_poll SYS_access SYS_pipe SYS_select SYS_dup2 SYS_pause SYS_alarm SYS_fork
    SYS_vfork SYS_getdents SYS_rename SYS_mkdir SYS_rmdir SYS_creat SYS_link SYS_unlink SYS_symlink SYS_readlink
    SYS_chmod SYS_chown SYS_lchown SYS_getpgrp SYS_utime SYS_mknod SYS_arch_prctl SYS_time SYS_set_thread_area
    SYS_get_thread_area SYS_epoll_create SYS_epoll_wait SYS_utimes SYS_inotify_init SYS_futimesat SYS_signalfd
    SYS_eventfd
];
/// Without a name in the library: io_pgetevents, and the two that probes of the host put into programs, which must not fail.
#[cfg(target_arch = "x86_64")]
pub const KNOWN_HERE_BY_NUMBER: &[libc::c_long] = &[333, 335, 336];

#[cfg(target_arch = "aarch64")]
pub const KNOWN_HERE: &[libc::c_long] = &[];
/// Without a name in the library: io_pgetevents.
#[cfg(target_arch = "aarch64")]
pub const KNOWN_HERE_BY_NUMBER: &[libc::c_long] = &[292];

/// Refused as if the kernel did not have them: programs know how to do without.
pub const ABSENT: &[libc::c_long] = calls![SYS_io_uring_setup SYS_io_uring_enter SYS_io_uring_register SYS_kexec_load];

/// Refused as not permitted, with their names.
pub const FORBIDDEN: &[(libc::c_long, &str)] = named_calls![
    // Programs in the kernel, and looking into it.
    SYS_bpf,
    SYS_perf_event_open,
    SYS_lookup_dcookie,
    SYS_syslog,
    // Faults handled by programs stretch races in the kernel.
    SYS_userfaultfd,
    // Keyrings are only partly bound to namespaces.
    SYS_add_key,
    SYS_request_key,
    // Files by handle, past every directory's permissions.
    SYS_open_by_handle_at,
    // Of the machine as a whole.
    SYS_init_module,
    SYS_finit_module,
    SYS_delete_module,
    SYS_kexec_file_load,
    SYS_reboot,
    SYS_swapon,
    SYS_swapoff,
    SYS_acct,
    SYS_quotactl,
    SYS_quotactl_fd,
    SYS_settimeofday,
    SYS_clock_settime,
    SYS_clock_adjtime,
    SYS_adjtimex,
    SYS_nfsservctl,
    SYS_vhangup,
    // Memory of other nodes and other processes' pages.
    SYS_move_pages,
    SYS_migrate_pages,
    SYS_fanotify_init,
];

#[cfg(target_arch = "x86_64")]
pub const FORBIDDEN_HERE: &[(libc::c_long, &str)] =
    named_calls![SYS_iopl, SYS_ioperm, SYS_modify_ldt, SYS_uselib, SYS_ustat, SYS_sysfs, SYS__sysctl,];
#[cfg(target_arch = "aarch64")]
pub const FORBIDDEN_HERE: &[(libc::c_long, &str)] = &[];
