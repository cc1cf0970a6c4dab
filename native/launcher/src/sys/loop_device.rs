//! Loop devices (linux/loop.h).

use std::os::fd::{AsFd, AsRawFd, OwnedFd};

use rustix::fs::{CWD, Mode, OFlags, openat};

use super::{Errno, Result, last_errno};

const LOOP_CTL_GET_FREE: libc::c_ulong = 0x4C82;
const LOOP_GET_STATUS64: libc::c_ulong = 0x4C05;
const LOOP_CONFIGURE: libc::c_ulong = 0x4C0A;
/// The device lets go of its file with its last user: with the unmount.
const LO_FLAGS_AUTOCLEAR: u32 = 4;
/// No second copy of everything in the page cache; the kernel leaves it out where the file's filesystem cannot.
const LO_FLAGS_DIRECT_IO: u32 = 16;
/// Others may take a free device between the question and the answer.
const TRIES: u32 = 32;

#[repr(C)]
struct LoopInfo64 {
    device: u64,
    inode: u64,
    rdevice: u64,
    offset: u64,
    size_limit: u64,
    number: u32,
    encrypt_type: u32,
    encrypt_key_size: u32,
    flags: u32,
    file_name: [u8; 64],
    crypt_name: [u8; 64],
    encrypt_key: [u8; 32],
    init: [u64; 2],
}

#[repr(C)]
struct LoopConfig {
    fd: u32,
    block_size: u32,
    info: LoopInfo64,
    reserved: [u64; 8],
}

/// A device with a file behind it, for as long as it is open or mounted.
pub struct LoopDevice {
    pub path: String,
    _device: OwnedFd,
}

/// The device that has the file behind it already, or a new one. It may be mounted where nobody looks, in another mount namespace: a filesystem
/// that is mounted through two devices at once destroys itself.
pub fn attach(file: impl AsFd) -> Result<LoopDevice> {
    let of_file = rustix::fs::fstat(&file)?;
    for path in paths() {
        let Ok(device) = open(&path) else { continue };
        if behind(&device) == Some((of_file.st_dev, of_file.st_ino)) {
            return Ok(LoopDevice { path, _device: device });
        }
    }
    let control = open("/dev/loop-control")?;
    for _ in 0..TRIES {
        // SAFETY: no memory is passed.
        let number = unsafe { libc::ioctl(control.as_raw_fd(), LOOP_CTL_GET_FREE) };
        if number < 0 {
            return Err(last_errno());
        }
        let path = format!("/dev/loop{number}");
        let device = open(&path)?;
        match configure(&device, file.as_fd().as_raw_fd()) {
            Ok(()) => return Ok(LoopDevice { path, _device: device }),
            Err(Errno::BUSY) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::BUSY)
}

fn paths() -> Vec<String> {
    let Ok(entries) = std::fs::read_dir("/sys/block") else { return Vec::new() };
    let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
    names.filter(|name| name.starts_with("loop")).map(|name| format!("/dev/{name}")).collect()
}

/// Device and inode of the file behind a loop device; `None` without one.
fn behind(device: &OwnedFd) -> Option<(u64, u64)> {
    // SAFETY: all members are numbers, for which zeroes are valid.
    let mut info: LoopInfo64 = unsafe { std::mem::zeroed() };
    // SAFETY: the structure is the one that this request fills.
    let asked = unsafe { libc::ioctl(device.as_raw_fd(), LOOP_GET_STATUS64, &raw mut info) };
    (asked == 0).then_some((info.device, info.inode))
}

fn open(path: &str) -> Result<OwnedFd> {
    openat(CWD, path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())
}

fn configure(device: &OwnedFd, file: i32) -> Result<()> {
    // SAFETY: all members are numbers, for which zeroes are valid.
    let mut config: LoopConfig = unsafe { std::mem::zeroed() };
    config.fd = file as u32;
    config.info.flags = LO_FLAGS_AUTOCLEAR | LO_FLAGS_DIRECT_IO;
    // SAFETY: the structure is the one that this request reads.
    if unsafe { libc::ioctl(device.as_raw_fd(), LOOP_CONFIGURE, &raw const config) } < 0 {
        Err(last_errno())
    } else {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::fs::File;

    use super::*;

    #[test]
    fn a_file_gets_one_device_however_often_it_is_attached() {
        let path = std::env::temp_dir().join(format!("dsec-loop-{}", std::process::id()));
        let file = File::options().read(true).write(true).create_new(true).open(&path).expect("a file");
        std::fs::remove_file(&path).expect("removed");
        file.set_len(1 << 20).expect("a size");
        let first = attach(&file).expect("a device");
        let second = attach(&file).expect("the same device");
        assert_eq!(first.path, second.path);
    }
}
