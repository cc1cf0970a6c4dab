//! Filesystems and mounts. Everything happens in a child with a mount namespace of its own, on a directory that is removed again.

use std::fs::{self, File};
use std::os::fd::AsFd;
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, Mode, mkdirat};

use super::Outcome;
use super::kernel::{TRIAL_UID, explain, in_child};
use crate::cgroup;
use crate::data_dir::open_host_directory;
use crate::namespaces;
use crate::prepare;
use crate::sys::mount::{self, Attr, Value};
use crate::sys::{Errno, btrfs, fanotify, loop_device};

/// An EROFS image of an empty directory.
const EMPTY_EROFS: &[u8] = include_bytes!("empty.erofs");
const TRIAL_VOLUME_BYTES: u64 = prepare::MIN_BYTES;

struct Scratch(PathBuf);

impl Scratch {
    /// On a disk, where layers and volumes are too.
    fn new() -> Result<Self, String> {
        let path = Path::new("/var/tmp").join(format!("dsec-doctor-{}", std::process::id()));
        fs::create_dir(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(Self(path))
    }

    fn file(&self, name: &str, content: &[u8]) -> Result<PathBuf, String> {
        let path = self.0.join(name);
        fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))?;
        Ok(path)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        // Left behind it is a few bytes in a directory for such things.
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn mount_erofs(image: &Path) -> Result<std::os::fd::OwnedFd, Errno> {
    let source = image.to_str().ok_or(Errno::INVAL)?;
    mount::create("erofs", &[("source", Value::Text(source)), ("ro", Value::Flag)], Attr::MOUNT_ATTR_RDONLY)
}

pub fn erofs_file() -> Outcome {
    let scratch = Scratch::new()?;
    let image = scratch.file("empty.erofs", EMPTY_EROFS)?;
    in_child(|| mount_erofs(&image).map(|_| ()))?;
    Ok("mounts straight from a file".into())
}

pub fn idmapped_mounts() -> Outcome {
    let scratch = Scratch::new()?;
    let image = scratch.file("empty.erofs", EMPTY_EROFS)?;
    in_child(|| {
        let user = namespaces::make_user(open_host_directory("/proc")?, TRIAL_UID)?;
        let mapped = mount::duplicate_mapped(mount_erofs(&image)?, user.as_fd(), Attr::empty())?;
        match rustix::fs::fstat(&mapped)?.st_uid {
            TRIAL_UID => Ok(()),
            _ => Err(Errno::INVAL),
        }
    })?;
    Ok("owners of a layer appear shifted".into())
}

pub fn overlay_lowerdir_fd() -> Outcome {
    in_child(|| {
        mount::unshare_namespace()?;
        let root = mount::create("tmpfs", &[], Attr::empty())?;
        let directory = |name: &str| {
            mkdirat(&root, name, Mode::from_raw_mode(0o755))?;
            rustix::fs::openat(&root, name, rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC, Mode::empty())
        };
        let (lower, upper, work) = (directory("lower")?, directory("upper")?, directory("work")?);
        let settings = [
            ("lowerdir+", Value::Fd(lower.as_fd())),
            ("upperdir", Value::Fd(upper.as_fd())),
            ("workdir", Value::Fd(work.as_fd())),
            ("volatile", Value::Flag),
        ];
        mount::create("overlay", &settings, Attr::empty()).map(|_| ())
    })?;
    Ok("takes descriptors".into())
}

/// Whether what one sandbox reads and writes can hold up another's.
pub fn io_weight() -> Outcome {
    let cgroup::Found::V2(root) = cgroup::detect()? else {
        return Err("cgroup v1 writes back on nobody's account".into());
    };
    if !cgroup::offered_controllers(&root).iter().any(|name| name == "io") {
        return Err("cgroup v2 without the controller io".into());
    }
    let disks = fs::read_dir("/sys/block").map_err(|error| format!("/sys/block: {error}"))?;
    let has_bfq = |disk: &fs::DirEntry| {
        fs::read_to_string(disk.path().join("queue/scheduler")).is_ok_and(|text| text.contains("[bfq]"))
    };
    let weighing: Vec<String> =
        disks.filter_map(Result::ok).filter(has_bfq).map(|disk| disk.file_name().to_string_lossy().into()).collect();
    if !weighing.is_empty() {
        return Ok(format!("by bfq on {}", weighing.join(", ")));
    }
    match cgroup::costs_io(&root) {
        true => Ok("by io.cost".into()),
        false => Err("no disk has the scheduler bfq, and io.cost is off".into()),
    }
}

pub fn btrfs_simple_quota() -> Outcome {
    let scratch = Scratch::new()?;
    let image = scratch.file("volume.img", b"")?;
    let file = File::options().read(true).write(true).open(&image).map_err(|error| error.to_string())?;
    file.set_len(TRIAL_VOLUME_BYTES).map_err(|error| error.to_string())?;
    prepare::make_filesystem(&image)?;
    let device = loop_device::attach(&file).map_err(explain("loop device"))?;
    in_child(|| {
        let mounted = mount::create("btrfs", &[("source", Value::Text(&device.path))], Attr::empty())?;
        let root = rustix::fs::openat(
            &mounted,
            ".",
            rustix::fs::OFlags::DIRECTORY | rustix::fs::OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        btrfs::enable_simple_quotas(&root)?;
        btrfs::create_subvolume(&root, "trial", Some(1 << 20))
    })?;
    Ok("limits a subvolume".into())
}

pub fn fanotify_pre_content() -> Outcome {
    let scratch = Scratch::new()?;
    let path = scratch.file("data", b"data")?;
    let name = std::ffi::CString::new(path.as_os_str().as_encoded_bytes()).map_err(|error| error.to_string())?;
    fanotify::watch_once(CWD, &name).map_err(explain("fanotify"))?;
    Ok("reads can be held until their data are there".into())
}
