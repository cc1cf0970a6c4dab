//! Reads command lines. They are in the memory of their process, which the process can keep the kernel from looking into for a while (a lock that is held while
//! mappings are changed or copied; before Linux 4.17, files that it serves itself). So a process of its own reads them, which can be done without.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair};
use rustix::process::{Signal, pidfd_send_signal};

use super::bounds::{ARGV_PATIENCE, MAX_ARGV_BYTES, MAX_STUCK_READERS};
use crate::sys::clone::{self, Fork, Process, Reaped};
use crate::sys::{Errno, Result, process};

const SOCKET: i32 = 3;
const PROC: i32 = 4;
/// An answer begins with the number of the process that was asked about.
const ID: usize = size_of::<u32>();

pub struct ArgvReader {
    reader: Option<(OwnedFd, Process)>,
    /// Killed, and not gone yet.
    stuck: Vec<Process>,
}

/// It took too long.
pub struct Late;

impl ArgvReader {
    /// Begun ahead: the first question may be of somebody who is in a hurry to end.
    pub fn start(proc: BorrowedFd<'_>) -> Self {
        Self { reader: start(proc).ok(), stuck: Vec::new() }
    }

    /// The command line of a process, not taken apart; nothing where there is none to be had.
    pub fn read(&mut self, proc: BorrowedFd<'_>, id: u32) -> std::result::Result<Vec<u8>, Late> {
        self.stuck.retain(|process| clone::reap(process.pidfd.as_fd()) == Reaped::Alive);
        if self.reader.is_none() && self.stuck.len() < MAX_STUCK_READERS {
            self.reader = start(proc).ok();
        }
        let Some((socket, _)) = &self.reader else { return Ok(Vec::new()) };
        match ask(socket, id) {
            Ok(text) => Ok(text),
            Err(errno) => {
                if let Some((_, process)) = self.reader.take() {
                    // Gone already is what is wanted.
                    let _ = pidfd_send_signal(&process.pidfd, Signal::KILL);
                    self.stuck.push(process);
                }
                if errno == Errno::TIMEDOUT { Err(Late) } else { Ok(Vec::new()) }
            }
        }
    }
}

fn ask(socket: &OwnedFd, id: u32) -> Result<Vec<u8>> {
    let until = Instant::now() + ARGV_PATIENCE;
    send(socket, &id.to_le_bytes(), SendFlags::NOSIGNAL)?;
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left == Duration::ZERO {
            return Err(Errno::TIMEDOUT);
        }
        let timeout = Timespec { tv_sec: left.as_secs() as i64, tv_nsec: i64::from(left.subsec_nanos()) };
        match poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout)) {
            Ok(0) | Err(Errno::INTR) => continue,
            Ok(_) => {}
            Err(errno) => return Err(errno),
        }
        let mut answer = vec![0; ID + MAX_ARGV_BYTES];
        let (length, _) = recv(socket, answer.as_mut_slice(), RecvFlags::DONTWAIT)?;
        if length < ID || answer[..ID] != id.to_le_bytes() {
            return Err(Errno::PROTO);
        }
        answer.truncate(length);
        return Ok(answer.split_off(ID));
    }
}

fn start(proc: BorrowedFd<'_>) -> Result<(OwnedFd, Process)> {
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the observer has one thread.
    match unsafe { clone::fork(0, None) }? {
        Fork::Parent(process) => Ok((near, process)),
        Fork::Child => {
            let outcome = become_reader(far.as_fd(), proc).and_then(|()| serve());
            process::exit_now(i32::from(outcome.is_err()))
        }
    }
}

/// It may read what everybody may, and holds nothing that anybody waits for.
fn become_reader(socket: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> Result<()> {
    let socket = process::above_fixed(socket.as_raw_fd())?;
    let proc = process::above_fixed(proc.as_raw_fd())?;
    process::place_fd(socket, SOCKET, true)?;
    process::place_fd(proc, PROC, true)?;
    process::close_from(PROC + 1)?;
    process::die_with_parent()?;
    process::keep_only_capabilities(&[])
}

fn serve() -> Result<()> {
    let (socket, proc) = (process::borrow_fixed(SOCKET), process::borrow_fixed(PROC));
    let mut question = [0; ID];
    let mut answer = [0; ID + MAX_ARGV_BYTES];
    loop {
        match recv(socket, question.as_mut_slice(), RecvFlags::empty()) {
            Err(Errno::INTR) => continue,
            Ok((ID, _)) => {}
            _ => return Ok(()),
        }
        let path = format!("{}/cmdline", u32::from_le_bytes(question));
        let length = openat(proc, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
            .and_then(|file| rustix::io::read(&file, &mut answer[ID..]))
            .unwrap_or(0);
        answer[..ID].copy_from_slice(&question);
        send(socket, &answer[..ID + length], SendFlags::NOSIGNAL)?;
    }
}
