//! What is asked of rtnetlink(7): devices, addresses, neighbours, routes, rules.

pub mod devices;
pub mod filters;
pub mod message;
pub mod paths;

use std::os::fd::{AsFd, BorrowedFd};

use crate::sys::netlink_socket::NetlinkSocket;
use crate::sys::{Errno, Result};
use message::{Batch, Received};

/// A datagram of the kernel is at most this long.
const BUFFER_BYTES: usize = 64 << 10;

/// Asks, in the network namespace that the thread was in when it was opened.
pub struct Netlink {
    socket: NetlinkSocket,
    buffer: Vec<u8>,
    next_sequence: u32,
}

impl Netlink {
    pub fn open() -> Result<Self> {
        Ok(Self { socket: NetlinkSocket::open(0)?, buffer: vec![0; BUFFER_BYTES], next_sequence: 1 })
    }

    /// Asks for all of these, one after another; there is one at least. The first that the kernel refuses is the error, with its place; those after it may have been done.
    pub fn ask(&mut self, batch: Batch) -> std::result::Result<(), (usize, Errno)> {
        let mut batch = batch.answered_once();
        let first = self.next_sequence;
        let count = batch.number(first);
        self.next_sequence = first.wrapping_add(count);
        self.socket.send(batch.bytes()).map_err(|errno| (0, errno))?;
        let mut refused = None;
        loop {
            let length = self.socket.receive(&mut self.buffer, true).map_err(|errno| (0, errno))?;
            for received in message::read(&self.buffer[..length]) {
                let Received::Acknowledged { sequence, errno } = received else { continue };
                let place = sequence.wrapping_sub(first);
                if place >= count {
                    continue;
                }
                if let Some(errno) = errno
                    && refused.is_none()
                {
                    refused = Some((place as usize, errno));
                }
                // The kernel answers in order.
                if place + 1 == count {
                    return refused.map_or(Ok(()), Err);
                }
            }
        }
    }

    /// Asks for one thing.
    pub fn ask_one(&mut self, batch: Batch) -> Result<()> {
        self.ask(batch).map_err(|(_, errno)| errno)
    }

    /// All objects that a request names.
    pub fn list(&mut self, mut batch: Batch) -> Result<Vec<(u16, Vec<u8>)>> {
        let first = self.next_sequence;
        self.next_sequence = first.wrapping_add(batch.number(first));
        self.socket.send(batch.bytes())?;
        let mut objects = Vec::new();
        loop {
            let length = self.socket.receive(&mut self.buffer, true)?;
            for received in message::read(&self.buffer[..length]) {
                match received {
                    Received::Object { kind, payload } => objects.push((kind, payload.to_vec())),
                    Received::Done | Received::Acknowledged { errno: None, .. } => return Ok(objects),
                    Received::Acknowledged { errno: Some(errno), .. } => return Err(errno),
                }
            }
        }
    }
}

/// Hears of devices that go.
pub struct Watch {
    socket: NetlinkSocket,
    buffer: Vec<u8>,
}

pub enum Heard {
    Nothing,
    /// Indexes of devices that are gone.
    Gone(Vec<u32>),
    /// More happened than was kept: whoever needs to know has to look.
    Lost,
}

impl Watch {
    pub fn open() -> Result<Self> {
        let groups = libc::RTMGRP_LINK as u32;
        Ok(Self { socket: NetlinkSocket::open(groups)?, buffer: vec![0; BUFFER_BYTES] })
    }

    /// Without waiting.
    pub fn hear(&mut self) -> Heard {
        let length = match self.socket.receive(&mut self.buffer, false) {
            Ok(length) => length,
            Err(Errno::AGAIN | Errno::INTR) => return Heard::Nothing,
            Err(_) => return Heard::Lost,
        };
        let gone = message::read(&self.buffer[..length]).filter_map(|received| match received {
            Received::Object { kind: libc::RTM_DELLINK, payload } => devices::index_of(payload),
            _ => None,
        });
        Heard::Gone(gone.collect())
    }
}

impl AsFd for Watch {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
