//! The data directory, held open by descriptors: after the start no path of the host is resolved again.
//!
//! | path | owner | what |
//! |---|---|---|
//! | `layers/<hex>/rootfs.erofs`, `data` | root | immutable layers |
//! | `sets/<hex>/rootfs.erofs` | edge | the metadata of several layers, merged |
//! | `volume/u/s<slot>/{upper,work}` | root, 0700 above | what sandboxes have written; a subvolume each on btrfs |
//! | `bin/aether` | root, 0711 | what sandboxes execute; nobody may read it, which makes its processes untraceable |
//! | `run/launcher.sock` | edge | requests |
//! | `run/launcher.lock` | root | held while a launcher runs |
//! | `run/launcher.answering` | root | the refused call that is being answered |
//! | `run/launcher/<id>.json` | root | records for adoption |
//! | `run/s/<id>.sock` | edge | the aether of a sandbox |
//!
//! `run/s` and `run/launcher` are links to `volume/s` and `volume/r`. These files come and go with every sandbox, and ext4, on which the rest often
//! is, looks at every inode that was deleted in the last minutes before it hands out one: half a millisecond for each file then.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use rustix::fs::{
    AtFlags, CWD, FlockOperation, Mode, OFlags, fchmod, flock, fstat, mkdirat, open, openat, readlinkat, symlinkat,
    unlinkat,
};

use crate::failure::errno_name;
use crate::sys::{Errno, Result};

/// `sun_path` holds 108 bytes with its final zero.
const MAX_SOCKET_PATH: usize = 107;
/// The longest socket name: an id of 24 characters and `.sock`.
const LONGEST_SOCKET: &str = "run/s/aaaaaaaaaaaaaaaaaaaaaaaa.sock";

pub struct DataDir {
    /// Absolute, without symbolic links.
    pub path: PathBuf,
    pub root: OwnedFd,
    pub run: OwnedFd,
    pub layers: OwnedFd,
    pub volume: OwnedFd,
    pub uppers: OwnedFd,
    pub sockets: OwnedFd,
    pub records: OwnedFd,
}

const VISIBLE: u32 = 0o755;
/// Who knows the name of a socket in it may connect, if the socket is his.
const PASSABLE: u32 = 0o711;
const PRIVATE: u32 = 0o700;

/// Why a data directory cannot be used.
#[derive(Debug)]
pub enum Unusable {
    /// Paths of its sockets would be longer than the kernel takes.
    PathTooLong(usize),
    At(PathBuf, Errno),
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::PathTooLong(length) => {
                write!(f, "a socket in it would have a path of {length} bytes; the kernel takes {MAX_SOCKET_PATH}")
            }
            Self::At(path, errno) => write!(f, "{}: {}", path.display(), errno_name(*errno)),
        }
    }
}

