//! Where a session keeps its scripts and FIFOs: a small filesystem in memory that is mounted nowhere, so that no path leads to it and
//! no image can lack or clutter it.

use std::ffi::{CStr, CString};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use crate::identity::Identity;
use crate::sys::fd::{self, owned};
use crate::sys::{Errno, check};

/// fsconfig(2) commands.
const FSCONFIG_SET_STRING: u32 = 1;
const FSCONFIG_CMD_CREATE: u32 = 6;
/// A script is at most one OPEN frame (4 MiB).
const SIZE: &CStr = c"8m";
const DIRECTORY_MODE: libc::mode_t = 0o700;
const FILE_MODE: libc::mode_t = 0o600;

/// Where a directory is made when the kernel refuses the mount.
const FALLBACKS: [&CStr; 3] = [c"/dev/shm/.dsec-XXXXXX", c"/run/.dsec-XXXXXX", c"/tmp/.dsec-XXXXXX"];

#[derive(Debug)]
pub struct Room {
    directory: OwnedFd,
    uid: u32,
    gid: u32,
    /// Path of a directory that must be removed at the end.
    fallback: Option<CString>,
}

fn mount() -> Result<OwnedFd, Errno> {
    // SAFETY: the strings end with NUL; the descriptors are checked.
    unsafe {
        let context = owned(check(libc::syscall(libc::SYS_fsopen, c"tmpfs".as_ptr(), 1))? as RawFd);
        let set = |key: &CStr, value: &CStr| {
            let command = FSCONFIG_SET_STRING;
            check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), command, key.as_ptr(), value.as_ptr(), 0))
        };
        set(c"size", SIZE)?;
        set(c"mode", c"0700")?;
        let none = std::ptr::null::<u8>();
        check(libc::syscall(libc::SYS_fsconfig, context.as_raw_fd(), FSCONFIG_CMD_CREATE, none, none, 0))?;
        let mount = owned(check(libc::syscall(libc::SYS_fsmount, context.as_raw_fd(), 1, 0))? as RawFd);
        // An ordinary descriptor of its root: that of the mount itself is O_PATH.
        fd::open_at(mount.as_raw_fd(), c".", libc::O_RDONLY | libc::O_DIRECTORY, 0)
    }
}

fn make_directory() -> Result<(OwnedFd, CString), Errno> {
    for template in FALLBACKS {
        let path = template.to_owned().into_raw();
        // SAFETY: mkdtemp writes the last six characters of the string, which is then taken back.
        let (made, path) = unsafe { (!libc::mkdtemp(path).is_null(), CString::from_raw(path)) };
        if made {
            let directory =
                fd::open_at(libc::AT_FDCWD, &path, libc::O_RDONLY | libc::O_DIRECTORY | libc::O_NOFOLLOW, 0)?;
            return Ok((directory, path));
        }
    }
    Err(crate::sys::errno())
}

impl Room {
    pub fn new(identity: &Identity) -> Result<Self, Errno> {
        let (directory, fallback) = match mount() {
            Ok(directory) => (directory, None),
            Err(_) => make_directory().map(|(directory, path)| (directory, Some(path)))?,
        };
        let room = Self { directory, uid: identity.uid, gid: identity.gid, fallback };
        // SAFETY: plain descriptor calls.
        unsafe {
            check(libc::fchown(room.directory.as_raw_fd(), identity.uid, identity.gid))?;
            check(libc::fchmod(room.directory.as_raw_fd(), DIRECTORY_MODE))?;
        }
        Ok(room)
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.directory
    }

    fn name(kind: char, run: u64) -> CString {
        // Letters and digits only: there is no NUL.
        CString::new(format!("{kind}{run}")).unwrap_or_default()
    }

    fn give(&self, name: &CStr) -> Result<(), Errno> {
        // SAFETY: the name ends with NUL.
        check(unsafe {
            libc::fchownat(self.directory.as_raw_fd(), name.as_ptr(), self.uid, self.gid, libc::AT_SYMLINK_NOFOLLOW)
        })?;
        Ok(())
    }

    pub fn write_script(&self, run: u64, text: &str) -> Result<(), Errno> {
        let name = Self::name('s', run);
        let flags = libc::O_WRONLY | libc::O_CREAT | libc::O_EXCL | libc::O_NOFOLLOW;
        let file = fd::open_at(self.directory.as_raw_fd(), &name, flags, FILE_MODE)?;
        fd::write_all(&file, text.as_bytes())?;
        self.give(&name)
    }

    /// A FIFO for an output of the run, open for reading before anybody can write.
    pub fn open_output(&self, kind: char, run: u64) -> Result<OwnedFd, Errno> {
        let name = Self::name(kind, run);
        // SAFETY: the name ends with NUL.
        check(unsafe { libc::mkfifoat(self.directory.as_raw_fd(), name.as_ptr(), FILE_MODE) })?;
        self.give(&name)?;
        let flags = libc::O_RDONLY | libc::O_NONBLOCK | libc::O_NOFOLLOW;
        fd::open_at(self.directory.as_raw_fd(), &name, flags, 0)
    }

    /// The files of a run are no longer needed by name.
    pub fn clear(&self, run: u64) {
        for kind in ['s', 'o', 'e'] {
            let name = Self::name(kind, run);
            // SAFETY: the name ends with NUL. A file that is not there needs no removal.
            unsafe { libc::unlinkat(self.directory.as_raw_fd(), name.as_ptr(), 0) };
        }
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        if let Some(path) = &self.fallback {
            // SAFETY: the path ends with NUL.
            unsafe { libc::rmdir(path.as_ptr()) };
        }
    }
}
