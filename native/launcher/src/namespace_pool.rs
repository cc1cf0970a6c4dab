//! Pairs of user and network namespace that a helper process makes ahead, each for one slot. Where the pool is empty, the new process of a sandbox
//! makes its own.

use std::collections::VecDeque;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};

use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use crate::namespaces::{self, Namespaces};
use crate::sys::clone::{self, Fork, Process};
use crate::sys::{Errno, Result, process};
use daemon::socket;

/// Pairs that the helper is asked for ahead of its answers.
const MAX_REQUESTED: usize = 4;
/// The helper gives way to whoever serves a request.
const HELPER_NICE: i32 = 10;

const HELPER_SOCKET: i32 = 3;
const HELPER_PROC: i32 = 4;

pub struct Ready {
    pub slot: u32,
    pub namespaces: Namespaces,
}

pub struct NamespacePool {
    wanted: usize,
    ready: VecDeque<Ready>,
    requested: Vec<u32>,
    helper: Option<Helper>,
}

struct Helper {
    socket: OwnedFd,
    /// Reaped when the launcher ends; the helper ends with its socket.
    _process: Process,
}

/// What the helper has said.
pub enum Answer {
    Ready,
    /// It could not make this pair: the slot is free again.
    Failed(u32, Errno),
    /// It is gone: its socket, and the slots that it was asked for, which are free again.
    Gone(OwnedFd, Vec<u32>),
    Nothing,
}

impl NamespacePool {
    /// Starts the helper, unless nothing is to be made ahead.
    pub fn start(wanted: usize, proc: BorrowedFd<'_>) -> Result<Self> {
        let helper = if wanted == 0 { None } else { Some(start_helper(proc)?) };
        Ok(Self { wanted, ready: VecDeque::new(), requested: Vec::new(), helper })
    }

    pub fn socket(&self) -> Option<BorrowedFd<'_>> {
        self.helper.as_ref().map(|helper| helper.socket.as_fd())
    }

    pub fn take(&mut self) -> Option<Ready> {
        self.ready.pop_front()
    }

    /// Whether one more pair should be asked for.
    pub fn wants_more(&self) -> bool {
        self.helper.is_some()
            && self.ready.len() + self.requested.len() < self.wanted
            && self.requested.len() < MAX_REQUESTED
    }

    pub fn ask(&mut self, slot: u32, root_uid: u32) -> Result<()> {
        let Some(helper) = &self.helper else { return Err(Errno::NOTCONN) };
        let mut message = [0; 8];
        message[..4].copy_from_slice(&slot.to_le_bytes());
        message[4..].copy_from_slice(&root_uid.to_le_bytes());
        socket::send_with_fds(&helper.socket, &message, &[])?;
        self.requested.push(slot);
        Ok(())
    }

    /// Takes one answer.
    pub fn receive(&mut self) -> Answer {
        let Some(helper) = &self.helper else { return Answer::Nothing };
        let mut message = [0; 8];
        let (length, fds) = match socket::receive_with_fds(&helper.socket, &mut message) {
            Err(Errno::AGAIN | Errno::INTR) => return Answer::Nothing,
            Err(_) => (0, Vec::new()),
            Ok(received) => received,
        };
        if length != message.len() {
            return match self.helper.take() {
                Some(helper) => Answer::Gone(helper.socket, std::mem::take(&mut self.requested)),
                None => Answer::Nothing,
            };
        }
        let [slot, errno] =
            [0, 4].map(|at| u32::from_le_bytes([message[at], message[at + 1], message[at + 2], message[at + 3]]));
        self.requested.retain(|requested| *requested != slot);
        match <[OwnedFd; 2]>::try_from(fds) {
            Ok([user, net]) => {
                self.ready.push_back(Ready { slot, namespaces: Namespaces { user, net } });
                Answer::Ready
            }
            Err(_) => Answer::Failed(slot, Errno::from_raw_os_error(errno as i32)),
        }
    }
}

fn start_helper(proc: BorrowedFd<'_>) -> Result<Helper> {
    let (near, far) = socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)?;
    // SAFETY: the launcher has one thread.
    match unsafe { clone::fork(0, None) }? {
        Fork::Parent(process) => {
            rustix::io::ioctl_fionbio(&near, true)?;
            Ok(Helper { socket: near, _process: process })
        }
        Fork::Child => {
            let outcome = keep_only(far.as_fd(), proc)
                .and_then(|()| serve(process::borrow_fixed(HELPER_SOCKET), process::borrow_fixed(HELPER_PROC)));
            process::exit_now(i32::from(outcome.is_err()))
        }
    }
}

/// The helper holds nothing of the launcher: neither its lock nor its clients' connections.
fn keep_only(socket: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> Result<()> {
    let socket = process::above_fixed(socket.as_raw_fd())?;
    let proc = process::above_fixed(proc.as_raw_fd())?;
    process::place_fd(socket, HELPER_SOCKET, true)?;
    process::place_fd(proc, HELPER_PROC, true)?;
    process::close_from(HELPER_PROC + 1)?;
    // Not allowed to be nice is no reason to stop.
    let _ = rustix::process::nice(HELPER_NICE);
    Ok(())
}

/// The helper: one pair for each message, until the launcher is gone.
fn serve(socket: BorrowedFd<'_>, proc: BorrowedFd<'_>) -> Result<()> {
    loop {
        let mut message = [0; 8];
        let (length, _) = match socket::receive_with_fds(socket, &mut message) {
            Err(Errno::INTR) => continue,
            other => other?,
        };
        if length != message.len() {
            return Ok(());
        }
        let root_uid = u32::from_le_bytes([message[4], message[5], message[6], message[7]]);
        match namespaces::make(proc, root_uid) {
            Ok(made) => socket::send_with_fds(socket, &message, &[made.user.as_fd(), made.net.as_fd()])?,
            Err(errno) => {
                message[4..].copy_from_slice(&errno.raw_os_error().to_le_bytes());
                socket::send_with_fds(socket, &message, &[])?;
            }
        }
    }
}
