//! The state of egressd, and what each request does to it. It knows nothing of connections.

use std::collections::{HashMap, VecDeque};
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::time::{Duration, Instant};

use launcher::request::SandboxId;
use serde_json::{Map, Value, json};

use crate::block::Block;
use crate::coming::{Arrivals, Coming};
use crate::denials;
use crate::feeder::Feeder;
use crate::kernel::Kernel;
use crate::layout::{Counters, Plain, PolicyWord, REASONS};
use crate::namespace::{self, Namespace};
use crate::netlink::{Heard, Netlink, Watch, filters};
use crate::options::Serve;
use crate::origins::{Asker, Origins};
use crate::pins::{Pins, boot_ns};
use crate::place::Place;
use crate::policies::Policies;
use crate::processes::Processes;
use crate::remover::Remover;
use crate::request::{MAX_PINS, NewPin, NewPolicy};
use crate::sys::Errno;
use crate::uplinks::{Pinned, Uplinks};
use crate::wiring;
use daemon::failure::{Failure, errno_name};
use daemon::log::{Level, Log};

/// The device of a sandbox that is over goes with its namespace, by then.
const LEAVES_WITHIN: Duration = Duration::from_millis(500);
/// How long an end of egressd may wait for devices that go.
const ENDS_WITHIN: Duration = Duration::from_secs(2);

/// Who gets an answer later.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    pub connection: u32,
    pub stream: u32,
}

pub struct Node {
    pub options: Serve,
    pub place: Place,
    pub block: Block,
    pub boot: String,
    pub mtu: u32,
    pub has_ipv6: bool,
    pub kernel: Kernel,
    pub netlink: Netlink,
    /// The network namespace of the host.
    pub home: OwnedFd,
    pub watch: Watch,
    pub remover: Remover,
    pub uplinks: Uplinks,
    /// Sandboxes that are waited for.
    pub coming: Vec<Coming>,
    pub arrivals: Arrivals,
    /// Slots of sandboxes that are over, whose devices go with them; when those that are left are removed.
    pub leaving: VecDeque<(Instant, u32)>,
    pub policies: Policies,
    pub pins: Pins,
    pub log: Log,
    /// Who waits until a device is gone, by slot.
    pub closing: Vec<(u32, Caller)>,
    pub answers: Vec<(Caller, Result<Value, Failure>)>,
    /// Messages for who listens.
    pub told: Vec<Value>,
    pub feeder: Feeder,
    pub origins: Origins,
    pub processes: Processes<Tell>,
}

/// What a process is asked for.
pub enum Tell {
    /// A message of `events`: the name of its one member, and that.
    Event(&'static str, Value),
    /// The answer of `owner`.
    Owner(Caller),
}

pub fn refused(stage: &str, errno: Errno) -> Failure {
    let message = format!("the kernel refused the step {stage} of an uplink");
    Failure::new("network_unavailable", message)
        .with("reason", format!("{stage}: {}", errno_name(errno)))
        .with("stage", stage)
        .with("errno", errno_name(errno))
}

fn full(resource: &str, limit: usize, message: String) -> Failure {
    Failure::new("no_capacity", message).with("resource", resource).with("limit", limit)
}

impl Node {
    fn unknown(id: &SandboxId) -> Failure {
        Failure::new("sandbox_not_found", format!("the sandbox {id} has no uplink"))
    }

    pub fn info(&self) -> Value {
        let (rulesets, rules) = self.policies.size();
        json!({
            "version": env!("CARGO_PKG_VERSION"),
            "network4": self.block.network4.to_string(),
            "network6": self.block.network6.to_string(),
            "address4": self.block.gateway4().to_string(),
            "address6": self.block.gateway6().to_string(),
            "dnsPort": 53,
            "servicePorts": [self.options.service_ports.0, self.options.service_ports.1],
            "mtu": self.mtu,
            "sandboxes": self.uplinks.len(),
            "maxSandboxes": self.block.uplinks(),
            "rulesets": rulesets,
            "rules": rules,
            "pins": self.pins.count(),
            "gate": self.feeder.is_fed(),
            "withoutProcesses": self.origins.lack,
        })
    }

