//! Calls that a filter asks about (seccomp_unotify(2)): who holds its listener takes one after another, and answers. The caller waits meanwhile.

use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};

use super::{Errno, Result, check};

const SECCOMP_SET_MODE_FILTER: libc::c_ulong = 1;
const SECCOMP_GET_ACTION_AVAIL: libc::c_ulong = 2;
const SECCOMP_GET_NOTIF_SIZES: libc::c_ulong = 3;
const SECCOMP_RET_USER_NOTIF: u32 = 0x7FC0_0000;
const SECCOMP_FILTER_FLAG_SPEC_ALLOW: libc::c_ulong = 1 << 2;
const SECCOMP_FILTER_FLAG_NEW_LISTENER: libc::c_ulong = 1 << 3;
/// Once a call was taken, only what is deadly ends its wait: other signals would have it be made, and told, again and again.
const SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV: libc::c_ulong = 1 << 5;
const FLAGS: libc::c_ulong =
    SECCOMP_FILTER_FLAG_SPEC_ALLOW | SECCOMP_FILTER_FLAG_NEW_LISTENER | SECCOMP_FILTER_FLAG_WAIT_KILLABLE_RECV;

const RECEIVE: libc::c_ulong = 0xC050_2100;
const SEND: libc::c_ulong = 0xC018_2101;
const ID_VALID: libc::c_ulong = 0x4008_2102;

/// What a listener is called below /proc/PID/fd.
pub const NAME: &[u8] = b"anon_inode:seccomp notify";

/// `struct seccomp_notif` of linux/seccomp.h, with `struct seccomp_data` in it.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Notification {
    /// No two calls of one filter have the same.
    pub id: u64,
    /// The thread, in the pid namespace of whoever takes it.
    pub pid: u32,
    flags: u32,
    pub call: u32,
    architecture: u32,
    instruction: u64,
    pub arguments: [u64; 6],
}

/// `struct seccomp_notif_resp`.
#[repr(C)]
struct Response {
    id: u64,
    value: i64,
    error: i32,
    flags: u32,
}

/// Whether the kernel has all of it, in the form that is known here.
pub fn is_available() -> bool {
    let action = SECCOMP_RET_USER_NOTIF;
    let mut sizes = [0u16; 3];
    // SAFETY: the kernel reads one u32, and writes three u16.
    let asked = unsafe {
        check(libc::syscall(libc::SYS_seccomp, SECCOMP_GET_ACTION_AVAIL, 0, &raw const action))
            .and_then(|_| check(libc::syscall(libc::SYS_seccomp, SECCOMP_GET_NOTIF_SIZES, 0, sizes.as_mut_ptr())))
    };
    let [notification, response, _] = sizes.map(usize::from);
    // Flags are looked at before the filter, which is none here: a kernel that knows them says EFAULT.
    let none = std::ptr::null::<libc::sock_fprog>();
    // SAFETY: nothing is read at null.
    let flags = check(unsafe { libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, FLAGS, none) });
    asked.is_ok()
        && (notification, response) == (size_of::<Notification>(), size_of::<Response>())
        && flags == Err(Errno::FAULT)
}

/// Puts this process and all that it will ever start under a filter, for good, and returns its listener. Needs CAP_SYS_ADMIN.
pub fn filter_system_calls(program: &[libc::sock_filter]) -> Result<OwnedFd> {
    let length = u16::try_from(program.len()).map_err(|_| Errno::TOOBIG)?;
    // The kernel reads it only.
    let program = libc::sock_fprog { len: length, filter: program.as_ptr().cast_mut() };
    // SAFETY: the structure points to as many instructions as it says, and both outlive the call; the new descriptor is nobody else's.
    unsafe {
        let fd = check(libc::syscall(libc::SYS_seccomp, SECCOMP_SET_MODE_FILTER, FLAGS, &raw const program))?;
        Ok(OwnedFd::from_raw_fd(fd as i32))
    }
}

/// Takes one call, into memory that may outlive this process. `ENOENT`: it was given up meanwhile.
pub fn receive(listener: impl AsFd, into: &mut Notification) -> Result<()> {
    *into = Notification::default();
    // SAFETY: the structure has the size that the request says.
    check(unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), RECEIVE, &raw mut *into) }.into())?;
    Ok(())
}

/// Refuses a call that was taken. `ENOENT`: nobody waits for it any more.
pub fn refuse(listener: impl AsFd, id: u64, errno: Errno) -> Result<()> {
    let mut response = Response { id, value: 0, error: -errno.raw_os_error(), flags: 0 };
    // SAFETY: the structure has the size that the request says.
    check(unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), SEND, &raw mut response) }.into())?;
    Ok(())
}

/// Whether its thread still waits: what was read of it until now was its own.
pub fn is_valid(listener: impl AsFd, id: u64) -> bool {
    // SAFETY: the kernel reads one u64.
    check(unsafe { libc::ioctl(listener.as_fd().as_raw_fd(), ID_VALID, &raw const id) }.into()).is_ok()
}

/// A call that is being answered, of the sandbox in a slot: noted where it outlives whoever answers, so that a caller is not left waiting for somebody who
/// was killed between taking and answering. The kernel writes it there itself.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct Pending {
    pub slot: u32,
    pub notification: Notification,
}

// SAFETY: both are of numbers alone.
unsafe impl super::shared_page::Plain for Pending {}
