//! The gate's process: started with its listeners, found again by the next egressd, and ended by `egressd clear` alone, so that flows through it outlive egressd.

use std::net::SocketAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};

use launcher::sys::clone;
use rustix::net::SocketType;
use rustix::process::{Pid, Signal};
use serde::{Deserialize, Serialize};

use crate::block::Block;
use crate::layout::MARK_FROM_GATE;
use crate::place::Place;
use crate::sys::{Errno, Result, process, transparent};
use daemon::failure::errno_name;
use daemon::socket;

const SOCKET_NAME: &str = "gate.sock";
const BACKLOG: i32 = 8;

/// How the gate is started.
pub struct Program {
    pub path: PathBuf,
    /// What is there, opened while this process could go everywhere; `None` when nothing is.
    pub file: Option<OwnedFd>,
    pub port: u16,
    /// Uid and gid.
    pub user: (u32, u32),
}

/// Which process it is, for the next egressd.
#[derive(Deserialize, Serialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct Known {
    pid: i32,
    /// The inode of its pidfd, which no other process of the boot has.
    pid_identity: u64,
}

fn known_path(place: &Place) -> PathBuf {
    place.data.join("run/egress/gate.json")
}

/// A connection to a gate that lives.
pub fn connect(place: &Place) -> Option<OwnedFd> {
    let socket = socket::connect_at(place.egress.as_fd(), SOCKET_NAME, SocketType::STREAM).ok()?;
    rustix::io::ioctl_fionbio(&socket, true).ok()?;
    Some(socket)
}

/// Starts one. Who has its port although nobody answers is no gate any more.
pub fn start(program: &Program, place: &Place, block: &Block) -> std::result::Result<(), String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    end(place).map_err(failed("the gate before"))?;
    let mark = block.mark(MARK_FROM_GATE);
    let listener = |address| transparent::listener(SocketAddr::new(address, program.port), mark);
    let four = listener(block.gateway4()).map_err(failed("the gate's listener"))?;
    let six = match listener(block.gateway6()) {
        Ok(six) => Some(six),
        // A host without IPv6.
        Err(Errno::AFNOSUPPORT | Errno::ADDRNOTAVAIL) => None,
        Err(errno) => return Err(failed("the gate's listener")(errno)),
    };
    let control = socket::listen_at(place.egress.as_fd(), SOCKET_NAME, SocketType::STREAM, (0, 0), BACKLOG)
        .map_err(failed(SOCKET_NAME))?;
    let child = program
        .file
        .as_ref()
        .ok_or_else(|| std::io::ErrorKind::NotFound.into())
        .and_then(|file| process::start_with((&program.path, file), program.user, [Some(four), six, Some(control)]))
        .map_err(|error| format!("{}: {error}", program.path.display()))?;
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw).ok_or("the gate has no number")?;
    let known = clone::open_process(pid)
        .and_then(clone::identity)
        .map(|pid_identity| Known { pid: pid.as_raw_nonzero().get(), pid_identity })
        .map_err(failed("the gate"))?;
    let text = serde_json::to_vec(&known).map_err(|error| error.to_string())?;
    std::fs::write(known_path(place), text).map_err(|error| format!("gate.json: {error}"))?;
    // Its end is noticed by its connection; then it is waited for.
    process::wait_aside(child);
    Ok(())
}

/// Ends the gate of this server, if it lives, and waits for its end.
pub fn end(place: &Place) -> Result<()> {
    let path = known_path(place);
    let known = std::fs::read(&path).ok().and_then(|text| serde_json::from_slice::<Known>(&text).ok());
    if let Some(pid) = known.as_ref().and_then(|known| Pid::from_raw(known.pid))
        && let Ok(gate) = clone::open_process(pid)
        && known.is_some_and(|known| clone::identity(&gate) == Ok(known.pid_identity))
    {
        match rustix::process::pidfd_send_signal(&gate, Signal::KILL) {
            Ok(()) => process::wait_for_end(gate.as_fd()),
            Err(Errno::SRCH) => {}
            Err(errno) => return Err(errno),
        }
    }
    remove(&path);
    Ok(())
}

fn remove(path: &Path) {
    // One that stays names a process that is gone.
    let _ = std::fs::remove_file(path);
}
