//! The parts of the data directory that layerd uses.

use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, mkdirat, openat};

use crate::failure::errno_name;
use crate::sys::{Errno, Result};

pub struct DataDir {
    pub layers: OwnedFd,
    pub run: OwnedFd,
}

impl DataDir {
    /// Opens the directory and makes what is missing in it.
    pub fn open(path: &Path) -> std::result::Result<Self, String> {
        let at = |name: &str| {
            let failed = path.join(name);
            move |errno| format!("{}: {}", failed.display(), errno_name(errno))
        };
        let root = openat(CWD, path, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty());
        let root = root.map_err(at(""))?;
        Ok(Self {
            layers: directory(&root, "layers").map_err(at("layers"))?,
            run: directory(&root, "run").map_err(at("run"))?,
        })
    }
}

fn directory(root: &OwnedFd, name: &str) -> Result<OwnedFd> {
    match mkdirat(root, name, Mode::from_raw_mode(0o755)) {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error),
    }
    let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(root, name, flags, Mode::empty())
}
