//! Feeds the gate (`gate: methods` of wire.md): policies by name and pins, as they are. What is asked of egressd and concerns the gate is answered when the gate has answered: then a
//! change is in force there too.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use launcher::request::SandboxId;
use rustix::net::{RecvFlags, SendFlags};
use serde::Deserialize;
use serde_json::{Value, json};
use wire::client::{Client, Event};
use wire::server::READ_SIZE;

use crate::block::Block;
use crate::gate::{self, Program};
use crate::layout::{FLAG_NAMES, ip_of};
use crate::node::Caller;
use crate::origins::Asker;
use crate::pins::boot_ns;
use crate::place::Place;
use crate::request::{NewPin, Protocol};
use crate::sys::Errno;
use crate::uplinks::{Live, Uplinks};
use daemon::log::{Level, Log};

/// Calls that the gate has not answered yet.
const MAX_ASKED: usize = 64;
/// Pins in one call.
const PINS_A_CALL: usize = 1_024;
/// Until a gate that could not be had is tried again.
const PAUSE: Duration = Duration::from_millis(500);
/// A gate that does not answer for so long is ended.
const PATIENCE: Duration = Duration::from_secs(5);

/// Who is answered when the gate has.
pub type Waiting = (Caller, Value);

enum Work {
    Policy(SandboxId),
    Pins { id: SandboxId, generation: u32, pins: Vec<NewPin>, waiting: Option<Waiting> },
}

struct Asked {
    id: SandboxId,
    /// Its refusal means that the gate holds to a policy that is over.
    is_policy: bool,
    waiting: Vec<Waiting>,
}

/// A connection that the gate has refused or cut.
pub struct Refused {
    pub id: SandboxId,
    /// Absent when a gate of before does not tell.
    pub asker: Option<Asker>,
    /// As the gate tells it.
    pub told: Value,
}

#[derive(Deserialize)]
struct Message {
    refused: Option<Value>,
}

struct Fed {
    socket: OwnedFd,
    client: Client,
    /// The stream of what the gate has refused.
    events: Option<u32>,
    asked: HashMap<u32, Asked>,
    heard_at: Instant,
}

pub struct Feeder {
    program: Option<Program>,
    fed: Option<Fed>,
    retry_at: Instant,
    work: VecDeque<Work>,
    /// Sandboxes whose policy is in `work`; who waits for it.
    changed: BTreeSet<String>,
    waiting: HashMap<String, Vec<Waiting>>,
    /// Sandboxes that an adopted gate may know and that are no more.
    gone: Vec<SandboxId>,
    pub answers: Vec<Waiting>,
    /// What the gate has told since.
    pub refused: Vec<Refused>,
    buffer: Vec<u8>,
}

impl Feeder {
    pub fn new(program: Option<Program>, gone: Vec<SandboxId>) -> Self {
        Self {
            program,
            fed: None,
            retry_at: Instant::now(),
            work: VecDeque::new(),
            changed: BTreeSet::new(),
            waiting: HashMap::new(),
            gone,
            answers: Vec::new(),
            refused: Vec::new(),
            buffer: vec![0; READ_SIZE],
        }
    }

    pub fn is_fed(&self) -> bool {
        self.fed.is_some()
    }

    /// The policy of a sandbox has changed, or its uplink is closed.
    pub fn changed(&mut self, id: &SandboxId, waiting: Option<Waiting>) {
        if self.fed.is_none() {
            // The gate hears all when it is there.
            self.answers.extend(waiting);
            return;
        }
        if self.changed.insert(id.to_string()) {
            self.work.push_back(Work::Policy(id.clone()));
        }
        if let Some(waiting) = waiting {
            self.waiting.entry(id.to_string()).or_default().push(waiting);
        }
    }

    pub fn pinned(&mut self, id: &SandboxId, generation: u32, pins: Vec<NewPin>, waiting: Waiting) {
        if self.fed.is_none() {
            return self.answers.push(waiting);
        }
        self.work.push_back(Work::Pins { id: id.clone(), generation, pins, waiting: Some(waiting) });
    }

    /// What to wait for: the connection, and whether there is something to write.
    pub fn socket(&self) -> Option<(&OwnedFd, bool)> {
        self.fed.as_ref().map(|fed| (&fed.socket, !fed.client.output().is_empty()))
    }

