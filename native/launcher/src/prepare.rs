//! `launcher prepare`: the node's data volume, a btrfs filesystem in a sparse file, mounted in the data directory. Done already is fine.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Command, Stdio};

use rustix::fs::CWD;
use serde_json::{Value, json};

use crate::failure::errno_name;
use crate::sys::btrfs::BTRFS_MAGIC;
use crate::sys::loop_device;
use crate::sys::mount::{self, Attr, Value as Setting};

/// btrfs wants some more than its least; below this there would be no room for anything else.
pub const MIN_BYTES: u64 = 256 << 20;

/// Where btrfs keeps its magic word, and what that is.
const MAGIC_OFFSET: u64 = 0x1_0040;
const MAGIC: &[u8; 8] = b"_BHRfS_M";

/// Makes, mounts and describes the volume.
pub fn prepare(data: &Path, size: u64) -> Result<Value, String> {
    fs::create_dir_all(data).map_err(|error| format!("{}: {error}", data.display()))?;
    let data = data.canonicalize().map_err(|error| format!("{}: {error}", data.display()))?;
    let (image, target) = (data.join("volume.img"), data.join("volume"));
    fs::create_dir_all(&target).map_err(|error| format!("{}: {error}", target.display()))?;
    if is_mounted(&target)? {
        return Ok(json!({ "volume": target, "wasMounted": true }));
    }
    let file = open_image(&image, size).map_err(|error| format!("{}: {error}", image.display()))?;
    if !has_filesystem(&file).map_err(|error| format!("{}: {error}", image.display()))? {
        make_filesystem(&image)?;
    }
    let device = loop_device::attach(&file).map_err(|errno| format!("loop device: {}", errno_name(errno)))?;
    mount_at(&device.path, &target).map_err(|errno| format!("{}: mount: {}", target.display(), errno_name(errno)))?;
    Ok(json!({ "volume": target, "device": device.path, "wasMounted": false }))
}

fn mount_at(device: &str, target: &Path) -> Result<(), crate::sys::Errno> {
    // Programs of sandboxes run from their own mounts of it, never from this one.
    let attributes = Attr::MOUNT_ATTR_NOSUID | Attr::MOUNT_ATTR_NODEV | Attr::MOUNT_ATTR_NOATIME;
    let settings = [("source", Setting::Text(device)), ("discard", Setting::Text("async"))];
    let mounted = mount::create("btrfs", &settings, attributes)?;
    let target = std::ffi::CString::new(target.as_os_str().as_encoded_bytes()).map_err(|_| crate::sys::Errno::INVAL)?;
    mount::attach(mounted.as_fd(), CWD, &target)
}

/// A btrfs filesystem begins at the directory.
fn is_mounted(target: &Path) -> Result<bool, String> {
    let of = |path: &Path| File::open(path).map_err(|error| format!("{}: {error}", path.display()));
    let (own, parent) = (of(target)?, of(target.parent().unwrap_or(target))?);
    let magic = mount::filesystem_magic(&own).map_err(errno_name)?;
    let device = |file: &File| rustix::fs::fstat(file).map(|found| found.st_dev).map_err(errno_name);
    Ok(magic == BTRFS_MAGIC && device(&own)? != device(&parent)?)
}

/// Opens the image, made or grown to the size; it never shrinks, and btrfs learns of more room by itself only when it is new.
fn open_image(path: &Path, size: u64) -> io::Result<File> {
    let file = OpenOptions::new().read(true).write(true).create(true).truncate(false).mode(0o600).open(path)?;
    if file.metadata()?.len() == 0 {
        file.set_len(size)?;
    }
    Ok(file)
}

fn has_filesystem(file: &File) -> io::Result<bool> {
    let mut found = [0; MAGIC.len()];
    match file.read_exact_at(&mut found, MAGIC_OFFSET) {
        Ok(()) => Ok(&found == MAGIC),
        Err(error) if error.kind() == ErrorKind::UnexpectedEof => Ok(false),
        Err(error) => Err(error),
    }
}

/// One copy of metadata: what protects it is that a sandbox does not outlive its node anyway.
pub fn make_filesystem(image: &Path) -> Result<(), String> {
    let made = Command::new("mkfs.btrfs")
        .args(["--quiet", "--force", "--metadata", "single", "--nodiscard"])
        .arg(image)
        .stdin(Stdio::null())
        .output();
    match made {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("mkfs.btrfs: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(error) if error.kind() == ErrorKind::NotFound => {
            Err("mkfs.btrfs is not installed (Debian: btrfs-progs)".to_owned())
        }
        Err(error) => Err(format!("mkfs.btrfs: {error}")),
    }
}
