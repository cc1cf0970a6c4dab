//! `port.connect`: a connection to a service in the sandbox, bytes both ways.

use std::net::Ipv6Addr;
use std::os::fd::{AsRawFd, OwnedFd};

use serde::Deserialize;
use serde_json::json;

use crate::clock::{self, NANOS_PER_MS};
use crate::connection::StreamKey;
use crate::dispatch::Reply;
use crate::errors::{Failure, Outcome};
use crate::event_loop::{Aether, Deadline, Source};
use crate::params;
use crate::slab::Key;
use crate::streams::{After, Stream};
use crate::sys::fd::{self, owned};
use crate::sys::{Errno, check, errno, poll, socket};

/// A service that does not accept for so long counts as closed.
const CONNECT_TIMEOUT_MS: u64 = 10_000;
const CHUNK: usize = wire::MAX_DATA;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
enum Host {
    #[serde(rename = "127.0.0.1")]
    V4,
    #[serde(rename = "::1")]
    V6,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectParams {
    port: u16,
    host: Option<Host>,
}

#[derive(Debug)]
pub struct Port {
    port: u16,
    route: Key,
    socket: OwnedFd,
    interest: u32,
    is_connected: bool,
    /// Tried when this one refuses.
    next: Option<Host>,
    /// From the client, not written yet; bounded by the stream's window.
    pending: Vec<u8>,
    client_ended: bool,
    service_ended: bool,
    /// The client has no room: nothing is read from the service.
    is_blocked: bool,
}

pub fn connect(aether: &mut Aether, at: StreamKey, text: &str) -> Outcome<Reply> {
    let params: ConnectParams = params::parse(text)?;
    if params.port == 0 {
        return Err(Failure::invalid("port", "port must be 1 to 65535"));
    }
    let (first, next) = match params.host {
        Some(host) => (host, None),
        None => (Host::V4, Some(Host::V6)),
    };
    let (socket, next) = match begin(first, params.port) {
        Ok(socket) => (socket, next),
        Err(errno) => match next {
            Some(host) => (begin(host, params.port).map_err(|_| closed(params.port, errno))?, None),
            None => return Err(closed(params.port, errno)),
        },
    };
    let route = aether.routes.insert(at);
    let interest = poll::WRITE;
    let added = aether.poll.add(&socket, interest, Source::Stream(route).token());
    added.map_err(|errno| Failure::internal(errno, "The connection could not be watched"))?;
    let timeout = clock::now() + CONNECT_TIMEOUT_MS * NANOS_PER_MS;
    aether.deadlines.insert((timeout, Deadline::ConnectTimeout(route)));
    Ok(Reply::Stream(Stream::Port(Box::new(Port {
        port: params.port,
        route,
        socket,
        interest,
        is_connected: false,
        next,
        pending: Vec::new(),
        client_ended: false,
        service_ended: false,
        is_blocked: false,
    }))))
}

fn closed(port: u16, errno: Errno) -> Failure {
    let errno = crate::errors::errno_name(errno);
    Failure::new("port_closed", format!("Nothing listens on port {port} ({errno})."))
        .with("port", port)
        .with("errno", errno)
}

/// A socket that is connecting, or connected.
fn begin(host: Host, port: u16) -> Result<OwnedFd, Errno> {
    let family = if host == Host::V4 { libc::AF_INET } else { libc::AF_INET6 };
    let kind = libc::SOCK_STREAM | libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
    // SAFETY: plain call.
    let socket = owned(check(unsafe { libc::socket(family, kind, 0) })?);
    // SAFETY: addresses of zeros are valid; they are filled and passed with their own sizes.
    let result = unsafe {
        if host == Host::V4 {
            let mut address: libc::sockaddr_in = std::mem::zeroed();
            address.sin_family = libc::AF_INET as u16;
            address.sin_port = port.to_be();
            address.sin_addr.s_addr = u32::from_be_bytes([127, 0, 0, 1]).to_be();
            let size = size_of_val(&address) as u32;
            libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size)
        } else {
            let mut address: libc::sockaddr_in6 = std::mem::zeroed();
            address.sin6_family = libc::AF_INET6 as u16;
            address.sin6_port = port.to_be();
            address.sin6_addr.s6_addr = Ipv6Addr::LOCALHOST.octets();
            let size = size_of_val(&address) as u32;
            libc::connect(socket.as_raw_fd(), (&raw const address).cast(), size)
        }
    };
    match result {
        0 => Ok(socket),
        _ if errno() == libc::EINPROGRESS => Ok(socket),
        _ => Err(errno()),
    }
}

fn socket_error(socket: &OwnedFd) -> Errno {
    let mut error: libc::c_int = 0;
    let mut size = size_of::<libc::c_int>() as u32;
    // SAFETY: SO_ERROR writes an int.
    unsafe {
        libc::getsockopt(socket.as_raw_fd(), libc::SOL_SOCKET, libc::SO_ERROR, (&raw mut error).cast(), &mut size);
    }
    error
}

