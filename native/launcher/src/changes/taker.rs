//! The process that takes the changes of one sandbox: it holds the sandbox still, takes a snapshot of its writable layer, lets it go on, gives up
//! nearly everything that it may do, and sends the snapshot to whoever connects.

use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, openat};
use rustix::net::{SendFlags, SocketFlags, accept_with, send, sockopt};

use super::filter;
use super::report::{Report, Stage};
use super::walk::{self, Sink};
use crate::cgroup::Cgroups;
use crate::sys::{Errno, Result, confinement, process};
use crate::volume::Volume;

/// How long a sandbox may take to stand still.
const FREEZE_PATIENCE: Duration = Duration::from_secs(2);
/// How often that is looked at. No event tells: v1 has none, and v2 delays changes of cgroup.events by up to 10 ms (CGROUP_FILE_NOTIFY_MIN_INTV), longer than
/// most sandboxes are to stand still.
const FREEZE_PAUSE: Duration = Duration::from_micros(200);
/// How long the reader may take to connect, and to take anything.
const READER_PATIENCE: Duration = Duration::from_secs(60);
/// Gives way to whoever serves a request.
const NICE: i32 = 10;

const CHANNEL: i32 = 3;
const LISTENER: i32 = 4;
const TREE: i32 = 5;
const FREEZER: i32 = 6;

/// What the process is to do.
pub struct Order<'a> {
    pub cgroups: &'a Cgroups,
    pub volume: &'a Volume,
    /// Of the sandbox, in cgroups and on the volume.
    pub slot_name: &'a str,
    /// What the snapshot is to be called.
    pub snapshot: &'a str,
    /// The host's id behind root of the sandbox.
    pub root_uid: u32,
    pub listener: BorrowedFd<'a>,
    pub channel: BorrowedFd<'a>,
    /// Somebody else has it stand still already, and will let it go on.
    pub is_frozen: bool,
}

/// Does it, and ends.
pub fn run(order: &Order<'_>) -> ! {
    let report = attempt(order).unwrap_or_else(|report| report);
    // Whoever should hear of it is gone when this fails.
    let _ = rustix::io::write(process::borrow_fixed(CHANNEL), &report.encode());
    process::exit_now(0)
}

fn attempt(order: &Order<'_>) -> std::result::Result<Report, Report> {
    let failed = |stage| move |errno| Report::Failed { stage, errno, path: Vec::new() };
    let still = hold(order).map_err(|(stage, errno)| {
        // `run` reports on the channel's fixed number.
        let _ = process::place_fd(order.channel.as_raw_fd(), CHANNEL, true);
        failed(stage)(errno)
    })?;
    let is_held = still.freezer.is_some();
    let (frozen_for, given_up) = (still.frozen_for, give_up(order, &still));
    // Its descriptors have other numbers now; the old ones are closed or somebody else's.
    std::mem::forget(still);
    given_up.map_err(failed(Stage::Confine))?;
    let tree = process::borrow_fixed(TREE);
    let outcome = serve(tree, order.root_uid, frozen_for);
    if is_held {
        let _ = crate::cgroup::write_file(process::borrow_fixed(FREEZER), order.cgroups.thawed_word());
    }
    outcome
}

/// A tree that nothing changes.
struct Still {
    tree: OwnedFd,
    frozen_for: Duration,
    /// Lets the sandbox go on; absent when it does already, or when that is not for this process to do.
    freezer: Option<OwnedFd>,
}

/// Where the volume has snapshots, the sandbox stands still only for the making of one. Elsewhere it does until all is read.
fn hold(order: &Order<'_>) -> std::result::Result<Still, (Stage, Errno)> {
    let begun = Instant::now();
    let freezer = order.cgroups.open_freezer(order.slot_name).map_err(|errno| (Stage::Freeze, errno))?;
    let thaw = || {
        if !order.is_frozen {
            // A group that is gone has nobody to thaw.
            let _ = crate::cgroup::write_file(&freezer, order.cgroups.thawed_word());
        }
    };
    if !order.is_frozen {
        freeze(order).map_err(|errno| {
            thaw();
            (Stage::Freeze, errno)
        })?;
    }
    let made = match order.volume.snapshot(order.slot_name, order.snapshot) {
        Ok(true) => order.volume.open_data(order.snapshot).map(|tree| (tree, true)),
        Ok(false) => order.volume.open_data(order.slot_name).map(|tree| (tree, false)),
        Err(errno) => Err(errno),
    };
    match made {
        Ok((tree, true)) => {
            thaw();
            Ok(Still { tree, frozen_for: begun.elapsed(), freezer: None })
        }
        Ok((tree, false)) => {
            Ok(Still { tree, frozen_for: Duration::ZERO, freezer: (!order.is_frozen).then_some(freezer) })
        }
        Err(errno) => {
            thaw();
            Err((Stage::Snapshot, errno))
        }
    }
}