    fn describe(&self, slot: u32, word: PolicyWord) -> Value {
        json!({
            "interface": self.block.device(slot),
            "address4": self.block.address4(slot).to_string(),
            "address6": self.block.address6(slot).to_string(),
            "generation": word.generation,
        })
    }

    pub fn list(&self) -> Value {
        let mut all: Vec<_> = self.uplinks.all().collect();
        all.sort_by_key(|(slot, _)| *slot);
        let one = |(slot, live): &(u32, &crate::uplinks::Live)| {
            let mut shown = self.describe(*slot, live.word);
            shown["id"] = json!(live.id.as_str());
            shown
        };
        json!({ "uplinks": all.iter().map(one).collect::<Vec<_>>() })
    }

    pub fn open(&mut self, id: &SandboxId) -> Result<Value, Failure> {
        if let Some(slot) = self.uplinks.slot_of(id)
            && let Some(live) = self.uplinks.get(slot)
        {
            return Ok(self.describe(slot, live.word));
        }
        let namespace = namespace::open(&self.place.records(), &self.boot, id)?;
        let slot = self.reserve(id, namespace.inode)?;
        match self.wire(slot, &namespace) {
            Ok(()) => Ok(self.describe(slot, PolicyWord::default())),
            Err((stage, errno)) => {
                self.shut(slot);
                self.remover.order(self.block.index(slot));
                Err(refused(stage, errno))
            }
        }
    }

    /// A slot, closed and without a device.
    pub(crate) fn reserve(&mut self, id: &SandboxId, inode: u64) -> Result<u32, Failure> {
        let slot = self.uplinks.take(&self.kernel.maps.uplinks, &self.block, id, inode).ok_or_else(|| {
            let limit = self.block.uplinks() as usize;
            full("uplinks", limit, format!("the network of the node has addresses for {limit} sandboxes"))
        })?;
        self.kernel.maps.counters.set(slot as usize, &Counters::zeroed());
        Ok(slot)
    }

    pub(crate) fn wire(&mut self, slot: u32, namespace: &Namespace) -> Result<(), (&'static str, Errno)> {
        self.know(slot, namespace);
        let Namespace { fd: namespace, .. } = namespace;
        let Self { netlink, block, home, .. } = self;
        wiring::create(netlink, block, slot, namespace, self.mtu).map_err(|errno| ("device", errno))?;
        let programs = filters::put_programs(block.index(slot), &self.kernel.programs);
        netlink.ask_one(programs).map_err(|errno| ("programs", errno))?;
        wiring::connect(netlink, block, slot, (home, namespace), self.has_ipv6).map_err(|errno| ("addresses", errno))
    }

    /// Nothing passes from here on. The device has to go.
    pub(crate) fn shut(&mut self, slot: u32) {
        let now = Instant::now();
        self.origins.close(slot);
        if let Some(live) = self.uplinks.close(&self.kernel.maps.uplinks, slot) {
            self.policies.release(live.word.ruleset, now);
            self.pins.retire(live.word.generation, now);
            self.feeder.changed(&live.id, None);
        }
    }

    /// With `waits` the answer comes when the device is gone; else when nothing passes it any more, since the device of a sandbox that is over goes with it.
    pub fn close(&mut self, caller: Caller, id: &SandboxId, waits: bool) {
        let Some(slot) = self.uplinks.slot_of(id) else {
            return self.answers.push((caller, Ok(json!({}))));
        };
        let is_kept = self.is_kept(slot);
        self.forget_coming(
            slot,
            Failure::new("sandbox_not_found", format!("the sandbox {id} was closed before it came")),
        );
        if is_kept {
            self.shut(slot);
            self.uplinks.free(slot);
            self.answers.push((caller, Ok(json!({}))));
        } else if waits {
            self.closing.push((slot, caller));
            self.close_slot(slot);
        } else {
            self.shut(slot);
            self.leaving.push_back((Instant::now() + LEAVES_WITHIN, slot));
            self.answers.push((caller, Ok(json!({}))));
        }
    }

    /// Removes devices that have not gone by themselves. When there is more to do.
    fn remove_left(&mut self, now: Instant) -> Option<Instant> {
        while let Some((_, slot)) = self.leaving.pop_front_if(|(due, _)| *due <= now) {
            self.remover.order(self.block.index(slot));
        }
        self.leaving.front().map(|(due, _)| *due)
    }

