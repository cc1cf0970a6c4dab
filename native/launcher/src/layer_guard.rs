//! What keeps data of layers that are not filled yet from being read as zeros.
//!
//! The kernel lets every read through once the last descriptor of layerd's fanotify group is closed. So the launcher holds the group too, and all else
//! that a layerd needs in order to go on: when all processes of layerd are killed at once, readers wait until there is another, which gets here
//! what the dead ones held. Data are marked here as well before they are mounted: of a layer that layerd does not know, reads fail.
//!
//! The launcher only holds: it neither takes events nor answers them. What passes over `run/launcher.keep` and `run/layerd.keep`: docs/wire.md.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::fs::{Access, AtFlags, Mode, OFlags, accessat, openat};
use rustix::net::sockopt::{Timeout, set_socket_timeout, socket_peercred};
use rustix::net::{SendFlags, SocketFlags, SocketType, accept_with, send};

use crate::failure::{Failure, errno_name};
use crate::request::Digest;
use crate::sys::{Errno, Result, fanotify};
use daemon::socket;

const NAME: &str = "launcher.keep";
const LAYERD: &str = "layerd.keep";
const BACKLOG: i32 = 16;
const COPY: &[u8] = b"copy 1";
const GROUP: &[u8] = b"group 1";
const NOTHING: &[u8] = b"nothing";
/// Group, shared memory, and the listeners of `layerd.sock` and `layerd.keep`.
const HELD: usize = 4;
/// A layerd that begins asks here first; from then on, and from the start of the launcher, what it holds is asked for so often and so long.
const RETRY_PERIOD: Duration = Duration::from_millis(100);
const RETRY_FOR: Duration = Duration::from_secs(30);
/// How long a layerd may take to hand out copies, where a create waits for them; it waits for nothing else.
const PATIENCE: Duration = Duration::from_secs(2);
/// The same where nothing does, and all else waits meanwhile.
const IDLE_PATIENCE: Duration = Duration::from_millis(100);

pub struct LayerGuard {
    run: OwnedFd,
    listener: OwnedFd,
    held: Option<[OwnedFd; HELD]>,
    retry_at: Instant,
    retry_until: Instant,
}

impl LayerGuard {
    /// Takes what a layerd that lives has. The listener comes first: a layerd that begins in between then asks here.
    pub fn open(run: OwnedFd, now: Instant) -> Result<Self> {
        let listener = socket::listen_at(run.as_fd(), NAME, SocketType::SEQPACKET, (0, 0), BACKLOG)?;
        let mut guard = Self { run, listener, held: None, retry_at: now, retry_until: now + RETRY_FOR };
        guard.advance(now);
        Ok(guard)
    }

    pub fn listener(&self) -> BorrowedFd<'_> {
        self.listener.as_fd()
    }

    fn take(&mut self, patience: Duration) -> Result<()> {
        let socket = socket::connect_at(self.run.as_fd(), LAYERD, SocketType::SEQPACKET)?;
        set_socket_timeout(&socket, Timeout::Recv, Some(patience))?;
        send(&socket, COPY, SendFlags::NOSIGNAL)?;
        let (_, fds) = socket::receive_with_fds(&socket, &mut [0; 16])?;
        self.held = Some(fds.try_into().map_err(|_| Errno::PROTO)?);
        Ok(())
    }

    /// Takes what a layerd holds that was not there before. Returns when to try again.
    pub fn advance(&mut self, now: Instant) -> Option<Duration> {
        if self.held.is_some() || now >= self.retry_until {
            return None;
        }
        if now >= self.retry_at {
            if self.take(IDLE_PATIENCE).is_ok() {
                return None;
            }
            self.retry_at = now + RETRY_PERIOD;
        }
        Some(self.retry_at - now)
    }

    /// Gives copies to a layerd that begins and asks.
    pub fn give(&mut self, now: Instant) {
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        if socket_peercred(&socket).map(|peer| peer.uid.as_raw()) != Ok(0) {
            return;
        }
        // Who does not get it hears that the connection is closed, and asks again.
        let _ = match &self.held {
            Some(held) => socket::send_with_fds(&socket, GROUP, &held.each_ref().map(AsFd::as_fd)),
            None => {
                self.retry_at = now;
                self.retry_until = now + RETRY_FOR;
                socket::send_with_fds(&socket, NOTHING, &[])
            }
        };
    }

    /// Sees to it that nobody who opens the layer's data from here on reads what is not filled. Must come before every mount of them.
    pub fn protect(&mut self, layers: BorrowedFd<'_>, digest: &Digest) -> std::result::Result<(), Failure> {
        if !is_filled_on_demand(layers, digest).map_err(|errno| unprotected(digest, errno))? {
            return Ok(());
        }
        if self.held.is_none() {
            self.take(PATIENCE).map_err(|errno| unprotected(digest, errno))?;
        }
        let Some([group, ..]) = &self.held else { return Err(unprotected(digest, Errno::BADF)) };
        let flags = OFlags::DIRECTORY | OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        openat(layers, digest.hex(), flags, Mode::empty())
            .and_then(|directory| fanotify::mark(group, directory, c"data"))
            .map_err(|errno| unprotected(digest, errno))
    }
}

/// A layer that was built here has no chunk map, and all of its data.
fn is_filled_on_demand(layers: BorrowedFd<'_>, digest: &Digest) -> Result<bool> {
    for name in ["chunks", "data"] {
        match accessat(layers, format!("{}/{name}", digest.hex()), Access::EXISTS, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(()) => {}
            Err(Errno::NOENT) => return Ok(false),
            Err(errno) => return Err(errno),
        }
    }
    Ok(true)
}

fn unprotected(digest: &Digest, errno: Errno) -> Failure {
    Failure::new("unavailable", format!("nobody fills the layer {digest} on demand now"))
        .with("layer", digest.to_string())
        .with("errno", errno_name(errno))
}