    /// Goes on. How long nothing more will happen by itself.
    pub fn turn(&mut self, place: &Place, block: &Block, uplinks: &Uplinks, log: &Log) -> Option<Duration> {
        let now = Instant::now();
        if self.fed.is_none() && self.program.is_some() && now >= self.retry_at {
            self.retry_at = now + PAUSE;
            self.begin(place, block, uplinks, log);
        }
        if self.fed.is_some() && !self.exchange(block, uplinks, log) {
            log.write(Level::Warn, "gate-lost", &json!({}));
            self.lose();
        }
        if self.fed.as_ref().is_some_and(|fed| !fed.asked.is_empty() && now > fed.heard_at + PATIENCE) {
            log.write(Level::Error, "gate-silent", &json!({}));
            self.lose();
            // The next try ends it in any case.
            let _ = gate::end(place);
        }
        match &self.fed {
            Some(fed) if fed.asked.is_empty() => None,
            Some(fed) => Some((fed.heard_at + PATIENCE).saturating_duration_since(now)),
            None => self.program.is_some().then(|| self.retry_at.saturating_duration_since(now)),
        }
    }

    fn begin(&mut self, place: &Place, block: &Block, uplinks: &Uplinks, log: &Log) {
        let Some(program) = &self.program else { return };
        let mut socket = gate::connect(place);
        if socket.is_none() {
            if let Err(message) = gate::start(program, place, block) {
                return log.write(Level::Error, "no-gate", &json!({ "message": message }));
            }
            socket = gate::connect(place);
        }
        if let Some(socket) = socket {
            let mut client = Client::new("egressd");
            let events = client.open("events", &json!({}));
            self.fed = Some(Fed { socket, client, events, asked: HashMap::new(), heard_at: Instant::now() });
            // What an adopted uplink had by name is not known here until its policy is set again; an adopted gate knows it.
            let known: Vec<SandboxId> =
                uplinks.all().filter(|(_, live)| !live.is_adopted).map(|(_, live)| live.id.clone()).collect();
            let gone = std::mem::take(&mut self.gone);
            gone.iter().chain(&known).for_each(|id| self.changed(id, None));
        }
    }

    fn lose(&mut self) {
        let fed = self.fed.take();
        let asked = fed.into_iter().flat_map(|fed| fed.asked.into_values()).flat_map(|asked| asked.waiting);
        // Its flows are gone with it: what was asked for is in force.
        self.answers.extend(asked);
        self.answers.extend(std::mem::take(&mut self.waiting).into_values().flatten());
        for work in std::mem::take(&mut self.work) {
            if let Work::Pins { waiting, .. } = work {
                self.answers.extend(waiting);
            }
        }
        self.changed.clear();
    }

