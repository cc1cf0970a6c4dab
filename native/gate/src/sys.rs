//! What the gate is given by who starts it. Everything unsafe of the gate is here.

use std::os::fd::{FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};

/// Where the descriptors stand that the gate begins with: a transparent TCP listener for IPv4, one for IPv6 (which may be missing), and the listener of
/// its control socket.
pub const LISTENER_V4: RawFd = 3;
pub const LISTENER_V6: RawFd = 4;
pub const CONTROL: RawFd = 5;

pub struct Given {
    pub listeners: Vec<OwnedFd>,
    pub control: OwnedFd,
}

/// Takes over what stands at the fixed numbers. To be called once, before anything else opens a file.
pub fn take_given() -> Result<Given, String> {
    let needed = |fd, what| take(fd).ok_or_else(|| format!("descriptor {fd} must be {what}"));
    let mut listeners = vec![needed(LISTENER_V4, "a listener for IPv4")?];
    listeners.extend(take(LISTENER_V6));
    Ok(Given { listeners, control: needed(CONTROL, "the listener of the control socket")? })
}

/// A listening socket at this number, made not to block or to be inherited.
fn take(fd: RawFd) -> Option<OwnedFd> {
    // SAFETY: no memory is passed.
    let is_open = unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
    // SAFETY: it is open, and nobody else in this process owns it: these are the first statements of the program, and each number is taken once.
    let socket = is_open.then(|| unsafe { OwnedFd::from_raw_fd(fd) })?;
    let is_listening = rustix::net::sockopt::socket_acceptconn(&socket).unwrap_or_default();
    rustix::io::fcntl_setfd(&socket, rustix::io::FdFlags::CLOEXEC).ok()?;
    rustix::io::ioctl_fionbio(&socket, true).ok()?;
    is_listening.then_some(socket)
}

/// Raises the number of files that may be open to what is allowed, and says what that is.
pub fn raise_file_limit() -> usize {
    let limit = getrlimit(Resource::Nofile);
    // Where it is refused, the limit stays.
    let _ = setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, maximum: limit.maximum });
    getrlimit(Resource::Nofile).current.and_then(|files| usize::try_from(files).ok()).unwrap_or(usize::MAX)
}