impl Port {
    pub fn on_data(&mut self, aether: &mut Aether, at: StreamKey, bytes: &[u8]) -> After {
        self.pending.extend_from_slice(bytes);
        self.go_on(aether, at)
    }

    pub fn on_end(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        self.client_ended = true;
        self.go_on(aether, at)
    }

    pub fn on_writable(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        self.is_blocked = false;
        self.go_on(aether, at)
    }

    /// The socket is ready.
    pub fn on_ready(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if !self.is_connected {
            match socket_error(&self.socket) {
                0 => self.is_connected = true,
                errno => return self.refused(aether, at, errno),
            }
        }
        self.go_on(aether, at)
    }

    fn refused(&mut self, aether: &mut Aether, at: StreamKey, errno: Errno) -> After {
        if let Some(host) = self.next.take()
            && let Ok(socket) = begin(host, self.port)
        {
            aether.poll.remove(&self.socket);
            self.socket = socket;
            self.interest = poll::WRITE;
            let token = Source::Stream(self.route).token();
            if aether.poll.add(&self.socket, self.interest, token).is_ok() {
                return After::Keep;
            }
        }
        aether.answer(at, Err(closed(self.port, errno)));
        After::Done
    }

    pub fn on_timeout(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if self.is_connected {
            return After::Keep;
        }
        aether.answer(at, Err(closed(self.port, libc::ETIMEDOUT)));
        After::Done
    }

    fn go_on(&mut self, aether: &mut Aether, at: StreamKey) -> After {
        if !self.is_connected {
            return After::Keep;
        }
        if let Err(errno) = self.write(aether, at).and_then(|()| self.read(aether, at)) {
            let name = crate::errors::errno_name(errno);
            let failure = Failure::new(
                "port_closed",
                format!("The service on port {} broke the connection ({name}).", self.port),
            );
            aether.answer(at, Err(failure.with("port", self.port).with("errno", name)));
            return After::Done;
        }
        if self.service_ended && self.client_ended && self.pending.is_empty() {
            aether.answer(at, Ok(json!({})));
            return After::Done;
        }
        self.watch(aether);
        After::Keep
    }

    fn write(&mut self, aether: &mut Aether, at: StreamKey) -> Result<(), Errno> {
        let mut taken = 0;
        while taken < self.pending.len() {
            match socket::send(&self.socket, &self.pending[taken..]) {
                Ok(n) => taken += n,
                Err(libc::EAGAIN) => break,
                Err(errno) => return Err(errno),
            }
        }
        self.pending.drain(..taken);
        if let Some(connection) = aether.connections.get_mut(at.connection) {
            connection.server.consumed(at.stream, taken);
            connection.is_dirty = true;
        }
        if self.client_ended && self.pending.is_empty() {
            // SAFETY: plain descriptor call.
            unsafe { libc::shutdown(self.socket.as_raw_fd(), libc::SHUT_WR) };
        }
        Ok(())
    }

    fn read(&mut self, aether: &mut Aether, at: StreamKey) -> Result<(), Errno> {
        let Some(connection) = aether.connections.get_mut(at.connection) else { return Ok(()) };
        if self.service_ended || self.is_blocked {
            return Ok(());
        }
        // Only what the stream takes: the rest stays in the socket, and its sender waits.
        let room = connection.server.sendable(at.stream).min(CHUNK);
        if room == 0 {
            self.is_blocked = true;
            // A byte that is not taken asks to be told when there is room.
            connection.server.send_data(at.stream, 0, &[0]);
            return Ok(());
        }
        match fd::read(&self.socket, &mut aether.scratch[..room]) {
            Ok(0) => {
                self.service_ended = true;
                connection.server.send_end(at.stream);
            }
            Ok(n) => {
                connection.server.send_data(at.stream, 0, &aether.scratch[..n]);
            }
            Err(libc::EAGAIN) => {}
            Err(errno) => return Err(errno),
        }
        Ok(())
    }

    fn watch(&mut self, aether: &Aether) {
        let mut interest = 0;
        if !self.service_ended && !self.is_blocked {
            interest |= poll::READ;
        }
        if !self.pending.is_empty() {
            interest |= poll::WRITE;
        }
        if interest == self.interest {
            return;
        }
        // With no interest it must go: a hangup is reported whatever is asked for.
        match (self.interest, interest) {
            (0, _) => {
                let _ = aether.poll.add(&self.socket, interest, Source::Stream(self.route).token());
            }
            (_, 0) => aether.poll.remove(&self.socket),
            _ => aether.poll.change(&self.socket, interest, Source::Stream(self.route).token()),
        }
        self.interest = interest;
    }

    pub fn release(self, aether: &mut Aether) {
        if self.interest != 0 {
            aether.poll.remove(&self.socket);
        }
        aether.routes.remove(self.route);
    }
}
