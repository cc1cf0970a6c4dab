//! The sandboxes: who has which address, and what each may.

use std::collections::{HashMap, HashSet};
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use crate::bounds::{CONNECTION_BURST, CONNECTIONS_A_SECOND, EVENT_BURST, EVENTS_A_SECOND, MAX_PINS, MAX_SANDBOXES};
use crate::budget::Budget;
use crate::name::HostName;
use crate::pins::Pins;
use crate::policy::{Policy, Verdict};
use crate::refusal::Reason;
use crate::request::{NewPins, NewPolicy, SandboxId};
use daemon::failure::Failure;

#[derive(Debug)]
pub struct Sandbox {
    pub id: SandboxId,
    addresses: Vec<IpAddr>,
    generation: u64,
    policy: Policy,
    pins: Pins,
    /// Its open connections.
    pub flows: HashSet<u32>,
    pub counts: Counts,
    /// Events that it may cause, and connections.
    pub events: Budget,
    pub rate: Budget,
}

/// What a sandbox has now, and what it had since its policy first came.
#[derive(Clone, Copy, Debug, Default)]
pub struct Counts {
    pub undecided: usize,
    pub held_bytes: usize,
    pub accepted: u64,
    pub connected: u64,
    pub unreachable: u64,
    pub refused: u64,
    pub cut: u64,
    pub encrypted_hellos: u64,
    pub bytes_up: u64,
    pub bytes_down: u64,
}

impl Sandbox {
    /// Whether a connection for this name may go to this address. Pins count at the moment when the connection came.
    pub fn decide(&self, name: &HostName, destination: SocketAddr, at: Instant) -> Result<(), Reason> {
        if self.policy.verdict(name, destination.port()) == Verdict::Denied {
            return Err(Reason::NameNotAllowed);
        }
        if !self.pins.is_pinned(name, destination.ip(), at) {
            return Err(Reason::NameNotOfAddress);
        }
        Ok(())
    }

    /// The name by which a connection may carry anything, where there is one. An error when the address is of no name at all.
    pub fn decide_unread(&self, destination: SocketAddr, at: Instant) -> Result<Option<HostName>, Reason> {
        let mut names = self.pins.names(destination.ip(), at).peekable();
        if names.peek().is_none() {
            return Err(Reason::AddressNotPinned);
        }
        if !self.policy.has_any() {
            return Ok(None);
        }
        Ok(names.find(|name| self.still_carries_any(name, destination.port())).cloned())
    }

    pub fn still_allows(&self, name: &HostName, port: u16) -> bool {
        self.policy.verdict(name, port) != Verdict::Denied
    }

    pub fn still_carries_any(&self, name: &HostName, port: u16) -> bool {
        self.policy.verdict(name, port) == Verdict::Any
    }

    pub fn pins(&self) -> usize {
        self.pins.count()
    }

    pub fn generation(&self) -> u64 {
        self.generation
    }
}

#[derive(Debug, Default)]
pub struct Table {
    sandboxes: HashMap<SandboxId, Sandbox>,
    by_address: HashMap<IpAddr, SandboxId>,
}

impl Table {
    /// Puts a policy in force, all of it at once.
    pub fn set(&mut self, new: NewPolicy, now: Instant) -> Result<(), Failure> {
        let NewPolicy { id, addresses, generation, rules, pins } = new;
        if let Some(address) =
            addresses.iter().find(|address| self.by_address.get(*address).is_some_and(|of| *of != id))
        {
            return Err(Failure::invalid("params", &format!("have the address {address} of another sandbox")));
        }
        let mut fresh = Pins::default();
        fresh.add(pins, now).map_err(|_| too_many_pins())?;
        if !self.sandboxes.contains_key(&id) && self.sandboxes.len() >= MAX_SANDBOXES {
            return Err(Failure::new(
                "too_many_requests",
                format!("policies of {MAX_SANDBOXES} sandboxes are in force"),
            ));
        }
        let sandbox = self.sandboxes.entry(id.clone()).or_insert_with(|| Sandbox {
            id: id.clone(),
            addresses: Vec::new(),
            generation: 0,
            policy: Policy::default(),
            pins: Pins::default(),
            flows: HashSet::new(),
            counts: Counts::default(),
            events: Budget::new(EVENT_BURST, EVENTS_A_SECOND, now),
            rate: Budget::new(CONNECTION_BURST, CONNECTIONS_A_SECOND, now),
        });
        for old in std::mem::replace(&mut sandbox.addresses, addresses) {
            self.by_address.remove(&old);
        }
        self.by_address.extend(sandbox.addresses.iter().map(|address| (*address, id.clone())));
        sandbox.generation = generation;
        sandbox.policy = Policy::new(rules);
        sandbox.pins = fresh;
        Ok(())
    }