    /// Reads, asks and writes what it can. Whether the connection lives.
    fn exchange(&mut self, block: &Block, uplinks: &Uplinks, log: &Log) -> bool {
        let Some(fed) = &mut self.fed else { return false };
        loop {
            match rustix::net::recv(&fed.socket, &mut self.buffer[..], RecvFlags::DONTWAIT) {
                Ok((_, 0)) => return false,
                Ok((_, length)) if fed.client.receive(&self.buffer[..length]).is_err() => return false,
                Ok(_) => fed.heard_at = Instant::now(),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        while let Some(event) = fed.client.next_event() {
            if let Event::Message { stream, value, size } = event {
                fed.client.consumed(stream, size);
                if fed.events == Some(stream) {
                    self.refused.extend(refused(value.get()));
                }
                continue;
            }
            let Event::Closed { stream, result } = event else { continue };
            let Some(asked) = fed.asked.remove(&stream) else { continue };
            if let Err(error) = result
                && error.code != "policy_stale"
            {
                let fields = json!({ "id": asked.id.as_str(), "code": error.code, "message": error.message });
                log.write(Level::Warn, "gate-refused", &fields);
                if asked.is_policy {
                    // Rather nothing than what was.
                    let params = json!({ "id": asked.id.as_str() });
                    if let Some(stream) = fed.client.open("policy.remove", &params) {
                        fed.asked.insert(stream, Asked { is_policy: false, ..asked });
                        continue;
                    }
                }
            }
            self.answers.extend(asked.waiting);
        }
        self.ask(block, uplinks);
        self.write()
    }

    fn ask(&mut self, block: &Block, uplinks: &Uplinks) {
        let Some(fed) = &mut self.fed else { return };
        while fed.asked.len() < MAX_ASKED {
            let Some(work) = self.work.pop_front() else { break };
            if fed.asked.is_empty() {
                fed.heard_at = Instant::now();
            }
            match work {
                Work::Policy(id) => {
                    self.changed.remove(id.as_str());
                    let mut waiting = self.waiting.remove(id.as_str()).unwrap_or_default();
                    let live = uplinks.slot_of(&id).and_then(|slot| Some((slot, uplinks.get(slot)?)));
                    let calls = match live {
                        Some((slot, live)) if live.word.flags & FLAG_NAMES != 0 => policy_calls(block, slot, live),
                        _ => vec![("policy.remove", json!({ "id": id.as_str() }))],
                    };
                    let last = calls.len();
                    for (number, (method, params)) in (1..).zip(calls) {
                        if let Some(stream) = fed.client.open(method, &params) {
                            let waiting = if number == last { std::mem::take(&mut waiting) } else { Vec::new() };
                            let is_policy = method == "policy.set";
                            fed.asked.insert(stream, Asked { id: id.clone(), is_policy, waiting });
                        }
                    }
                    // Larger than a frame: nobody may wait for ever.
                    self.answers.extend(waiting);
                }
                Work::Pins { id, generation, pins, waiting } => {
                    let pins: Vec<Value> = pins.iter().map(pin_value).collect();
                    let params = json!({ "id": id.as_str(), "generation": generation, "pins": pins });
                    match fed.client.open("pins.add", &params) {
                        Some(stream) => {
                            let waiting = waiting.into_iter().collect();
                            fed.asked.insert(stream, Asked { id, is_policy: false, waiting });
                        }
                        None => self.answers.extend(waiting),
                    }
                }
            }
        }
    }

    fn write(&mut self) -> bool {
        let Some(fed) = &mut self.fed else { return false };
        while !fed.client.output().is_empty() {
            match rustix::net::send(&fed.socket, fed.client.output(), SendFlags::DONTWAIT | SendFlags::NOSIGNAL) {
                Ok(length) => fed.client.advance_output(length),
                Err(Errno::AGAIN) => break,
                Err(Errno::INTR) => {}
                Err(_) => return false,
            }
        }
        true
    }
}

/// What the gate says of a connection.
fn refused(message: &str) -> Option<Refused> {
    let told = serde_json::from_str::<Message>(message).ok()?.refused?;
    let id = SandboxId::parse(told.get("id")?.as_str()?)?;
    let port = told.get("from").and_then(Value::as_u64).and_then(|port| u16::try_from(port).ok());
    let address = told.get("address").and_then(Value::as_str).and_then(|text| text.parse::<IpAddr>().ok());
    let asker = port.zip(address).map(|(port, address)| Asker {
        protocol: Protocol::Tcp.number(),
        is_ipv6: address.is_ipv6(),
        port,
    });
    Some(Refused { id, asker, told })
}

fn pin_value(pin: &NewPin) -> Value {
    let address = ip_of(pin.address).to_string();
    json!({ "address": address, "name": pin.name, "ttlMs": pin.ttl.as_millis() as u64, "ranges": pin.ranges })
}

/// What the gate is asked so that it knows all of a policy.
fn policy_calls(block: &Block, slot: u32, live: &Live) -> Vec<(&'static str, Value)> {
    let pins = pinned(live);
    let generation = live.word.generation;
    let mut parts = pins.chunks(PINS_A_CALL);
    let mut calls = vec![(
        "policy.set",
        json!({
            "id": live.id.as_str(),
            "address4": block.address4(slot).to_string(),
            "address6": block.address6(slot).to_string(),
            "generation": generation,
            "names": *live.names,
            "pins": parts.next().unwrap_or_default(),
        }),
    )];
    let more = parts.map(|pins| json!({ "id": live.id.as_str(), "generation": generation, "pins": pins }));
    calls.extend(more.map(|params| ("pins.add", params)));
    calls
}

fn pinned(live: &Live) -> Vec<Value> {
    let now = boot_ns();
    let of_address = |(address, pinned): (&crate::layout::Address, &Vec<crate::uplinks::Pinned>)| {
        let address = ip_of(*address).to_string();
        let live = pinned.iter().filter(|pinned| pinned.expires_at > now);
        live.map(|pinned| {
            let ttl_ms = ((pinned.expires_at - now) / 1_000_000).max(1);
            json!({ "address": address, "name": pinned.name, "ttlMs": ttl_ms, "ranges": pinned.ranges })
        })
        .collect::<Vec<_>>()
    };
    live.pinned.iter().flat_map(of_address).collect()
}
