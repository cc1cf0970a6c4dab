//! btrfs: subvolumes and simple quotas (linux/btrfs.h).

use std::os::fd::{AsFd, AsRawFd};

use super::{Errno, Result, last_errno};

pub const BTRFS_MAGIC: u64 = 0x9123_683E;
/// Inode of the root directory of every subvolume.
pub const SUBVOLUME_ROOT_INODE: u64 = 256;

const MAGIC: u32 = 0x94;
const NAME_MAX: usize = 4_040;
const ROOTREFS: usize = 255;
const QUOTA_ENABLE_SIMPLE: u64 = 4;
const SUBVOL_QGROUP_INHERIT: u64 = 1 << 2;
const SUBVOL_SPEC_BY_ID: u64 = 1 << 4;
const SUBVOL_READ_ONLY: u64 = 1 << 1;
const INHERIT_SET_LIMITS: u64 = 1;
const LIMIT_MAX_RFER: u64 = 1;

const fn request(direction: u32, number: u32, size: usize) -> libc::c_ulong {
    ((direction << 30) | ((size as u32) << 16) | (MAGIC << 8) | number) as libc::c_ulong
}
const WRITE: u32 = 1;
const READ: u32 = 2;

#[repr(C)]
struct VolArgsV2 {
    fd: i64,
    transid: u64,
    flags: u64,
    size: u64,
    inherit: u64,
    unused: [u64; 2],
    name: [u8; NAME_MAX],
}

#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Limit {
    flags: u64,
    max_rfer: u64,
    max_excl: u64,
    rsv_rfer: u64,
    rsv_excl: u64,
}

#[repr(C)]
struct Inherit {
    flags: u64,
    num_qgroups: u64,
    num_ref_copies: u64,
    num_excl_copies: u64,
    limit: Limit,
}

#[repr(C)]
struct QuotaCtl {
    cmd: u64,
    status: u64,
}

#[repr(C)]
struct QgroupLimit {
    qgroup: u64,
    limit: Limit,
}

#[repr(C)]
struct QgroupCreate {
    create: u64,
    qgroup: u64,
}

#[repr(C)]
struct RootRefs {
    min_tree: u64,
    found: [[u64; 2]; ROOTREFS],
    count: u8,
    align: [u8; 7],
}

