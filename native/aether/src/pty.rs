//! Terminals.

use std::os::fd::{AsRawFd, OwnedFd};

use crate::identity::Identity;
use crate::sys::fd::{self, owned};
use crate::sys::{Errno, check};

/// Group `tty` may write to a terminal, as `mesg y` has it.
const SLAVE_MODE: libc::mode_t = 0o620;

/// A new terminal of (rows, columns): master and slave. The slave is opened through the master, so no path is trusted.
pub fn open(size: (u16, u16), identity: &Identity) -> Result<(OwnedFd, OwnedFd), Errno> {
    let flags = libc::O_RDWR | libc::O_NONBLOCK;
    let master = fd::open_at(libc::AT_FDCWD, c"/dev/pts/ptmx", flags, 0)
        .or_else(|_| fd::open_at(libc::AT_FDCWD, c"/dev/ptmx", flags, 0))?;
    let unlock: libc::c_int = 0;
    // SAFETY: TIOCSPTLCK reads an int; TIOCGPTPEER takes open flags and returns a descriptor.
    let slave = unsafe {
        check(libc::ioctl(master.as_raw_fd(), libc::TIOCSPTLCK, &unlock))?;
        let flags = libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC;
        owned(check(libc::ioctl(master.as_raw_fd(), libc::TIOCGPTPEER, flags))?)
    };
    set_size(&master, size);
    if identity.uid != 0 {
        // SAFETY: plain descriptor calls.
        unsafe {
            libc::fchown(slave.as_raw_fd(), identity.uid, libc::gid_t::MAX);
            libc::fchmod(slave.as_raw_fd(), SLAVE_MODE);
        }
    }
    Ok((master, slave))
}

/// Sends SIGWINCH to the foreground when the size differs from what it was.
pub fn set_size(master: &OwnedFd, (rows, cols): (u16, u16)) {
    let size = libc::winsize { ws_row: rows, ws_col: cols, ws_xpixel: 0, ws_ypixel: 0 };
    // SAFETY: TIOCSWINSZ reads a winsize.
    unsafe { libc::ioctl(master.as_raw_fd(), libc::TIOCSWINSZ, &size) };
}

/// A second descriptor of the master, which epoll can watch for writing on its own.
pub fn duplicate(master: &OwnedFd) -> Result<OwnedFd, Errno> {
    // SAFETY: plain descriptor call.
    check(unsafe { libc::fcntl(master.as_raw_fd(), libc::F_DUPFD_CLOEXEC, 3) }).map(owned)
}
