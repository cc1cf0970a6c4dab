//! How a new layerd gets the group of one that lives, over `run/layerd.keep`: it asks, gets the descriptors, says that it has them, and then the other ends.
//! The launcher asks there for copies, which it keeps; a layerd that finds no other gets them back over `run/launcher.keep`.

use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use rustix::net::{RecvFlags, SendFlags, SocketFlags, SocketType, accept_with, recv, send};
use serde_json::json;

use super::holder::Holder;
use super::roles::{Role, Roles};
use super::{keep_places, place, shared};
use crate::data_dir::DataDir;
use crate::failure::errno_name;
use crate::options::Serve;
use crate::sys::{Errno, Result, fanotify, process};
use daemon::log::{Level, Log};
use daemon::socket;

const NAME: &str = "layerd.keep";
const LAUNCHER: &str = "launcher.keep";
const CONTROL_NAME: &str = "layerd.sock";
const BACKLOG: i32 = 64;
const PATIENCE: Duration = Duration::from_secs(5);
/// How long a family may take to answer somebody who wants its group.
const TAKE_WAIT: Duration = Duration::from_secs(30);
/// Between two tries to take over. A wait for a lock of bytes has no limit of time, and which of the locks comes free says how to go on.
const PAUSE: Duration = Duration::from_millis(20);
/// Between two looks at whether the one before has ended: as above.
const SUCCEED_PAUSE: Duration = Duration::from_millis(2);
const ASK: &[u8] = b"take 1";
const HAVE: &[u8] = b"have 1";
const COPY: &[u8] = b"copy 1";
const GROUP: &[u8] = b"group 1";

/// `layerd serve`: begins a family, or takes the place of one that lives.
pub fn serve(options: &Serve) -> std::result::Result<(), String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    process::set_name(c"layerd");
    keep_places().map_err(failed("descriptors"))?;
    // Whether it answers does not matter yet, but what is said of it must make sense.
    crate::source::open(&options.blob, options.blob_account.as_deref()).map(drop)?;
    options.peers.as_ref().map(|peers| crate::peer::tls::Tls::read(&peers.tls)).transpose().map(drop)?;
    let options = Serve { data: options.data.canonicalize().map_err(|e| format!("--data: {e}"))?, ..options.clone() };
    let data = DataDir::open(&options.data)?;
    let roles = Roles::open(&data.run).map_err(failed("layerd.lock"))?;
    let until = Instant::now() + TAKE_WAIT;
    loop {
        if roles.is_alone().map_err(failed("layerd.lock"))? {
            // One that does not answer may have a group: then there must be no other.
            match kept(&data).map_err(failed(LAUNCHER))? {
                Some(fds) => {
                    place(fds).map_err(failed("descriptors"))?;
                    shared::Shared::map(super::shared()).map_err(failed("the group of another version"))?;
                }
                None => begin(&options, &data)?,
            }
            roles.join().map_err(failed("layerd.lock"))?;
            roles.take(Role::Holder).map_err(failed("layerd.lock"))?;
            break;
        }
        if let Ok(connection) = ask(&data) {
            place(connection.1).map_err(failed("descriptors"))?;
            shared::Shared::map(super::shared()).map_err(failed("the group of another version"))?;
            roles.join().map_err(failed("layerd.lock"))?;
            let _ = send(&connection.0, HAVE, SendFlags::NOSIGNAL);
            if succeed(&roles).map_err(failed("layerd.lock"))? {
                break;
            }
        }
        if Instant::now() >= until {
            return Err("another layerd lives and does not hand over".to_owned());
        }
        std::thread::sleep(PAUSE);
    }
    let shared = shared::Shared::map(super::shared()).map_err(failed("shared memory"))?;
    shared.pid(Role::Holder).store(std::process::id(), Ordering::Relaxed);
    Holder::new(&options, roles, shared).hold(true)
}

/// Makes a group, and all else that a family has.
fn begin(options: &Serve, data: &DataDir) -> std::result::Result<(), String> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    let owner = (options.edge_uid, options.edge_gid);
    let run = data.run.as_fd();
    place([
        fanotify::new_group().map_err(failed("fanotify"))?,
        shared::create().map_err(failed("shared memory"))?,
        socket::listen_at(run, CONTROL_NAME, SocketType::STREAM, owner, BACKLOG).map_err(failed(CONTROL_NAME))?,
        socket::listen_at(run, NAME, SocketType::SEQPACKET, (0, 0), BACKLOG).map_err(failed(NAME))?,
    ])
    .map_err(failed("descriptors"))
}

fn ask(data: &DataDir) -> Result<(OwnedFd, [OwnedFd; 4])> {
    let socket = socket::connect_at(data.run.as_fd(), NAME, SocketType::SEQPACKET)?;
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    send(&socket, ASK, SendFlags::NOSIGNAL)?;
    let (_, fds) = socket::receive_with_fds(&socket, &mut [0; 16])?;
    Ok((socket, fds.try_into().map_err(|_| Errno::PROTO)?))
}

/// What the launcher holds of a layerd that is gone; nothing when it holds nothing, or does not live.
fn kept(data: &DataDir) -> Result<Option<[OwnedFd; 4]>> {
    let socket = match socket::connect_at(data.run.as_fd(), LAUNCHER, SocketType::SEQPACKET) {
        Err(Errno::NOENT | Errno::CONNREFUSED) => return Ok(None),
        other => other?,
    };
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    let mut answer = [0; 16];
    let (length, fds) = socket::receive_with_fds(&socket, &mut answer)?;
    match (&answer[..length], fds) {
        (GROUP, fds) => fds.try_into().map(Some).map_err(|_| Errno::PROTO),
        // It ends, and with it what it holds.
        ([], _) => Err(Errno::CONNRESET),
        _ => Ok(None),
    }
}

/// Waits until the one before has ended. It may be killed on the way, and its standby take its place.
fn succeed(roles: &Roles) -> Result<bool> {
    let until = Instant::now() + PATIENCE;
    while Instant::now() < until {
        if roles.try_take(Role::Holder)? {
            return Ok(true);
        }
        std::thread::sleep(SUCCEED_PAUSE);
    }
    Ok(false)
}

/// Answers one who asks for the group; whether it has taken it over.
pub fn give(log: &Log) -> bool {
    match give_group() {
        Ok(is_given) => is_given,
        Err(Errno::AGAIN) => false,
        Err(errno) => {
            log.write(Level::Warn, "not-handed-over", &json!({ "errno": errno_name(errno) }));
            false
        }
    }
}

fn give_group() -> Result<bool> {
    let socket = accept_with(super::keep(), SocketFlags::CLOEXEC)?;
    if rustix::net::sockopt::socket_peercred(&socket)?.uid.as_raw() != 0 {
        return Err(Errno::PERM);
    }
    rustix::net::sockopt::set_socket_timeout(&socket, rustix::net::sockopt::Timeout::Recv, Some(PATIENCE))?;
    let mut buffer = [0; 16];
    let (_, length) = recv(&socket, &mut buffer, RecvFlags::empty())?;
    let is_copy = match &buffer[..length] {
        ASK => false,
        COPY => true,
        _ => return Err(Errno::PROTO),
    };
    let fds = [super::group(), super::shared(), super::control(), super::keep()];
    socket::send_with_fds(&socket, GROUP, &fds)?;
    if is_copy {
        return Ok(false);
    }
    let (_, length) = recv(&socket, &mut buffer, RecvFlags::empty())?;
    Ok(&buffer[..length] == HAVE)
}
