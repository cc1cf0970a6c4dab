//! Where sandboxes write: one subvolume with a quota for each on btrfs; elsewhere one plain directory, without a limit.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, Mode, OFlags, mkdirat, openat};

use crate::remove_tree::{Removal, remove_tree};

use crate::sys::btrfs::{self, BTRFS_MAGIC};
use crate::sys::mount::{self, filesystem_magic};
use crate::sys::{Errno, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quota {
    Btrfs,
    /// btrfs without quotas, or another filesystem.
    None,
}

pub struct Volume {
    root: OwnedFd,
    /// In a mount that is attached nowhere: overlayfs takes a writable layer only from a mount of the caller's namespace or of none, and
    /// so no path of the host shows in a sandbox's mount table.
    uppers: OwnedFd,
    /// The mount ends with this descriptor.
    _detached: OwnedFd,
    is_btrfs: bool,
    pub quota: Quota,
    /// /sys/fs/btrfs/UUID/qgroups: usage as it is in memory, ahead of what the next commit writes.
    groups: Option<OwnedFd>,
}

/// The writable layer of one sandbox.
pub struct Upper {
    pub data: OwnedFd,
    pub work: OwnedFd,
}

/// Space is short when less than this part of the volume is free.
const SHORT_PART: u64 = 8;

const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::RDONLY).union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);

impl Volume {
    pub fn open(root: &OwnedFd, uppers: &OwnedFd) -> Result<Self> {
        let root = rustix::io::fcntl_dupfd_cloexec(root, 0)?;
        let detached = mount::duplicate(uppers)?;
        let uppers = openat(&detached, ".", DIRECTORY, Mode::empty())?;
        let is_btrfs = filesystem_magic(&uppers)? == BTRFS_MAGIC;
        let mut groups = None;
        if is_btrfs && btrfs::enable_simple_quotas(&uppers).is_ok() {
            let path = format!("/sys/fs/btrfs/{}/qgroups", btrfs::filesystem_uuid(&uppers)?);
            groups = openat(rustix::fs::CWD, path, DIRECTORY, Mode::empty()).ok();
        }
        let quota = if groups.is_some() { Quota::Btrfs } else { Quota::None };
        Ok(Self { root, uppers, _detached: detached, is_btrfs, quota, groups })
    }

    /// Total and free bytes.
    pub fn space(&self) -> Result<(u64, u64)> {
        let found = rustix::fs::fstatvfs(&self.root)?;
        Ok((found.f_blocks * found.f_frsize, found.f_bavail * found.f_frsize))
    }

    /// Makes the writable layer of a slot. Whoever owns new files of this process owns it. `None` sets no limit yet.
    pub fn create(&self, name: &str, max_bytes: Option<u64>) -> Result<Upper> {
        if self.is_btrfs {
            let limit = max_bytes.filter(|_| self.quota == Quota::Btrfs);
            btrfs::create_subvolume(&self.uppers, name, limit)?;
        } else {
            mkdirat(&self.uppers, name, Mode::from_raw_mode(0o755))?;
        }
        let top = openat(&self.uppers, name, DIRECTORY, Mode::empty())?;
        mkdirat(&top, "upper", Mode::from_raw_mode(0o755))?;
        mkdirat(&top, "work", Mode::from_raw_mode(0o755))?;
        Self::open_parts(&top)
    }

    pub fn open_upper(&self, name: &str) -> Result<Upper> {
        Self::open_parts(&openat(&self.uppers, name, DIRECTORY, Mode::empty())?)
    }

    fn open_parts(top: &OwnedFd) -> Result<Upper> {
        Ok(Upper {
            data: openat(top, "upper", DIRECTORY, Mode::empty())?,
            work: openat(top, "work", DIRECTORY, Mode::empty())?,
        })
    }

    pub fn has_snapshots(&self) -> bool {
        self.is_btrfs
    }

    /// Takes a read-only snapshot of a writable layer under another name. `false`: this volume has none.
    pub fn snapshot(&self, name: &str, snapshot: &str) -> Result<bool> {
        if !self.is_btrfs {
            return Ok(false);
        }
        let source = openat(&self.uppers, name, DIRECTORY, Mode::empty())?;
        btrfs::snapshot_subvolume(&self.uppers, snapshot, &source).map(|()| true)
    }