    /// Waits until nothing is left of what was closed, but no longer than [`ENDS_WITHIN`].
    pub fn finish(&mut self) {
        let until = Instant::now() + ENDS_WITHIN;
        self.remove_left(until);
        while self.uplinks.is_closing()
            && let Some(left) = until.checked_duration_since(Instant::now())
            && self.remover.wait(left)
        {
            self.removed();
        }
    }

    pub fn close_slot(&mut self, slot: u32) {
        self.shut(slot);
        self.remover.order(self.block.index(slot));
    }

    /// Devices that the remover is done with.
    pub fn removed(&mut self) {
        let removed = self.remover.take();
        // The kernel has announced their end by now; later it would be the end of who has the slot next.
        self.hear();
        for (index, outcome) in removed {
            let Some(slot) = self.block.slot_of_index(index) else { continue };
            let answer = match outcome {
                Ok(()) => {
                    self.uplinks.free(slot);
                    Ok(json!({}))
                }
                Err(errno) => {
                    self.warn("device-left", &json!({ "slot": slot, "errno": errno_name(errno) }));
                    let message = "the uplink is closed, and its device could not be removed".to_owned();
                    Err(Failure::new("cleanup_incomplete", message).with("left", vec![self.block.device(slot)]))
                }
            };
            let (done, waiting) = std::mem::take(&mut self.closing).into_iter().partition(|(other, _)| *other == slot);
            self.closing = waiting;
            let done: Vec<(u32, Caller)> = done;
            self.answers.extend(done.into_iter().map(|(_, caller)| (caller, answer.clone())));
        }
    }

    /// Devices that are gone by themselves: their namespaces are.
    pub fn hear(&mut self) {
        loop {
            match self.watch.hear() {
                Heard::Nothing => return,
                Heard::Gone(indexes) => indexes.into_iter().for_each(|index| self.device_gone(index)),
                Heard::Lost => self.look_for_devices(),
            }
        }
    }

    fn device_gone(&mut self, index: u32) {
        let Some(slot) = self.block.slot_of_index(index) else { return };
        if self.uplinks.get(slot).is_some() {
            self.forget_coming(slot, Failure::new("sandbox_not_found", "the sandbox has ended"));
            self.shut(slot);
            self.uplinks.free(slot);
        } else if let Some(at) = self.leaving.iter().position(|(_, other)| *other == slot) {
            self.leaving.remove(at);
            self.uplinks.free(slot);
        }
    }

    fn look_for_devices(&mut self) {
        match crate::host::devices(&mut self.netlink, &self.block) {
            Ok(present) => {
                let slots: Vec<u32> =
                    self.uplinks.all().map(|(slot, _)| slot).filter(|slot| !self.is_kept(*slot)).collect();
                for slot in slots.into_iter().filter(|slot| !present.contains(slot)) {
                    self.device_gone(self.block.index(slot));
                }
            }
            Err(errno) => self.warn("devices-unknown", &json!({ "errno": errno_name(errno) })),
        }
    }

    /// The answer comes when the gate knows of it.
    pub fn set_policy(&mut self, caller: Caller, policy: NewPolicy) {
        let id = policy.id.clone();
        let slot = self.uplinks.slot_of(&id);
        match policy.opens {
            Some(wait) if slot.is_none() => return self.open_with(caller, policy, wait),
            Some(_) if slot.is_some_and(|slot| self.is_kept(slot)) => {
                let failure = Failure::new("sandbox_not_ready", format!("the sandbox {id} is waited for already"));
                return self.answers.push((caller, Err(failure)));
            }
            _ => {}
        }
        match self.change_policy(policy) {
            Ok(answer) => self.feeder.changed(&id, Some((caller, answer))),
            Err(failure) => self.answers.push((caller, Err(failure))),
        }
    }