fn ioctl<T>(fd: impl AsFd, request: libc::c_ulong, argument: &mut T) -> Result<()> {
    // SAFETY: each request is used with the structure whose size is part of its number.
    if unsafe { libc::ioctl(fd.as_fd().as_raw_fd(), request, std::ptr::from_mut(argument)) } < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

fn named(name: &str) -> Result<Box<VolArgsV2>> {
    let mut args =
        Box::new(VolArgsV2 { fd: 0, transid: 0, flags: 0, size: 0, inherit: 0, unused: [0; 2], name: [0; NAME_MAX] });
    if name.is_empty() || name.len() >= NAME_MAX || name.contains('/') {
        return Err(Errno::INVAL);
    }
    args.name[..name.len()].copy_from_slice(name.as_bytes());
    Ok(args)
}

/// Makes an empty subvolume, of at most so many bytes where quotas are on.
pub fn create_subvolume(parent: impl AsFd, name: &str, max_bytes: Option<u64>) -> Result<()> {
    let mut args = named(name)?;
    let mut inherit = Inherit {
        flags: INHERIT_SET_LIMITS,
        num_qgroups: 0,
        num_ref_copies: 0,
        num_excl_copies: 0,
        limit: Limit::default(),
    };
    if let Some(bytes) = max_bytes {
        inherit.limit = Limit { flags: LIMIT_MAX_RFER, max_rfer: bytes, ..Limit::default() };
        args.flags = SUBVOL_QGROUP_INHERIT;
        args.size = size_of::<Inherit>() as u64;
        args.inherit = (&raw mut inherit) as u64;
    }
    ioctl(parent, request(WRITE, 24, size_of::<VolArgsV2>()), &mut *args)
}

/// Takes a read-only snapshot of the subvolume that `source` is the root of. What was written before is in it, whether or not it is on the disk.
pub fn snapshot_subvolume(parent: impl AsFd, name: &str, source: impl AsFd) -> Result<()> {
    let mut args = named(name)?;
    args.fd = i64::from(source.as_fd().as_raw_fd());
    args.flags = SUBVOL_READ_ONLY;
    ioctl(parent, request(WRITE, 23, size_of::<VolArgsV2>()), &mut *args)
}

/// Sets the limit of the subvolume that the descriptor is in.
pub fn limit_subvolume(fd: impl AsFd, max_bytes: u64) -> Result<()> {
    let mut args =
        QgroupLimit { qgroup: 0, limit: Limit { flags: LIMIT_MAX_RFER, max_rfer: max_bytes, ..Limit::default() } };
    ioctl(fd, request(READ, 43, size_of::<QgroupLimit>()), &mut args)
}

/// Deletes a subvolume that has no others in it; its space is freed in the background.
pub fn delete_subvolume(parent: impl AsFd, name: &str) -> Result<()> {
    ioctl(parent, request(WRITE, 63, size_of::<VolArgsV2>()), &mut *named(name)?)
}

/// The same by id, wherever it is below `mount`.
pub fn delete_subvolume_by_id(mount: impl AsFd, id: u64) -> Result<()> {
    let mut args = named("-")?;
    args.flags = SUBVOL_SPEC_BY_ID;
    args.name = [0; NAME_MAX];
    args.name[..8].copy_from_slice(&id.to_ne_bytes());
    ioctl(mount, request(WRITE, 63, size_of::<VolArgsV2>()), &mut *args)
}

/// Ids of the subvolumes directly inside the one that the descriptor is in; at most as many as one call answers.
pub fn nested_subvolumes(fd: impl AsFd) -> Result<Vec<u64>> {
    let mut args = Box::new(RootRefs { min_tree: 0, found: [[0; 2]; ROOTREFS], count: 0, align: [0; 7] });
    match ioctl(fd, request(READ | WRITE, 61, size_of::<RootRefs>()), &mut *args) {
        Ok(()) | Err(Errno::OVERFLOW) => {
            Ok(args.found[..usize::from(args.count)].iter().map(|found| found[0]).collect())
        }
        Err(error) => Err(error),
    }
}

/// The id of the subvolume that the descriptor is in (BTRFS_IOC_INO_LOOKUP).
pub fn subvolume_id(fd: impl AsFd) -> Result<u64> {
    #[repr(C)]
    struct Lookup {
        tree: u64,
        object: u64,
        name: [u8; 4_080],
    }
    let mut args = Box::new(Lookup { tree: 0, object: SUBVOLUME_ROOT_INODE, name: [0; 4_080] });
    ioctl(fd, request(READ | WRITE, 18, size_of::<Lookup>()), &mut *args)?;
    Ok(args.tree)
}

/// Turns simple quotas on; done already is fine.
pub fn enable_simple_quotas(fd: impl AsFd) -> Result<()> {
    ioctl(fd, request(READ | WRITE, 40, size_of::<QuotaCtl>()), &mut QuotaCtl { cmd: QUOTA_ENABLE_SIMPLE, status: 0 })
}

/// Removes the quota group of a subvolume that is gone. `EBUSY` while its space is still being freed.
pub fn remove_quota_group(fd: impl AsFd, subvolume: u64) -> Result<()> {
    ioctl(fd, request(WRITE, 42, size_of::<QgroupCreate>()), &mut QgroupCreate { create: 0, qgroup: subvolume })
}

/// Begins to write down what is only in memory, which by itself happens twice a minute. Space is free only after that.
pub fn start_sync(fd: impl AsFd) -> Result<()> {
    ioctl(fd, request(READ, 24, size_of::<u64>()), &mut 0u64)
}

/// The filesystem's UUID, as in /sys/fs/btrfs.
pub fn filesystem_uuid(fd: impl AsFd) -> Result<String> {
    #[repr(C)]
    struct FsInfo {
        counts: [u64; 2],
        uuid: [u8; 16],
        rest: [u8; 992],
    }
    let mut args = Box::new(FsInfo { counts: [0; 2], uuid: [0; 16], rest: [0; 992] });
    ioctl(fd, request(READ, 31, size_of::<FsInfo>()), &mut *args)?;
    let hex: String = args.uuid.iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}
