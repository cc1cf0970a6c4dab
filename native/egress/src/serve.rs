//! `egressd serve`: one thread that answers, one loop. It ends when its standard input does; uplinks and what holds for them stay.

use std::collections::{HashMap, VecDeque};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{SocketFlags, SocketType, accept_with};
use serde_json::{Value, json};
use wire::server::Event;

use crate::coming::Arrivals;
use crate::connection::Connection;
use crate::feeder::Feeder;
use crate::gate::Program;
use crate::host::{StartError, at, choose, devices, settle, way_out_mtu};
use crate::netlink::{Netlink, Watch, filters};
use crate::node::{Caller, Node};
use crate::options::Serve;
use crate::origins::Origins;
use crate::pins::Pins;
use crate::place::Place;
use crate::policies::Policies;
use crate::processes::Processes;
use crate::remover::Remover;
use crate::request::{self, Request};
use crate::sys::{Errno, Result, process};
use crate::uplinks::{Adopted, Uplinks};
use crate::{kernel, privileges};
use daemon::failure::{Failure, errno_name};
use daemon::log::{Level, Log};
use daemon::socket;

const MAX_CONNECTIONS: usize = 64;
const SOCKET_NAME: &str = "egressd.sock";
const BACKLOG: i32 = 64;
/// Where the host itself has no way out.
const DEFAULT_MTU: u32 = 1_500;

struct Loop {
    node: Node,
    listener: OwnedFd,
    connections: HashMap<u32, Connection>,
    next_connection: u32,
    buffer: Vec<u8>,
    is_over: bool,
    /// The number of this server, as long as it lives.
    _lock: OwnedFd,
}

fn boot() -> std::result::Result<String, StartError> {
    let path = "/proc/sys/kernel/random/boot_id";
    std::fs::read_to_string(path).map(|text| text.trim().to_owned()).map_err(|error| format!("{path}: {error}"))
}

/// Serves until standard input ends.
pub fn serve(options: &Serve) -> std::result::Result<(), StartError> {
    let place = Place::open(&options.data)?;
    let mut netlink = Netlink::open().map_err(at("netlink"))?;
    let (block, lock) = choose(options, &place, &mut netlink)?;
    let boot = boot()?;
    let has_ipv6 = settle(options, &place, (&block, &boot), &mut netlink)?;
    place.mount_pins().map_err(at("run/egress/bpf"))?;
    let kernel = kernel::load(&place.pins())?;
    kernel.maps.set_node(&block.layout(options.service_ports)).map_err(at("the map node"))?;
    let flows = rustix::io::fcntl_dupfd_cloexec(&kernel.maps.flows, 0).map_err(at("the map flows"))?;
    let mut origins = Origins::start(&place.pins(), flows);
    let listener = socket::listen_at(place.run.as_fd(), SOCKET_NAME, SocketType::STREAM, options.resolver, BACKLOG)
        .map_err(at("egressd.sock"))?;
    // A checkout may lie where only its owner goes.
    let gate = options.gate.clone().map(|path| (process::open_program(&path).ok(), path));
    privileges::reduce().map_err(at("capabilities"))?;
    let home = process::own_network().map_err(at("network namespace"))?;
    let watch = Watch::open().map_err(at("netlink"))?;
    let remover = Remover::start(block.mark(0)).map_err(at("remover"))?;
    let arrivals = Arrivals::open().map_err(at("inotify"))?;
    let processes = Processes::start().map_err(at("arguments"))?;
    let present = devices(&mut netlink, &block).map_err(at("devices"))?;
    let Adopted { uplinks, strays, gone } = Uplinks::adopt(&kernel.maps.uplinks, &block, &present);
    origins.adopt(|slot| uplinks.get(slot).is_some()).map_err(at("spaces"))?;
    let words: Vec<_> = uplinks.all().map(|(_, live)| live.word).collect();
    let rulesets: Vec<u32> = words.iter().map(|word| word.ruleset).filter(|ruleset| *ruleset > 0).collect();
    let generations: Vec<u32> = words.iter().map(|word| word.generation).filter(|number| *number > 0).collect();
    let own = |fd: &OwnedFd| rustix::io::fcntl_dupfd_cloexec(fd, 0);
    let policies = own(&kernel.maps.rules).and_then(|map| Policies::adopt(map, &rulesets)).map_err(at("rules"))?;
    let pins = own(&kernel.maps.pins).and_then(|map| Pins::adopt(map, &generations)).map_err(at("pins"))?;
    let mtu = options.mtu.or_else(|| way_out_mtu(&mut netlink)).unwrap_or(DEFAULT_MTU);
    let program = gate.map(|(file, path)| Program { path, file, port: options.gate_port, user: options.resolver });
    let mut node = Node {
        options: options.clone(),
        place,
        block,
        boot,
        mtu,
        has_ipv6,
        kernel,
        netlink,
        home,
        watch,
        remover,
        uplinks,
        coming: Vec::new(),
        arrivals,
        leaving: VecDeque::new(),
        policies,
        pins,
        log: Log::new("egressd", None),
        closing: Vec::new(),
        answers: Vec::new(),
        told: Vec::new(),
        origins,
        processes,
        feeder: Feeder::new(program, gone),
    };
    let replaced = node.replace_programs();
    node.know_adopted();
    for slot in &strays {
        node.remover.order(node.block.index(*slot));
    }
    let fields = json!({
        "number": node.block.number,
        "address4": node.block.gateway4().to_string(),
        "adopted": node.uplinks.len(),
        "replaced": replaced,
        "removing": strays.len(),
        "withoutProcesses": node.origins.lack,
    });
    node.log.write(Level::Info, "started", &fields);
    let mut all = Loop {
        node,
        listener,
        connections: HashMap::new(),
        next_connection: 0,
        buffer: Connection::buffer(),
        is_over: false,
        _lock: lock,
    };
    while !all.is_over {
        all.turn().map_err(at("poll"))?;
    }
    all.node.finish();
    let fields = json!({ "uplinks": all.node.uplinks.len() });
    all.node.log.write(Level::Info, "stopped", &fields);
    Ok(())
}

