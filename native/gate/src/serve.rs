//! The loop: one thread, which waits for connections, for what happens on them, and for who feeds it.

use std::collections::HashMap;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use rustix::net::{SocketFlags, accept_with};
use serde_json::{Value, json};
use wire::server::{Event, READ_SIZE};

use crate::Result;
use crate::bounds::MAX_CONTROL_CONNECTIONS;
use crate::control::Feeder;
use crate::gate::Gate;
use crate::poller::{Interest, Ready, Token};
use crate::request::{self, Request};
use crate::sys::Given;
use daemon::failure::{Failure, errno_name};
use daemon::link::Over;
use daemon::log::{Level, Log};

/// How long nothing is taken from a listener when the kernel has no more of what a connection needs.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

struct Loop {
    gate: Gate,
    listeners: Vec<OwnedFd>,
    control: OwnedFd,
    feeders: HashMap<u32, Feeder>,
    next_feeder: u32,
    buffer: Vec<u8>,
    /// Until when nothing is taken.
    paused: Option<Instant>,
    log: Log,
}

/// Serves until it is killed. Returns only when the kernel refuses what nothing goes on without.
pub fn serve(given: Given, files: usize) -> Result<()> {
    let gate = Gate::new(files)?;
    let Given { listeners, control } = given;
    let mut all = Loop {
        gate,
        listeners,
        control,
        feeders: HashMap::new(),
        next_feeder: 0,
        buffer: vec![0; READ_SIZE],
        paused: None,
        log: Log::new("gate", None),
    };
    for (index, listener) in all.listeners.iter().enumerate() {
        all.gate.poller.add(listener, Token::Listener(index as u32), Interest::INPUT)?;
    }
    all.gate.poller.add(&all.control, Token::Control, Interest::INPUT)?;
    all.log.write(Level::Info, "started", &all.gate.info());
    loop {
        all.turn()?;
    }
}

impl Loop {
    fn turn(&mut self) -> Result<()> {
        let now = Instant::now();
        let resume = self.paused.map(|at| at.saturating_duration_since(now));
        let timeout = self.gate.timeout(now).into_iter().chain(resume).min();
        let ready = self.gate.poller.wait(timeout)?;
        let now = Instant::now();
        if self.paused.is_some_and(|at| at <= now) {
            self.paused = None;
            self.watch_listeners(Interest::INPUT)?;
        }
        for ready in ready {
            self.handle(ready, now)?;
        }
        self.gate.expire(now);
        self.tell();
        Ok(())
    }

    fn handle(&mut self, ready: Ready, now: Instant) -> Result<()> {
        match ready.token {
            Token::Listener(index) => {
                let Some(listener) = self.listeners.get(index as usize) else { return Ok(()) };
                if let Err(error) = self.gate.accept(listener, now) {
                    self.log.write(Level::Error, "accept-failed", &json!({ "error": errno_name(error) }));
                    self.paused = Some(now + ACCEPT_PAUSE);
                    self.watch_listeners(Interest::default())?;
                }
            }
            Token::Control => self.accept_feeder(),
            Token::Feeder(number) => self.feeder_ready(number, now),
            Token::Client(number) | Token::Upstream(number) => self.gate.ready(number, ready, now),
        }
        Ok(())
    }

    fn watch_listeners(&self, interest: Interest) -> Result<()> {
        let mut listeners = self.listeners.iter().enumerate();
        listeners
            .try_for_each(|(index, listener)| self.gate.poller.set(listener, Token::Listener(index as u32), interest))
    }

    fn accept_feeder(&mut self) {
        let Ok(socket) = accept_with(&self.control, SocketFlags::CLOEXEC | SocketFlags::NONBLOCK) else { return };
        let peer = rustix::net::sockopt::socket_peercred(&socket).map(|peer| peer.uid);
        // Only root feeds it: others of the same user are no part of it.
        if !peer.is_ok_and(|uid| uid.is_root()) || self.feeders.len() >= MAX_CONTROL_CONNECTIONS {
            let fields = json!({ "uid": peer.ok().map(|uid| uid.as_raw()), "open": self.feeders.len() });
            return self.log.write(Level::Warn, "connection-refused", &fields);
        }
        let number = self.next_feeder;
        self.next_feeder = self.next_feeder.wrapping_add(1);
        let feeder = Feeder::new(socket);
        if self.gate.poller.add(&feeder.socket, Token::Feeder(number), feeder.watched).is_ok() {
            self.feeders.insert(number, feeder);
            self.settle(number);
        }
    }

    fn feeder_ready(&mut self, number: u32, now: Instant) {
        let Some(feeder) = self.feeders.get_mut(&number) else { return };
        if feeder.read(&mut self.buffer).is_err() {
            return self.close(number);
        }
        while let Some(event) = feeder.server.next_event() {
            match event {
                Event::Open { stream, method, params } => match request::parse(&method, params.get()) {
                    Ok(Request::Events) => feeder.listen(stream),
                    Ok(request) => feeder.answer(stream, ask(&mut self.gate, request, now)),
                    Err(failure) => feeder.answer(stream, Err(failure)),
                },
                Event::Writable { .. } => feeder.flush_events(),
                Event::Reset { stream } => feeder.forget(stream),
                // No method takes anything after its params.
                Event::Data { stream, bytes, .. } => feeder.server.consumed(stream, bytes.len()),
                Event::Message { stream, size, .. } => feeder.server.consumed(stream, size),
                Event::End { .. } => {}
            }
        }
        self.settle(number);
    }

    /// Hands out what was refused.
    fn tell(&mut self) {
        let messages: Vec<Value> = self.gate.refused.drain(..).map(|refused| refused.message()).collect();
        if messages.is_empty() {
            return;
        }
        let numbers: Vec<u32> = self.feeders.keys().copied().collect();
        for number in numbers {
            if let Some(feeder) = self.feeders.get_mut(&number) {
                feeder.tell(&messages);
            }
            self.settle(number);
        }
    }

    /// Writes what waits and watches for what is wanted next.
    fn settle(&mut self, number: u32) {
        let Some(feeder) = self.feeders.get_mut(&number) else { return };
        if let Err(Over) = feeder.write() {
            return self.close(number);
        }
        // What was written may have made room for more events.
        feeder.flush_events();
        let wanted = feeder.interest();
        if wanted != feeder.watched {
            feeder.watched = wanted;
            if self.gate.poller.set(&feeder.socket, Token::Feeder(number), wanted).is_err() {
                self.close(number);
            }
        }
    }

    fn close(&mut self, number: u32) {
        if let Some(feeder) = self.feeders.remove(&number) {
            self.gate.poller.remove(&feeder.socket);
        }
    }
}

fn ask(gate: &mut Gate, request: Request, now: Instant) -> std::result::Result<Value, Failure> {
    match request {
        Request::Set(policy) => gate.set(policy, now),
        Request::AddPins(pins) => gate.add_pins(pins, now),
        Request::Remove(id) => Ok(gate.remove(&id, now)),
        Request::Flows(id) => gate.counts(&id),
        Request::Info => Ok(gate.info()),
        Request::Events => Err(Failure::internal("a stream is no single answer")),
    }
}
