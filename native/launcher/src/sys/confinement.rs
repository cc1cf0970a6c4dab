//! Installs a filter of system calls. Whether the kernel offers such filters, Landlock and virtual machines.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::{Result, check};

const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = 2;
const SECCOMP_RET_ERRNO: u32 = 0x0005_0000;
const LANDLOCK_CREATE_RULESET_VERSION: libc::c_ulong = 1;

const KVM_CREATE_VM: libc::c_ulong = 0xAE01;

/// Makes a virtual machine and throws it away.
pub fn create_virtual_machine(kvm: impl AsFd) -> Result<()> {
    // SAFETY: no memory is passed; the new descriptor is nobody else's.
    unsafe {
        let fd = check(libc::ioctl(kvm.as_fd().as_raw_fd(), KVM_CREATE_VM, 0).into())?;
        drop(OwnedFd::from_raw_fd(fd as i32));
    }
    Ok(())
}

const SECCOMP_SET_MODE_FILTER: libc::c_ulong = 1;
/// No slower memory accesses for the sake of the filter: each sandbox is one trust domain.
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: libc::c_ulong = 4;

/// Puts this process and all that it will ever start under a filter, for good. Needs CAP_SYS_ADMIN.
pub fn filter_system_calls(program: &[libc::sock_filter]) -> Result<()> {
    let length = u16::try_from(program.len()).map_err(|_| super::Errno::TOOBIG)?;
    // The kernel reads it only.
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the structure points to as many instructions as it says, and both outlive the call.
    check(unsafe {
        libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, SECCOMP_FILTER_FLAG_SPEC_ALLOW, &raw const program)
    })?;
    Ok(())
}

/// Asks for the action that filters here use.
pub fn seccomp_filters_work() -> Result<()> {
    let action = SECCOMP_RET_ERRNO;
    // SAFETY: the kernel reads one u32.
    check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action) })?;
    Ok(())
}

pub fn landlock_abi() -> Result<u32> {
    // SAFETY: with this flag the first two arguments are null and zero.
    let abi = check(unsafe {
        libc::syscall(libc::SYS_landlock_create_ruleset, std::ptr::null::<u8>(), 0, LANDLOCK_CREATE_RULESET_VERSION)
    })?;
    Ok(abi as u32)
}
