//! `launcher serve`: one thread, one loop. It ends when its standard input does; sandboxes go on.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::Instant;

use rustix::net::{SocketFlags, SocketType, accept_with};
use serde_json::json;
use wire::server::Event;

use crate::behaviour::Behaviour;
use crate::blank_pool::BlankPool;
use crate::changes::Changes;
use crate::connection::Connection;
use crate::failure::errno_name;
use crate::launcher::Launcher;
use crate::layer_guard::LayerGuard;
use crate::lowers::Lowers;
use crate::namespace_pool::NamespacePool;
use crate::node::{Node, StartError};
use crate::options::Serve;
use crate::poller::{Poller, Token};
use crate::request::{self, Request};
use crate::sandbox::Caller;
use crate::sys::{Errno, Result, confinement};
use crate::syscall_filter;
use crate::volume::Quota;
use daemon::log::{Level, Log};
use daemon::socket;

const MAX_CONNECTIONS: usize = 64;
const SOCKET_NAME: &str = "launcher.sock";
const BACKLOG: i32 = 64;

struct Loop {
    launcher: Launcher,
    listener: OwnedFd,
    connections: HashMap<u32, Connection>,
    next_connection: u32,
    buffer: Vec<u8>,
    is_over: bool,
}

/// Serves until standard input ends.
pub fn serve(options: &Serve) -> std::result::Result<(), StartError> {
    let failed = |what: &'static str| move |errno: Errno| format!("{what}: {}", errno_name(errno));
    let now = Instant::now();
    let node = Node::open(options)?;
    let namespaces = NamespacePool::start(options.pool_namespaces as usize, node.proc.as_fd())
        .map_err(failed("namespace helper"))?;
    // After the helper, which it does not bind.
    confinement::filter_system_calls(&syscall_filter::program()).map_err(failed("system call filter"))?;
    let duplicate = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0);
    let guard =
        duplicate(&node.data.run).and_then(|run| LayerGuard::open(run, now)).map_err(failed("launcher.keep"))?;
    let lowers = Lowers::new(&node, guard).map_err(failed("layers"))?;
    let poller = Poller::new().map_err(failed("epoll"))?;
    let mut launcher = Launcher {
        node,
        poller,
        log: Log::new("launcher", None),
        lowers,
        namespaces,
        max_sandboxes: options.max_sandboxes as usize,
        sandboxes: HashMap::new(),
        slots_by_id: HashMap::new(),
        free_slots: VecDeque::new(),
        blanks: BlankPool::new(options.pool_blanks as usize),
        forgets: Vec::new(),
        starting: 0,
        waiting: VecDeque::new(),
        ending: VecDeque::new(),
        killed: Vec::new(),
        zombies: Vec::new(),
        answers: Vec::new(),
        messages: Vec::new(),
        changes: Changes::default(),
        behaviour: Behaviour::default(),
        events: Vec::new(),
        last_request: now,
        refill_after: now,
        stale_groups: VecDeque::new(),
        sweep_groups_at: now,
        core_turn: 0,
    };
    launcher.start_behaviour(now);
    launcher.adopt(now).map_err(failed("adoption"))?;
    if launcher.node.volume.quota == Quota::None {
        launcher.warn(
            "no-disk-quota",
            &json!({ "message": "the volume is not btrfs with simple quotas: sandboxes share its space" }),
        );
    }
    if let Some(lack) = launcher.node.apparmor_lack.take() {
        launcher.warn("no-apparmor", &json!({ "message": lack }));
    }
    if let Some(lack) = launcher.node.host_limits_lack.take() {
        launcher.warn("host-limits-low", &json!({ "message": lack }));
    }
    let listener =
        socket::listen_at(launcher.node.data.run.as_fd(), SOCKET_NAME, SocketType::STREAM, launcher.node.edge, BACKLOG)
            .map_err(failed("launcher.sock"))?;
    launcher.poller.add(&listener, Token::Listener).map_err(failed("epoll"))?;
    launcher.poller.add(std::io::stdin(), Token::Stdin).map_err(failed("standard input"))?;
    launcher.poller.add(launcher.lowers.guard.listener(), Token::Keep).map_err(failed("epoll"))?;
    if let Some(helper) = launcher.namespaces.socket() {
        launcher.poller.add(helper, Token::Helper).map_err(failed("epoll"))?;
    }
    let mut all = Loop {
        launcher,
        listener,
        connections: HashMap::new(),
        next_connection: 0,
        buffer: Connection::buffer(),
        is_over: false,
    };
    while !all.is_over {
        all.turn().map_err(failed("epoll"))?;
    }
    all.launcher.end_changes();
    all.launcher.log.write(Level::Info, "stopped", &json!({ "live": all.launcher.live_count() }));
    Ok(())
}

