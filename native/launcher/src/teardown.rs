//! `launcher teardown`: ends every sandbox of a data directory and takes back what the host holds for it. The layers and the image of the volume stay.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::mount::{UnmountFlags, unmount};
use rustix::process::{Pid, Signal, pidfd_send_signal};
use serde_json::{Value, json};

use crate::apparmor;
use crate::cgroup::{self, Cgroups};
use crate::data_dir::DataDir;
use crate::failure::errno_name;
use crate::host_limits::HostLimits;
use crate::node::Node;
use crate::remove_tree::Removal;
use crate::sys::Errno;
use crate::sys::clone;
use crate::uid_range::{TABLE, Table};
use crate::volume::Volume;

/// Processes that do not end in this time are stuck in the kernel.
const PATIENCE: Duration = Duration::from_secs(60);
/// Between two tries. Groups, subvolumes and mounts are busy until the kernel is through with what was in them, and most of that is told by no event.
const PAUSE: Duration = Duration::from_millis(5);

/// Fails while a launcher runs on the directory.
pub fn teardown(path: &Path) -> Result<Value, String> {
    if !path.exists() {
        return Ok(json!({ "sandboxes": 0 }));
    }
    let sandboxes = end_sandboxes(path)?;
    let data = path.canonicalize().map_err(|error| format!("{}: {error}", path.display()))?;
    unmount_volume(&data.join("volume"))?;
    for name in ["run/s", "run/launcher", "run/launcher.sock", "run/launcher.lock", "run/launcher.answering"] {
        match fs::remove_file(data.join(name)) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => return Err(format!("{name}: {error}")),
            _ => {}
        }
    }
    Table::open(Path::new(TABLE))
        .and_then(|table| {
            if table.is_last(&data) {
                apparmor::unload_unused().map_err(std::io::Error::other)?;
                HostLimits::of_this_host().restore().map_err(std::io::Error::other)?;
            }
            table.release(&data)
        })
        .map_err(|error| format!("{TABLE}: {error}"))?;
    Ok(json!({ "sandboxes": sandboxes }))
}

fn end_sandboxes(path: &Path) -> Result<usize, String> {
    let data = DataDir::open(path).map_err(|error| error.to_string())?;
    let _lock = data.lock()?;
    let cgroups = Cgroups::open(cgroup::detect()?, &data.group_name(), 1)
        .map_err(|errno| format!("cgroups: {}", errno_name(errno)))?;
    let volume = Volume::open(&data.volume, &data.uppers).map_err(|errno| format!("volume: {}", errno_name(errno)))?;
    let groups = cgroups.names();
    let until = Instant::now() + PATIENCE;
    until_done(until, "processes", || {
        groups.iter().for_each(|group| kill_all(&cgroups, group));
        groups.iter().filter(|group| !cgroups.remove(group)).count() == 0
    })?;
    until_done(until, "groups", || cgroups.remove_parent())?;
    for name in volume.names().map_err(errno_name)?.iter().filter(|name| Node::slot_of_name(name).is_some()) {
        until_done(until, "volume", || matches!(volume.remove(name), Ok(Removal::Done)))?;
    }
    remove_files(&path.join("volume/s"))?;
    remove_files(&path.join("volume/r"))?;
    Ok(groups.len())
}

fn until_done(until: Instant, what: &str, mut step: impl FnMut() -> bool) -> Result<(), String> {
    while !step() {
        if Instant::now() > until {
            return Err(format!("{what} could not be removed"));
        }
        std::thread::sleep(PAUSE);
    }
    Ok(())
}

fn kill_all(cgroups: &Cgroups, group: &str) {
    cgroups.thaw(group);
    for pid in cgroups.processes(group) {
        let Some(pid) = i32::try_from(pid).ok().and_then(Pid::from_raw) else { continue };
        if let Ok(pidfd) = clone::open_process(pid) {
            let _ = pidfd_send_signal(pidfd, Signal::KILL);
        }
    }
}

fn remove_files(directory: &Path) -> Result<(), String> {
    let failed = |error: std::io::Error| format!("{}: {error}", directory.display());
    for entry in fs::read_dir(directory).map_err(failed)? {
        fs::remove_file(entry.map_err(failed)?.path()).map_err(failed)?;
    }
    Ok(())
}

/// Unmounts what is mounted there; its loop device lets go by itself.
fn unmount_volume(volume: &Path) -> Result<(), String> {
    let until = Instant::now() + PATIENCE;
    loop {
        match unmount(volume, UnmountFlags::NOFOLLOW) {
            Ok(()) => {}
            // Nothing is mounted there any more.
            Err(Errno::INVAL | Errno::NOENT) => return Ok(()),
            Err(Errno::BUSY) if Instant::now() < until => std::thread::sleep(PAUSE),
            Err(errno) => return Err(format!("{}: unmount: {}", volume.display(), errno_name(errno))),
        }
    }
}
