//! Files of a group, reached from a directory that is held open.

use std::os::fd::{AsFd, OwnedFd};

use rustix::fs::{Dir, FileType, Mode, OFlags, openat};

use crate::sys::{Errno, Result};

/// Files of a group are short; what is beyond is not needed.
const READ_LIMIT: usize = 256 << 10;

pub fn open_directory(parent: impl AsFd, name: &str) -> Result<OwnedFd> {
    openat(parent, name, OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())
}

pub fn open_for_write(parent: impl AsFd, group: &str, file: &str) -> Result<OwnedFd> {
    openat(parent, format!("{group}/{file}"), OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty())
}

pub fn open_for_read(parent: impl AsFd, group: &str, file: &str) -> Result<OwnedFd> {
    openat(parent, format!("{group}/{file}"), OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

/// Writes the whole value in one call, as such files want it.
pub fn write_file(fd: impl AsFd, text: &str) -> Result<()> {
    match rustix::io::write(fd, text.as_bytes())? {
        written if written == text.len() => Ok(()),
        _ => Err(Errno::IO),
    }
}

pub fn write(parent: impl AsFd, group: &str, file: &str, text: &str) -> Result<()> {
    write_file(open_for_write(parent, group, file)?, text)
}

pub fn read(parent: impl AsFd, group: &str, file: &str) -> Result<String> {
    let opened = open_for_read(parent, group, file)?;
    let mut bytes = vec![0; 4 << 10];
    let mut length = 0;
    loop {
        let count = rustix::io::read(&opened, &mut bytes[length..])?;
        length += count;
        if count == 0 || length >= READ_LIMIT {
            break;
        }
        bytes.resize(length + (4 << 10), 0);
    }
    bytes.truncate(length);
    String::from_utf8(bytes).map_err(|_| Errno::INVAL)
}

pub fn read_number(parent: impl AsFd, group: &str, file: &str) -> Result<u64> {
    read(parent, group, file)?.trim().parse().map_err(|_| Errno::INVAL)
}

/// The number behind a key in a file of `key value` lines.
pub fn read_key(parent: impl AsFd, group: &str, file: &str, key: &str) -> Result<u64> {
    let text = read(parent, group, file)?;
    let line = text.lines().find_map(|line| line.strip_prefix(key)?.strip_prefix(' ')).ok_or(Errno::NOENT)?;
    line.trim().parse().map_err(|_| Errno::INVAL)
}

/// Names of the directories in a directory.
pub fn directories(parent: impl AsFd) -> Vec<String> {
    let Ok(entries) = Dir::read_from(parent) else { return Vec::new() };
    let named =
        |name: &std::ffi::CStr| name.to_str().ok().filter(|name| !matches!(*name, "." | "..")).map(str::to_owned);
    entries
        .filter_map(|entry| entry.ok())
        .filter(|entry| entry.file_type() == FileType::Directory)
        .filter_map(|entry| named(entry.file_name()))
        .collect()
}