    pub fn add_pins(&mut self, new: NewPins, now: Instant) -> Result<(), Failure> {
        let sandbox = self.sandboxes.get_mut(&new.id).ok_or_else(|| unknown(&new.id))?;
        if sandbox.generation != new.generation {
            return Err(stale(sandbox.generation));
        }
        sandbox.pins.add(new.pins, now).map_err(|_| too_many_pins())
    }

    pub fn remove(&mut self, id: &SandboxId) -> Option<Sandbox> {
        let sandbox = self.sandboxes.remove(id)?;
        for address in &sandbox.addresses {
            self.by_address.remove(address);
        }
        Some(sandbox)
    }

    pub fn get(&self, id: &SandboxId) -> Result<&Sandbox, Failure> {
        self.sandboxes.get(id).ok_or_else(|| unknown(id))
    }

    pub fn get_mut(&mut self, id: &SandboxId) -> Option<&mut Sandbox> {
        self.sandboxes.get_mut(id)
    }

    /// Whose address it is.
    pub fn at(&mut self, address: IpAddr) -> Option<&mut Sandbox> {
        self.sandboxes.get_mut(self.by_address.get(&address)?)
    }

    pub fn count(&self) -> usize {
        self.sandboxes.len()
    }
}

fn unknown(id: &SandboxId) -> Failure {
    Failure::new("sandbox_not_found", format!("the gate has no policy of the sandbox {id}")).with("id", id.as_str())
}

fn stale(generation: u64) -> Failure {
    Failure::new("policy_stale", format!("the policy is of generation {generation} by now")).with("version", generation)
}

fn too_many_pins() -> Failure {
    Failure::new("too_many_requests", format!("one sandbox has at most {MAX_PINS} pins"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::request::{self, Request};

    fn set(table: &mut Table, params: &str, now: Instant) -> Result<(), Failure> {
        match request::parse("policy.set", params).expect("sound") {
            Request::Set(policy) => table.set(policy, now),
            other => panic!("{other:?}"),
        }
    }

    fn params(id: &str, address: &str, generation: u64) -> String {
        format!(
            r#"{{"id":"{id}","address4":"{address}","generation":{generation},
            "names":[{{"pattern":"a.test","ports":[["tcp",443,443,true]]}},{{"pattern":"ssh.test","ports":[["tcp",22,22,true]],"anyProtocol":true}}],
            "pins":[{{"address":"192.0.2.1","name":"a.test","ttlMs":1000}},{{"address":"192.0.2.2","name":"ssh.test","ttlMs":1000}}]}}"#
        )
    }

    #[test]
    fn name_port_and_address_must_belong_together() {
        let (mut table, now) = (Table::default(), Instant::now());
        set(&mut table, &params("a1", "198.18.0.2", 1), now).expect("set");
        let sandbox = table.at("198.18.0.2".parse().expect("address")).expect("known");
        let decide = |name: &str, destination: &str| {
            let name = HostName::parse(name.as_bytes()).expect(name);
            sandbox.decide(&name, destination.parse().expect(destination), now)
        };
        assert_eq!(decide("a.test", "192.0.2.1:443"), Ok(()));
        assert_eq!(decide("a.test", "192.0.2.1:80"), Err(Reason::NameNotAllowed));
        assert_eq!(decide("b.test", "192.0.2.1:443"), Err(Reason::NameNotAllowed));
        assert_eq!(decide("a.test", "192.0.2.2:443"), Err(Reason::NameNotOfAddress));
        let unread = |destination: &str| {
            let name = sandbox.decide_unread(destination.parse().expect(destination), now);
            name.map(|name| name.map(|name| name.to_string()))
        };
        assert_eq!(unread("192.0.2.1:443"), Ok(None));
        assert_eq!(unread("192.0.2.2:22"), Ok(Some("ssh.test".to_owned())));
        assert_eq!(unread("192.0.2.2:23"), Ok(None));
        assert_eq!(unread("192.0.2.3:22"), Err(Reason::AddressNotPinned));
    }

    #[test]
    fn an_address_is_of_one_sandbox_and_pins_are_of_one_generation() {
        let (mut table, now) = (Table::default(), Instant::now());
        set(&mut table, &params("a1", "198.18.0.2", 5), now).expect("set");
        assert_eq!(set(&mut table, &params("a2", "198.18.0.2", 1), now).expect_err("taken").code, "invalid_argument");
        set(&mut table, &params("a1", "198.18.0.3", 6), now).expect("another address");
        assert!(table.at("198.18.0.2".parse().expect("address")).is_none());
        set(&mut table, &params("a2", "198.18.0.2", 1), now).expect("free again");
        let id = SandboxId::parse("a1").expect("id");
        let pins = |generation| NewPins { id: id.clone(), generation, pins: Vec::new() };
        assert_eq!(table.add_pins(pins(5), now).expect_err("another").code, "policy_stale");
        assert_eq!(table.add_pins(pins(6), now), Ok(()));
        assert!(table.remove(&id).is_some() && table.remove(&id).is_none());
        assert!(table.at("198.18.0.3".parse().expect("address")).is_none());
        assert_eq!(table.count(), 1);
    }
}