    /// What a sandbox has written, or had written when the snapshot was taken.
    pub fn open_data(&self, name: &str) -> Result<OwnedFd> {
        openat(openat(&self.uppers, name, DIRECTORY, Mode::empty())?, "upper", DIRECTORY, Mode::empty())
    }

    pub fn set_limit(&self, name: &str, max_bytes: u64) -> Result<()> {
        if self.quota == Quota::None {
            return Ok(());
        }
        btrfs::limit_subvolume(openat(&self.uppers, name, DIRECTORY, Mode::empty())?, max_bytes)
    }

    /// Bytes that a slot has written, where somebody counts them.
    pub fn usage(&self, name: &str) -> Result<Option<u64>> {
        let (Some(groups), Some(id)) = (&self.groups, self.group_of(name)?) else { return Ok(None) };
        let file = openat(groups, format!("0_{id}/referenced"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = [0; 32];
        let length = rustix::io::read(&file, &mut text)?;
        let number = std::str::from_utf8(&text[..length]).ok().and_then(|text| text.trim().parse().ok());
        Ok(Some(number.ok_or(Errno::INVAL)?))
    }

    /// Names of all writable layers.
    pub fn names(&self) -> Result<Vec<String>> {
        let entries = Dir::read_from(&self.uppers)?.filter_map(|entry| entry.ok());
        let names = entries.filter_map(|entry| entry.file_name().to_str().ok().map(str::to_owned));
        Ok(names.filter(|name| name != "." && name != "..").collect())
    }

    /// Removes a writable layer; one that is not there is done.
    pub fn remove(&self, name: &str) -> Result<Removal> {
        if !self.is_btrfs {
            return remove_tree(self.uppers.as_fd(), name);
        }
        match btrfs::delete_subvolume(&self.uppers, name) {
            Ok(()) => {
                self.free_soon();
                Ok(Removal::Done)
            }
            Err(Errno::NOENT) => Ok(Removal::Done),
            Err(Errno::NOTEMPTY) => {
                self.remove_nested(name)?;
                Ok(Removal::More)
            }
            // A half-made one: a crash came between the directory and what makes it a subvolume, or it is from before btrfs was here.
            Err(Errno::INVAL | Errno::NOTDIR) => remove_tree(self.uppers.as_fd(), name),
            Err(error) => Err(error),
        }
    }

    fn remove_nested(&self, name: &str) -> Result<()> {
        let top = openat(&self.uppers, name, DIRECTORY, Mode::empty())?;
        for id in btrfs::nested_subvolumes(&top)? {
            btrfs::delete_subvolume_by_id(&self.root, id)?;
        }
        Ok(())
    }

    /// The id of a writable layer's quota group.
    pub fn group_of(&self, name: &str) -> Result<Option<u64>> {
        if self.quota == Quota::None {
            return Ok(None);
        }
        match openat(&self.uppers, name, DIRECTORY, Mode::empty()) {
            Ok(top) => btrfs::subvolume_id(top).map(Some),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Removes a quota group. `false`: the kernel has not freed its subvolume's space yet.
    pub fn remove_group(&self, id: u64) -> bool {
        match btrfs::remove_quota_group(&self.uppers, id) {
            Err(Errno::BUSY | Errno::AGAIN | Errno::INTR | Errno::NOSPC) => {
                self.free_soon();
                false
            }
            _ => true,
        }
    }

    /// Where space is short, has the kernel free what was removed without its usual delay of a minute.
    fn free_soon(&self) {
        if let Ok((total, free)) = self.space()
            && free < total / SHORT_PART
        {
            // Without it space comes back later.
            let _ = btrfs::start_sync(&self.uppers);
        }
    }

    /// Quota groups of subvolumes that are gone.
    pub fn stale_groups(&self) -> Result<Vec<u64>> {
        let Some(groups) = &self.groups else { return Ok(Vec::new()) };
        let mut live = Vec::new();
        for name in self.names()? {
            live.extend(self.group_of(&name)?);
        }
        let entries = Dir::read_from(groups)?.filter_map(|entry| entry.ok());
        let ids = entries.filter_map(|entry| entry.file_name().to_str().ok()?.strip_prefix("0_")?.parse().ok());
        Ok(ids.filter(|id| *id >= btrfs::SUBVOLUME_ROOT_INODE && !live.contains(id)).collect())
    }
}