fn freeze(order: &Order<'_>) -> Result<()> {
    let until = Instant::now() + FREEZE_PATIENCE;
    order.cgroups.freeze(order.slot_name)?;
    while !order.cgroups.is_frozen(order.slot_name)? {
        if Instant::now() >= until {
            return Err(Errno::TIMEDOUT);
        }
        std::thread::sleep(FREEZE_PAUSE);
    }
    Ok(())
}

/// Keeps four descriptors, the tree as its root, two capabilities (to read every file, and to see what the overlay wrote down) and the system
/// calls of reading and sending.
fn give_up(order: &Order<'_>, still: &Still) -> Result<()> {
    let mut placed = vec![(order.channel, CHANNEL), (order.listener, LISTENER), (still.tree.as_fd(), TREE)];
    placed.extend(still.freezer.as_ref().map(|freezer| (freezer.as_fd(), FREEZER)));
    let count = placed.len() as i32;
    let above = placed
        .into_iter()
        .map(|(fd, at)| process::above_fixed(fd.as_raw_fd()).map(|fd| (fd, at)))
        .collect::<Result<Vec<_>>>()?;
    for (fd, at) in above {
        process::place_fd(fd, at, true)?;
    }
    process::close_from(CHANNEL + count)?;
    // The launcher goes: nobody is left to remove the snapshot. Has it gone before, nobody hears that this process is ready, which ends it too.
    process::die_with_parent()?;
    // Not allowed to be nice is no reason to stop.
    let _ = rustix::process::nice(NICE);
    rustix::process::fchdir(process::borrow_fixed(TREE))?;
    rustix::process::chroot(".")?;
    process::keep_only_capabilities(&[process::CAP_DAC_READ_SEARCH, process::CAP_SYS_ADMIN])?;
    confinement::filter_system_calls(&filter::program())
}

struct Socket(OwnedFd);

impl Sink for Socket {
    fn send(&mut self, mut bytes: &[u8]) -> Result<()> {
        while !bytes.is_empty() {
            match send(&self.0, bytes, SendFlags::NOSIGNAL) {
                Ok(count) => bytes = &bytes[count..],
                Err(Errno::INTR) => {}
                Err(errno) => return Err(errno),
            }
        }
        Ok(())
    }
}

fn serve(tree: BorrowedFd<'_>, root_uid: u32, frozen_for: Duration) -> std::result::Result<Report, Report> {
    let failed = |stage| move |errno| Report::Failed { stage, errno, path: Vec::new() };
    let ready = Report::Ready { frozen_us: u64::try_from(frozen_for.as_micros()).unwrap_or(u64::MAX) };
    rustix::io::write(process::borrow_fixed(CHANNEL), &ready.encode()).map_err(failed(Stage::Connect))?;
    let mut socket = connected().map_err(failed(Stage::Connect))?;
    let root = openat(tree, ".", OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())
        .map_err(failed(Stage::Read))?;
    match walk::send(root, root_uid, &mut socket) {
        Ok(sent) => Ok(Report::Done(sent)),
        Err(stopped) => Err(Report::Failed {
            stage: if stopped.is_sending { Stage::Send } else { Stage::Read },
            errno: stopped.errno,
            path: stopped.path,
        }),
    }
}

/// The first to connect is the only one.
fn connected() -> Result<Socket> {
    let listener = process::borrow_fixed(LISTENER);
    let patience = Timespec { tv_sec: READER_PATIENCE.as_secs() as i64, tv_nsec: 0 };
    let mut wanted = [PollFd::from_borrowed_fd(listener, PollFlags::IN)];
    if poll(&mut wanted, Some(&patience))? == 0 {
        return Err(Errno::TIMEDOUT);
    }
    let socket = accept_with(listener, SocketFlags::CLOEXEC)?;
    sockopt::set_socket_timeout(&socket, sockopt::Timeout::Send, Some(READER_PATIENCE))?;
    Ok(Socket(socket))
}
