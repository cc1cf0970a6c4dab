//! Removes devices. Each waits for the kernel, longer than others may wait for us: so it has a thread of its own.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use rustix::event::{EventfdFlags, PollFd, PollFlags, Timespec, eventfd, poll};

use crate::netlink::{Netlink, devices};
use crate::sys::{Errno, Result};

/// Devices that go together: others ask the kernel for devices meanwhile.
const MAX_AT_ONCE: usize = 64;

pub struct Remover {
    orders: Sender<u32>,
    removed: Receiver<(u32, Result<()>)>,
    signal: OwnedFd,
}

impl Remover {
    /// Starts it, in the network namespace of the calling thread. Nobody else puts devices into `group`.
    pub fn start(group: u32) -> Result<Self> {
        let (orders, received) = channel::<u32>();
        let (done, removed) = channel();
        let signal = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?;
        let (mut netlink, far) = (Netlink::open()?, signal.try_clone().map_err(|_| Errno::MFILE)?);
        let thread = std::thread::Builder::new().name("remover".to_owned());
        let started = thread.spawn(move || {
            while let Ok(first) = received.recv() {
                let indexes: Vec<u32> =
                    std::iter::once(first).chain(received.try_iter().take(MAX_AT_ONCE - 1)).collect();
                let outcomes = delete(&mut netlink, &indexes, group);
                for done_one in indexes.into_iter().zip(outcomes) {
                    if done.send(done_one).is_err() {
                        return;
                    }
                }
                // Full: then it is readable anyway.
                let _ = rustix::io::write(&far, &1u64.to_ne_bytes());
            }
        });
        started.map_err(|_| Errno::AGAIN)?;
        Ok(Self { orders, removed, signal })
    }

    /// Waits until something is done. Whether it is.
    pub fn wait(&self, within: Duration) -> bool {
        let within = Timespec { tv_sec: within.as_secs() as i64, tv_nsec: i64::from(within.subsec_nanos()) };
        matches!(poll(&mut [PollFd::new(&self.signal, PollFlags::IN)], Some(&within)), Ok(1..) | Err(Errno::INTR))
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

/// Several go together: the kernel waits once for all of them. What becomes of each.
fn delete(netlink: &mut Netlink, indexes: &[u32], group: u32) -> Vec<Result<()>> {
    let gone = |outcome: Result<()>| if outcome == Err(Errno::NODEV) { Ok(()) } else { outcome };
    if let [index] = indexes {
        return vec![gone(netlink.ask_one(devices::delete(*index)))];
    }
    let grouped: Vec<Result<()>> =
        indexes.iter().map(|index| netlink.ask_one(devices::set_group(*index, group))).collect();
    let deleted = gone(netlink.ask_one(devices::delete_group(group)));
    grouped.into_iter().map(|outcome| outcome.map_or_else(|errno| gone(Err(errno)), |()| deleted)).collect()
}

impl AsFd for Remover {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.signal.as_fd()
    }
}