    pub(crate) fn change_policy(&mut self, policy: NewPolicy) -> Result<Value, Failure> {
        let begun = Instant::now();
        let slot = self.uplinks.slot_of(&policy.id).ok_or_else(|| Self::unknown(&policy.id))?;
        let ruleset = self.policies.acquire(&policy.rules).map_err(|errno| match errno {
            Errno::NOSPC | Errno::TOOBIG | Errno::NOMEM => {
                let limit = crate::policies::MAX_ENTRIES;
                full(
                    "rules",
                    limit,
                    format!("the policies of the node's sandboxes have {limit} different rules in all"),
                )
            }
            errno => refused("rules", errno),
        })?;
        let generation = self.uplinks.next_generation();
        if let Err(failure) = self.pin(generation, &policy.pins) {
            self.pins.abandon(generation);
            self.policies.release(ruleset, begun);
            return Err(failure);
        }
        let word = PolicyWord { generation, ruleset, flags: policy.flags };
        let Some(live) = self.uplinks.get_mut(slot) else { return Err(Self::unknown(&policy.id)) };
        let before = std::mem::replace(&mut live.word, word);
        live.is_adopted = false;
        live.names = Arc::new(policy.names);
        live.pinned = HashMap::new();
        remember(&mut live.pinned, &policy.pins);
        self.kernel.maps.uplinks.set_first(slot as usize, word.encode());
        let micros = begun.elapsed().as_micros() as u64;
        self.policies.release(before.ruleset, begun);
        self.pins.retire(before.generation, begun);
        let mut answer = self.describe(slot, word);
        answer["micros"] = json!(micros);
        Ok(answer)
    }

    fn pin(&mut self, generation: u32, pins: &[NewPin]) -> Result<(), Failure> {
        for pin in pins {
            self.pins.add(generation, pin).map_err(|errno| match errno {
                Errno::NOSPC | Errno::TOOBIG | Errno::NOMEM => {
                    full("pins", MAX_PINS, format!("the sandbox, or its node, has no room for another address by name (at most {MAX_PINS} a sandbox)"))
                }
                errno => refused("pins", errno),
            })?;
        }
        Ok(())
    }

    /// The same: an address that is answered is one that the gate knows.
    pub fn add_pins(&mut self, caller: Caller, id: &SandboxId, generation: u32, pins: Vec<NewPin>) {
        match self.put_pins(id, generation, &pins) {
            Ok(answer) => self.feeder.pinned(id, generation, pins, (caller, answer)),
            Err(failure) => self.answers.push((caller, Err(failure))),
        }
    }

    fn put_pins(&mut self, id: &SandboxId, generation: u32, pins: &[NewPin]) -> Result<Value, Failure> {
        let slot = self.uplinks.slot_of(id).ok_or_else(|| Self::unknown(id))?;
        let current = self.uplinks.get(slot).map_or(0, |live| live.word.generation);
        if generation == 0 || current != generation {
            let message = format!("the policy of the sandbox {id} has changed: its generation is {current}");
            return Err(Failure::new("policy_stale", message).with("version", current));
        }
        self.pin(generation, pins)?;
        if let Some(live) = self.uplinks.get_mut(slot) {
            remember(&mut live.pinned, pins);
        }
        Ok(json!({ "pins": self.pins.count_of(generation) }))
    }

    pub fn counters(&self, id: &SandboxId) -> Result<Value, Failure> {
        let slot = self.uplinks.slot_of(id).ok_or_else(|| Self::unknown(id))?;
        let counters = self.kernel.maps.counters.get(slot as usize);
        let denied: Map<String, Value> =
            REASONS.iter().zip(counters.denied).map(|(reason, count)| ((*reason).to_owned(), count.into())).collect();
        Ok(json!({
            "sentPackets": counters.sent_packets,
            "sentBytes": counters.sent_bytes,
            "receivedPackets": counters.received_packets,
            "receivedBytes": counters.received_bytes,
            "denied": denied,
        }))
    }

    /// The processes of a sandbox are known from here on. One whose cannot be is as good as any other.
    fn know(&mut self, slot: u32, namespace: &namespace::Namespace) {
        if let Err(errno) = self.origins.open(slot, &self.home, namespace) {
            self.warn("processes-unknown", &json!({ "slot": slot, "errno": errno_name(errno) }));
        }
    }

