//! Which address was an answer for which name, and until when.

use std::collections::HashMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

use crate::bounds::{MAX_PINS, PIN_GRACE};
use crate::name::HostName;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pin {
    pub address: IpAddr,
    pub name: HostName,
    pub ttl: Duration,
}

#[derive(Debug)]
struct Held {
    name: HostName,
    until: Instant,
}

#[derive(Debug, Default)]
pub struct Pins {
    by_address: HashMap<IpAddr, Vec<Held>>,
    count: usize,
}

/// There is no room for more.
#[derive(Debug, PartialEq, Eq)]
pub struct Full;

impl Pins {
    /// Adds all or none. One that is there already holds until the later of both ends: an answer does not take back an earlier one.
    pub fn add(&mut self, pins: Vec<Pin>, now: Instant) -> Result<(), Full> {
        if self.count + pins.len() > MAX_PINS {
            self.forget_expired(now);
            let new = pins.iter().filter(|pin| !self.has(pin)).count();
            if self.count + new > MAX_PINS {
                return Err(Full);
            }
        }
        for pin in pins {
            let held = self.by_address.entry(pin.address).or_default();
            let until = now + pin.ttl;
            match held.iter_mut().find(|held| held.name == pin.name) {
                Some(held) => held.until = held.until.max(until),
                None => {
                    held.push(Held { name: pin.name, until });
                    self.count += 1;
                }
            }
        }
        Ok(())
    }

    fn has(&self, pin: &Pin) -> bool {
        self.by_address.get(&pin.address).is_some_and(|held| held.iter().any(|held| held.name == pin.name))
    }

    fn forget_expired(&mut self, now: Instant) {
        self.by_address.retain(|_, held| {
            held.retain(|held| held.holds(now));
            !held.is_empty()
        });
        self.count = self.by_address.values().map(Vec::len).sum();
    }

    /// The names that an address is pinned to.
    pub fn names(&self, address: IpAddr, at: Instant) -> impl Iterator<Item = &HostName> {
        let held = self.by_address.get(&address).into_iter().flatten();
        held.filter(move |held| held.holds(at)).map(|held| &held.name)
    }

    pub fn is_pinned(&self, name: &HostName, address: IpAddr, at: Instant) -> bool {
        self.names(address, at).any(|pinned| pinned == name)
    }

    pub fn count(&self) -> usize {
        self.count
    }
}

impl Held {
    fn holds(&self, at: Instant) -> bool {
        at <= self.until + PIN_GRACE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pin(address: [u8; 4], name: &str, seconds: u64) -> Pin {
        let name = HostName::parse(name.as_bytes()).expect(name);
        Pin { address: address.into(), name, ttl: Duration::from_secs(seconds) }
    }

    #[test]
    fn a_pin_is_for_its_name_and_time() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let (one, two) = (pin([192, 0, 2, 1], "a.test", 10), pin([192, 0, 2, 1], "b.test", 20));
        pins.add(vec![one.clone(), two.clone()], now).expect("room");
        let later = now + Duration::from_secs(10) + PIN_GRACE;
        assert!(pins.is_pinned(&one.name, one.address, later));
        assert!(!pins.is_pinned(&one.name, one.address, later + Duration::from_millis(1)));
        assert!(pins.is_pinned(&two.name, two.address, later + Duration::from_millis(1)));
        assert!(!pins.is_pinned(&one.name, IpAddr::from([192, 0, 2, 2]), now));
        pins.add(vec![pin([192, 0, 2, 1], "a.test", 1)], now).expect("room");
        assert!(pins.is_pinned(&one.name, one.address, later), "a shorter answer takes nothing back");
        assert_eq!(pins.count(), 2);
    }

    #[test]
    fn what_is_over_makes_room() {
        let (mut pins, now) = (Pins::default(), Instant::now());
        let many = |seconds| (0..MAX_PINS as u32).map(|n| pin(n.to_be_bytes(), "a.test", seconds)).collect::<Vec<_>>();
        pins.add(many(1), now).expect("room");
        assert_eq!(pins.add(vec![pin([255, 0, 0, 1], "a.test", 1)], now), Err(Full));
        pins.add(many(5), now).expect("the same again are no more");
        let later = now + Duration::from_secs(6) + PIN_GRACE;
        pins.add(vec![pin([255, 0, 0, 1], "a.test", 1)], later).expect("room");
        assert_eq!(pins.count(), 1);
    }
}