impl Loop {
    fn turn(&mut self) -> Result<()> {
        let timeout = self.launcher.advance(Instant::now());
        self.deliver();
        let tokens = self.launcher.poller.wait(timeout)?;
        let now = Instant::now();
        for token in tokens {
            match token {
                Token::Stdin => self.read_stdin(),
                Token::Listener => self.accept(),
                Token::Keep => self.launcher.lowers.guard.give(now),
                Token::Connection(id) => self.connection_ready(id, now),
                Token::Channel(_)
                | Token::Process(_)
                | Token::Helper
                | Token::Observer
                | Token::Changes(_)
                | Token::ChangesEnd(_) => self.launcher.ready(token, now),
            }
        }
        Ok(())
    }

    fn read_stdin(&mut self) {
        match rustix::io::read(std::io::stdin(), &mut self.buffer) {
            Ok(0) => self.is_over = true,
            Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
            Err(_) => self.is_over = true,
        }
    }

    fn accept(&mut self) {
        let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        let peer = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid.as_raw());
        let is_allowed = peer.is_ok_and(|uid| uid == 0 || uid == self.launcher.node.edge.0);
        if !is_allowed || self.connections.len() >= MAX_CONNECTIONS {
            self.launcher.warn("connection-refused", &json!({ "uid": peer.ok(), "open": self.connections.len() }));
            return;
        }
        let id = self.next_connection;
        self.next_connection = self.next_connection.wrapping_add(1);
        let connection = Connection::new(socket);
        if self.launcher.poller.add(&connection.socket, Token::Connection(id)).is_ok() {
            self.connections.insert(id, connection);
            self.settle(id);
        }
    }

    fn connection_ready(&mut self, id: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.read(&mut self.buffer).is_err() {
            return self.close(id);
        }
        self.take_events(id, now);
        self.settle(id);
    }

    fn take_events(&mut self, id: u32, now: Instant) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        while let Some(event) = connection.server.next_event() {
            match event {
                Event::Open { stream, method, params } => match request::parse(&method, params.get()) {
                    Ok(request) => {
                        match request {
                            Request::Events => connection.subscribe(stream),
                            Request::Behaviour => {
                                connection.observe(stream, self.launcher.behaviour.subscribers.take_kept());
                            }
                            _ => {}
                        }
                        self.launcher.request(Caller { connection: id, stream }, request, now);
                    }
                    Err(failure) => connection.answer(stream, Err(failure)),
                },
                Event::Writable { .. } => {
                    connection.flush_events();
                    connection.flush_behaviour();
                }
                // No method takes anything after its params.
                Event::Data { stream, bytes, .. } => connection.server.consumed(stream, bytes.len()),
                Event::Message { stream, size, .. } => connection.server.consumed(stream, size),
                // An archive is of use to its caller alone.
                Event::Reset { stream } => {
                    connection.forget(stream);
                    self.launcher.abandon_changes(|caller| caller == Caller { connection: id, stream });
                }
                // Other work that was asked for goes on without its caller: a sandbox is found by listing.
                Event::End { .. } => {}
            }
        }
    }

    /// Hands out answers and events.
    fn deliver(&mut self) {
        let mut touched: Vec<u32> = Vec::new();
        for (caller, message) in std::mem::take(&mut self.launcher.messages) {
            if let Some(connection) = self.connections.get_mut(&caller.connection) {
                connection.tell(caller.stream, &message);
                touched.push(caller.connection);
            }
        }
        for (caller, answer) in std::mem::take(&mut self.launcher.answers) {
            if let Some(connection) = self.connections.get_mut(&caller.connection) {
                connection.answer(caller.stream, answer);
                touched.push(caller.connection);
            }
        }
        for (id, exit) in std::mem::take(&mut self.launcher.events) {
            for (connection_id, connection) in &mut self.connections {
                connection.publish(&id, &exit);
                touched.push(*connection_id);
            }
        }
        for event in self.launcher.behaviour.subscribers.take_published() {
            let mut is_heard = false;
            for (connection_id, connection) in &mut self.connections {
                if connection.tell_behaviour(&event) {
                    is_heard = true;
                    touched.push(*connection_id);
                }
            }
            if !is_heard {
                self.launcher.behaviour.subscribers.keep(event);
            }
        }
        touched.sort_unstable();
        touched.dedup();
        for id in touched {
            self.settle(id);
        }
    }

    /// Writes what waits and watches for what is wanted next.
    fn settle(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.write().is_err() {
            return self.close(id);
        }
        let wanted = (connection.server.wants_input(), !connection.server.output().is_empty());
        if wanted != connection.watched {
            connection.watched = wanted;
            if self.launcher.poller.set(&connection.socket, Token::Connection(id), wanted.0, wanted.1).is_err() {
                self.close(id);
            }
        }
    }

    fn close(&mut self, id: u32) {
        if let Some(connection) = self.connections.remove(&id) {
            self.launcher.poller.remove(&connection.socket);
            self.launcher.abandon_changes(|caller| caller.connection == id);
        }
    }
}