impl Node {
    /// Uplinks go on with the programs of this egressd. One that cannot is closed.
    fn replace_programs(&mut self) -> usize {
        let slots: Vec<u32> = self.uplinks.all().map(|(slot, _)| slot).collect();
        let mut replaced = 0;
        for slot in slots {
            let batch = filters::put_programs(self.block.index(slot), &self.kernel.programs);
            match self.netlink.ask_one(batch) {
                Ok(()) => replaced += 1,
                Err(errno) => {
                    self.warn("programs-not-replaced", &json!({ "slot": slot, "errno": errno_name(errno) }));
                    self.close_slot(slot);
                }
            }
        }
        replaced
    }
}

impl Loop {
    fn turn(&mut self) -> Result<()> {
        let timeout = self.node.advance(Instant::now());
        self.deliver();
        self.wait(timeout)?;
        self.node.hear();
        self.node.hear_arrivals();
        self.node.removed();
        self.node.take_denials();
        self.accept();
        let ids: Vec<u32> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.serve_connection(id));
        Ok(())
    }

    fn wait(&mut self, timeout: Option<Duration>) -> Result<()> {
        let stdin = std::io::stdin();
        let timeout = timeout.map(|duration| Timespec {
            tv_sec: duration.as_secs() as i64,
            tv_nsec: i64::from(duration.subsec_nanos()),
        });
        let is_stdin_ready = {
            let node = &self.node;
            let mut fds = vec![
                PollFd::new(&stdin, PollFlags::IN),
                PollFd::new(&self.listener, PollFlags::IN),
                PollFd::new(&node.watch, PollFlags::IN),
                PollFd::new(&node.remover, PollFlags::IN),
                PollFd::new(&node.arrivals, PollFlags::IN),
                PollFd::from_borrowed_fd(node.denials_fd(), PollFlags::IN),
                PollFd::from_borrowed_fd(node.processes.signal(), PollFlags::IN),
            ];
            if let Some((socket, writes)) = node.feeder.socket() {
                let mut flags = PollFlags::IN;
                flags.set(PollFlags::OUT, writes);
                fds.push(PollFd::new(socket, flags));
            }
            for connection in self.connections.values() {
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, connection.server.wants_input());
                flags.set(PollFlags::OUT, !connection.server.output().is_empty());
                fds.push(PollFd::new(&connection.socket, flags));
            }
            match poll(&mut fds, timeout.as_ref()) {
                Ok(_) | Err(Errno::INTR) => {}
                Err(error) => return Err(error),
            }
            fds.first().is_some_and(|fd| !fd.revents().is_empty())
        };
        if is_stdin_ready {
            match rustix::io::read(&stdin, &mut self.buffer) {
                Ok(0) => self.is_over = true,
                Ok(_) | Err(Errno::AGAIN | Errno::INTR) => {}
                Err(_) => self.is_over = true,
            }
        }
        Ok(())
    }

    fn accept(&mut self) {
        while let Ok(socket) = accept_with(&self.listener, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) {
            let peer = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid.as_raw());
            let is_allowed = peer.is_ok_and(|uid| uid == 0 || uid == self.node.options.resolver.0);
            if !is_allowed || self.connections.len() >= MAX_CONNECTIONS {
                let fields = json!({ "uid": peer.ok(), "open": self.connections.len() });
                self.node.warn("connection-refused", &fields);
                continue;
            }
            self.connections.insert(self.next_connection, Connection::new(socket));
            self.next_connection = self.next_connection.wrapping_add(1);
        }
    }

    fn serve_connection(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.read(&mut self.buffer).is_err() {
            self.connections.remove(&id);
            return;
        }
        while let Some(event) = self.connections.get_mut(&id).and_then(|connection| connection.server.next_event()) {
            self.take_event(id, event);
        }
        self.settle(id);
    }

    fn take_event(&mut self, id: u32, event: Event) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        match event {
            Event::Open { stream, method, params } => match request::parse(&method, params.get()) {
                Ok(request) => self.request(Caller { connection: id, stream }, request),
                Err(failure) => connection.answer(stream, Err(failure)),
            },
            // No method takes anything after its params.
            Event::Data { stream, bytes, .. } => connection.server.consumed(stream, bytes.len()),
            Event::Message { stream, size, .. } => connection.server.consumed(stream, size),
            Event::Reset { stream } => connection.forget(stream),
            Event::End { .. } | Event::Writable { .. } => {}
        }
    }

    fn request(&mut self, caller: Caller, request: Request) {
        let node = &mut self.node;
        let answer: std::result::Result<Value, Failure> = match request {
            Request::NodeInfo => Ok(node.info()),
            Request::Open(id) => node.open(&id),
            Request::Close(id, waits) => return node.close(caller, &id, waits),
            Request::List => Ok(node.list()),
            Request::SetPolicy(policy) => return node.set_policy(caller, *policy),
            Request::AddPins { id, generation, pins } => return node.add_pins(caller, &id, generation, pins),
            Request::Counters(id) => node.counters(&id),
            Request::Owner { id, address, asker } => return node.owner(caller, &id, address, asker),
            Request::Events => {
                if let Some(connection) = self.connections.get_mut(&caller.connection) {
                    connection.watch(caller.stream);
                }
                return;
            }
        };
        if let Some(connection) = self.connections.get_mut(&caller.connection) {
            connection.answer(caller.stream, answer);
        }
    }

    /// Hands out answers and what is told.
    fn deliver(&mut self) {
        for message in std::mem::take(&mut self.node.told) {
            self.connections.values_mut().for_each(|connection| connection.tell(&message));
        }
        for (caller, answer) in std::mem::take(&mut self.node.answers) {
            if let Some(connection) = self.connections.get_mut(&caller.connection) {
                connection.answer(caller.stream, answer);
            }
        }
        let ids: Vec<u32> = self.connections.keys().copied().collect();
        ids.into_iter().for_each(|id| self.settle(id));
    }

    fn settle(&mut self, id: u32) {
        let Some(connection) = self.connections.get_mut(&id) else { return };
        if connection.write().is_err() {
            self.connections.remove(&id);
        }
    }
}
