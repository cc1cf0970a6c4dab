//! Reading directories in bounded pieces: getdents64 into a buffer of fixed size.

use std::os::fd::{AsRawFd, OwnedFd};

use super::{Errno, retry};

const BUFFER: usize = 8 << 10;

/// Offsets of the fields of `struct linux_dirent64`.
const RECORD_LENGTH: usize = 16;
const TYPE: usize = 18;
const NAME: usize = 19;

#[derive(Debug)]
pub struct DirReader {
    directory: OwnedFd,
    buffer: Box<[u8; BUFFER]>,
    at: usize,
    end: usize,
}

#[derive(Debug)]
pub struct Name<'a> {
    /// Without NUL; never `.` or `..`.
    pub name: &'a [u8],
    /// DT_*; DT_UNKNOWN where the filesystem does not say.
    pub kind: u8,
}

impl DirReader {
    pub fn new(directory: OwnedFd) -> Self {
        Self { directory, buffer: Box::new([0; BUFFER]), at: 0, end: 0 }
    }

    pub fn fd(&self) -> &OwnedFd {
        &self.directory
    }

    pub fn next_name(&mut self) -> Result<Option<Name<'_>>, Errno> {
        loop {
            if self.at >= self.end {
                let fd = self.directory.as_raw_fd();
                // SAFETY: the buffer is valid for BUFFER bytes.
                let n = retry(|| unsafe { libc::syscall(libc::SYS_getdents64, fd, self.buffer.as_mut_ptr(), BUFFER) })?;
                if n == 0 {
                    return Ok(None);
                }
                (self.at, self.end) = (0, n as usize);
            }
            let at = self.at;
            let record = &self.buffer[at..self.end];
            let length =
                usize::from(u16::from_ne_bytes([record[RECORD_LENGTH], record[RECORD_LENGTH + 1]])).max(NAME + 1);
            self.at += length;
            let name = &record[NAME..length.min(record.len())];
            let end = name.iter().position(|&byte| byte == 0).unwrap_or(name.len());
            if !matches!(&name[..end], b"." | b"..") {
                let kind = self.buffer[at + TYPE];
                return Ok(Some(Name { name: &self.buffer[at + NAME..at + NAME + end], kind }));
            }
        }
    }
}
