//! Removes devices. Each waits for the kernel, longer than others may wait for us: so it has a thread of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};

use rustix::event::{EventfdFlags, eventfd};

use crate::netlink::{Netlink, devices};
use crate::sys::{Errno, Result};

pub struct Remover {
    orders: Sender<u32>,
    removed: Receiver<(u32, Result<()>)>,
    signal: OwnedFd,
}

impl Remover {
    /// Starts it, in the network namespace of the calling thread.
    pub fn start() -> Result<Self> {
        let (orders, received) = channel::<u32>();
        let (done, removed) = channel();
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (mut netlink, far) = (Netlink::open()?, signal.try_clone().map_err(|_| Errno::MFILE)?);
        let thread = std::thread::Builder::new().name("remover".to_owned());
        let started = thread.spawn(move || {
            for index in received {
                let outcome = match netlink.ask_one(devices::delete(index)) {
                    Err(Errno::NODEV) => Ok(()),
                    other => other,
                };
                if done.send((index, outcome)).is_err() {
                    return;
                }
                // Full: then it is readable anyway.
                let _ = rustix::io::write(&far, &1u64.to_ne_bytes());
            }
        });
        started.map_err(|_| Errno::AGAIN)?;
        Ok(Self { orders, removed, signal })
    }

    /// There are never more than uplinks.
    pub fn order(&self, index: u32) {
        // The thread lives as long as this.
        let _ = self.orders.send(index);
    }

    /// What was done since.
    pub fn take(&self) -> Vec<(u32, Result<()>)> {
        let _ = rustix::io::read(&self.signal, &mut [0; 8]);
        self.removed.try_iter().collect()
    }
}

impl AsFd for Remover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}
