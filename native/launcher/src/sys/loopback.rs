//! The loopback device of a network namespace.

use rustix::net::{AddressFamily, SocketFlags, SocketType, socket_with};

use super::Result;

/// Sets the loopback device of this network namespace up.
pub fn raise() -> Result<()> {
    let socket = socket_with(AddressFamily::INET, SocketType::DGRAM, SocketFlags::CLOEXEC, None)?;
    // SAFETY: zeroes are a valid request; the name is shorter than its field.
    let mut request: libc::ifreq = unsafe { std::mem::zeroed() };
    for (to, from) in request.ifr_name.iter_mut().zip(b"lo") {
        *to = *from as libc::c_char;
    }
    request.ifr_ifru.ifru_flags = (libc::IFF_UP | libc::IFF_RUNNING) as libc::c_short;
    // SAFETY: the request is a structure of the kind that this ioctl reads.
    let returned =
        unsafe { libc::ioctl(std::os::fd::AsRawFd::as_raw_fd(&socket), libc::SIOCSIFFLAGS as _, &raw const request) };
    super::check(returned.into())?;
    Ok(())
}