fn directory(parent: BorrowedFd<'_>, name: &str, mode: u32) -> Result<OwnedFd> {
    match mkdirat(parent, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let opened =
        openat(parent, name, OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
    fchmod(&opened, Mode::from_raw_mode(mode))?;
    Ok(opened)
}

/// A directory whose mode is decided elsewhere: the volume may be an operator's own, and the layers are added to by others. Only what lets others pass
/// is added.
fn kept(root: BorrowedFd<'_>, name: &str, mode: u32, links: OFlags) -> Result<OwnedFd> {
    match mkdirat(root, name, Mode::from_raw_mode(mode)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let opened = openat(root, name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC | links, Mode::empty())?;
    let present = Mode::from_raw_mode(fstat(&opened)?.st_mode);
    fchmod(&opened, present | Mode::from_raw_mode(0o111))?;
    Ok(opened)
}

/// Makes `name` in `parent` a link to `target`.
fn link(parent: &OwnedFd, name: &str, target: &str) -> Result<()> {
    match symlinkat(target, parent, name) {
        Err(Errno::EXIST) => {}
        other => return other,
    }
    match readlinkat(parent, name, Vec::new()) {
        Ok(present) if present.as_bytes() == target.as_bytes() => Ok(()),
        Ok(_) => Err(Errno::EXIST),
        // An empty directory is in its place.
        Err(Errno::INVAL) => {
            unlinkat(parent, name, AtFlags::REMOVEDIR)?;
            symlinkat(target, parent, name)
        }
        Err(error) => Err(error),
    }
}

impl DataDir {
    /// Opens the directory and makes what is missing in it.
    pub fn open(path: &Path) -> std::result::Result<Self, Unusable> {
        let canonical = path.canonicalize().map_err(|error| {
            Unusable::At(path.to_owned(), error.raw_os_error().map_or(Errno::IO, Errno::from_raw_os_error))
        })?;
        let longest = canonical.join(LONGEST_SOCKET).as_os_str().len();
        if longest > MAX_SOCKET_PATH {
            return Err(Unusable::PathTooLong(longest));
        }
        let at = |name: &str| {
            let failed = canonical.join(name);
            move |errno| Unusable::At(failed, errno)
        };
        let open_flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC;
        let root = open(&canonical, open_flags, Mode::empty()).map_err(at(""))?;
        let run = directory(root.as_fd(), "run", VISIBLE).map_err(at("run"))?;
        let layers = kept(root.as_fd(), "layers", VISIBLE, OFlags::NOFOLLOW).map_err(at("layers"))?;
        directory(root.as_fd(), "sets", VISIBLE).map_err(at("sets"))?;
        let volume = kept(root.as_fd(), "volume", PASSABLE, OFlags::empty()).map_err(at("volume"))?;
        let uppers = directory(volume.as_fd(), "u", PRIVATE).map_err(at("volume/u"))?;
        let sockets = directory(volume.as_fd(), "s", PASSABLE).map_err(at("volume/s"))?;
        let records = directory(volume.as_fd(), "r", PRIVATE).map_err(at("volume/r"))?;
        link(&run, "s", "../volume/s").map_err(at("run/s"))?;
        link(&run, "launcher", "../volume/r").map_err(at("run/launcher"))?;
        Ok(Self { path: canonical, root, run, layers, volume, uppers, sockets, records })
    }

    /// Takes the lock that keeps a second launcher away; it is held as long as the descriptor is open. A process that a launcher
    /// which is gone was just making still holds it for an instant.
    pub fn lock(&self) -> std::result::Result<OwnedFd, String> {
        const TRIES: u32 = 100;
        // A wait for the lock would have no limit of time.
        const PAUSE: Duration = Duration::from_millis(20);
        let failed = |errno| format!("run/launcher.lock: {}", errno_name(errno));
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = openat(&self.run, "launcher.lock", flags, Mode::from_raw_mode(0o600)).map_err(failed)?;
        for _ in 0..TRIES {
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => return Ok(file),
                Err(Errno::WOULDBLOCK) => std::thread::sleep(PAUSE),
                Err(errno) => return Err(failed(errno)),
            }
        }
        Err("another launcher runs on this data directory".to_owned())
    }

    /// Copies the program into the directory, unless the same is there, and opens it.
    pub fn install_aether(&self, program: &Path) -> io::Result<OwnedFd> {
        const EXECUTE_ONLY: u32 = 0o711;
        let (directory, installed) = (self.path.join("bin"), self.path.join("bin/aether"));
        let content = fs::read(program)?;
        if fs::read(&installed).ok().as_ref() != Some(&content) {
            fs::create_dir_all(&directory)?;
            // A running program cannot be written to; a new file takes its place.
            let new = directory.join("aether.new");
            fs::write(&new, &content)?;
            fs::rename(&new, &installed)?;
        }
        fs::set_permissions(&installed, fs::Permissions::from_mode(EXECUTE_ONLY))?;
        Ok(fs::File::open(&installed)?.into())
    }

    /// Where the edge finds a socket.
    pub fn socket_path(&self, name: &str) -> String {
        self.path.join("run/s").join(name).to_string_lossy().into_owned()
    }

    /// The name of the cgroup that all of this directory's sandboxes are in.
    pub fn group_name(&self) -> String {
        group_name_of(&self.path)
    }
}

/// The same for a directory that is not open; `path` is absolute and without links.
pub fn group_name_of(path: &Path) -> String {
    format!("dsec-{:08x}", fnv1a(path.as_os_str().as_encoded_bytes()))
}

/// FNV-1a, folded to 32 bits: names need to differ, not to resist anyone.
fn fnv1a(bytes: &[u8]) -> u32 {
    let hash = bytes
        .iter()
        .fold(0xCBF2_9CE4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x100_0000_01B3));
    (hash ^ (hash >> 32)) as u32
}

/// Opens a directory of the host by its path, at the start.
pub fn open_host_directory(path: &str) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}