    /// The same for sandboxes whose uplinks are of an egressd that could not.
    pub fn know_adopted(&mut self) {
        let missing = self.uplinks.all().filter(|(slot, _)| self.origins.is_missing(*slot));
        let missing: Vec<(u32, SandboxId)> = missing.map(|(slot, live)| (slot, live.id.clone())).collect();
        for (slot, id) in missing {
            if let Ok(namespace) = namespace::open(&self.place.records(), &self.boot, &id) {
                self.know(slot, &namespace);
            }
        }
    }

    /// Whose socket has asked the resolver or a service something.
    pub fn owner(&mut self, caller: Caller, id: &SandboxId, address: IpAddr, asker: Asker) {
        let Some(slot) = self.uplinks.slot_of(id) else {
            return self.answers.push((caller, Err(Self::unknown(id))));
        };
        let known = self.is_address_of(slot, address).then(|| self.origins.of_asker(slot, asker)).flatten();
        self.processes.tell(known, Tell::Owner(caller), Instant::now());
    }

    fn is_address_of(&self, slot: u32, address: IpAddr) -> bool {
        address == self.block.address4(slot) || address == self.block.address6(slot)
    }

    /// What the programs have told.
    pub fn take_denials(&mut self) {
        let now = Instant::now();
        while let Some(item) = self.kernel.denials.next() {
            let Some(denial) = denials::parse(&item) else { continue };
            // The slot may have another sandbox by now.
            if let Some(live) = self.uplinks.get(denial.slot) {
                let known = self.origins.know(denial.slot, &denial.origin);
                let event = Tell::Event("denied", denials::describe(live.id.as_str(), &denial));
                self.processes.tell(known, event, now);
            }
        }
    }

    fn take_refused(&mut self, now: Instant) {
        for refused in std::mem::take(&mut self.feeder.refused) {
            let Some(slot) = self.uplinks.slot_of(&refused.id) else { continue };
            let known = refused.asker.and_then(|asker| self.origins.of_asker(slot, asker));
            self.processes.tell(known, Tell::Event("refused", refused.told), now);
        }
    }

    /// Passes on what is complete.
    fn tell(&mut self, now: Instant) {
        for (what, process) in self.processes.take(now) {
            let with_process = |mut of: Value| {
                if let Some(process) = process {
                    of["process"] = process;
                }
                of
            };
            match what {
                Tell::Event(name, event) => self.told.push(json!({ name: with_process(event) })),
                Tell::Owner(caller) => self.answers.push((caller, Ok(with_process(json!({}))))),
            }
        }
    }

    /// Everything that may go on now. How long nothing more will.
    pub fn advance(&mut self, now: Instant) -> Option<Duration> {
        let feeding = self.feeder.turn(&self.place, &self.block, &self.uplinks, &self.log);
        self.take_fed();
        self.take_refused(now);
        self.tell(now);
        let coming = self.expire_coming(now);
        let due = [self.policies.sweep(now), self.pins.sweep(now), self.remove_left(now)].into_iter().flatten().min();
        let due = due.map(|due| due.saturating_duration_since(now));
        due.into_iter().chain(feeding).chain(self.processes.due(now)).chain(coming).min()
    }

    pub fn warn(&self, event: &str, fields: &Value) {
        self.log.write(Level::Warn, event, fields);
    }

    pub fn denials_fd(&self) -> std::os::fd::BorrowedFd<'_> {
        self.kernel.denials.as_fd()
    }
}

/// Names that an address has, for the gate: what is over makes room.
fn remember(pinned: &mut HashMap<crate::layout::Address, Vec<Pinned>>, pins: &[NewPin]) {
    let now = boot_ns();
    for pin in pins {
        let expires_at = now.saturating_add(u64::try_from(pin.ttl.as_nanos()).unwrap_or(u64::MAX));
        let names = pinned.entry(pin.address).or_default();
        names.retain(|other| other.expires_at > now && other.name != pin.name);
        if names.len() >= MAX_NAMES_OF_ADDRESS {
            names.remove(0);
        }
        names.push(Pinned { name: pin.name.clone(), expires_at, ranges: pin.ranges.clone() });
    }
    if pinned.len() > MAX_PINS {
        pinned.retain(|_, names| names.iter().any(|name| name.expires_at > now));
    }
}

/// Names of one address that a new gate is told; there are servers of thousands.
const MAX_NAMES_OF_ADDRESS: usize = 16;
