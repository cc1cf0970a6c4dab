//! Addresses that are allowed by name, for a while. The kernel holds to the time by itself; what is over is taken away here.

use std::cmp::Reverse;
use std::collections::{BinaryHeap, HashMap};
use std::os::fd::{AsFd, OwnedFd};
use std::time::{Duration, Instant};

use rustix::time::{ClockId, clock_gettime};

use crate::layout::{Address, Pin, PinKey, PinRange, Plain};
use crate::policies::RETIRE_AFTER;
use crate::request::{MAX_PINS, NewPin, Protocol, WireRange};
use crate::sys::{Errno, Result, bpf};

/// Pins of all sandboxes: `max_entries` of `pins`.
pub const MAX_ENTRIES: usize = 262_144;
/// Pins that are taken away before others have their turn.
const SWEEP_BATCH: usize = 1_024;

/// Nanoseconds of `CLOCK_BOOTTIME`, as the programs count.
pub fn boot_ns() -> u64 {
    let now = clock_gettime(ClockId::Boottime);
    now.tv_sec.unsigned_abs() * 1_000_000_000 + now.tv_nsec.unsigned_abs()
}

pub struct Pins {
    map: OwnedFd,
    /// By generation.
    present: HashMap<u32, HashMap<Address, Pin>>,
    count: usize,
    /// Each pin once, with a time at which it is looked at again.
    looks: BinaryHeap<Reverse<(u64, u32, Address)>>,
    retired: Vec<(Instant, u32)>,
}

/// Puts a range in a pin. The later expiry wins where it is there already. Where all places are taken, TCP is widened, since the gate looks at name and port
/// again; for UDP what is over first makes room.
pub fn put(pin: &mut Pin, WireRange(protocol, low, high, _): WireRange, expires_at: u64, now: u64) {
    let new = PinRange { expires_at, low, high, protocol: protocol.number(), unused: [0; 3] };
    let is_same = |range: &PinRange| (range.low, range.high, range.protocol) == (low, high, new.protocol);
    if let Some(range) = pin.ranges.iter_mut().find(|range| is_same(range)) {
        range.expires_at = range.expires_at.max(expires_at);
        return;
    }
    if let Some(range) = pin.ranges.iter_mut().find(|range| range.expires_at <= now) {
        *range = new;
        return;
    }
    let of_protocol = pin.ranges.iter_mut().filter(|range| range.protocol == new.protocol);
    let Some(range) = of_protocol.min_by_key(|range| range.expires_at) else { return };
    if protocol == Protocol::Tcp {
        let (low, high) = (range.low.min(low), range.high.max(high));
        *range = PinRange { low, high, expires_at: range.expires_at.max(expires_at), ..new };
    } else {
        *range = new;
    }
}

fn last_expiry(pin: &Pin) -> u64 {
    pin.ranges.iter().map(|range| range.expires_at).max().unwrap_or(0)
}

impl Pins {
    /// Takes over what is in the map, of these generations.
    pub fn adopt(map: OwnedFd, generations: &[u32]) -> Result<Self> {
        let keys = bpf::keys::<PinKey>(map.as_fd())?;
        let mut pins = Self { map, present: HashMap::new(), count: 0, looks: BinaryHeap::new(), retired: Vec::new() };
        let now = boot_ns();
        for key in keys {
            match bpf::lookup::<PinKey, Pin>(pins.map.as_fd(), &key)? {
                Some(pin) if generations.contains(&key.generation) && last_expiry(&pin) > now => pins.insert(key, pin),
                _ => bpf::delete(pins.map.as_fd(), &key)?,
            }
        }
        Ok(pins)
    }

    fn insert(&mut self, key: PinKey, pin: Pin) {
        if self.present.entry(key.generation).or_default().insert(key.address, pin).is_none() {
            self.count += 1;
            self.looks.push(Reverse((last_expiry(&pin), key.generation, key.address)));
        }
    }

    /// How many a generation has.
    pub fn count_of(&self, generation: u32) -> usize {
        self.present.get(&generation).map_or(0, HashMap::len)
    }

    /// `NOSPC`: the sandbox has as many as it may, or the node has.
    pub fn add(&mut self, generation: u32, new: &NewPin) -> Result<()> {
        let now = boot_ns();
        let expires_at = now.saturating_add(u64::try_from(new.ttl.as_nanos()).unwrap_or(u64::MAX));
        let key = PinKey { generation, address: new.address };
        let present = self.present.get(&generation).and_then(|pins| pins.get(&new.address)).copied();
        if present.is_none() && (self.count_of(generation) >= MAX_PINS || self.count >= MAX_ENTRIES) {
            return Err(Errno::NOSPC);
        }
        let mut pin = present.unwrap_or_else(Pin::zeroed);
        pin.generation = generation;
        for range in &new.ranges {
            put(&mut pin, *range, expires_at, now);
        }
        bpf::update(self.map.as_fd(), &key, &pin)?;
        self.insert(key, pin);
        Ok(())
    }

    /// The policy of a generation is over.
    pub fn retire(&mut self, generation: u32, now: Instant) {
        if self.present.contains_key(&generation) {
            self.retired.push((now + RETIRE_AFTER, generation));
        }
    }

    /// Takes away all of a generation that no policy has had yet.
    pub fn abandon(&mut self, generation: u32) {
        for address in self.present.remove(&generation).unwrap_or_default().into_keys() {
            // It is in no policy: nobody misses it, and the next egressd finds it.
            let _ = bpf::delete(self.map.as_fd(), &PinKey { generation, address });
            self.count -= 1;
        }
    }

    /// Takes away what is over. When there may be more to do.
    pub fn sweep(&mut self, now: Instant) -> Option<Instant> {
        let over: Vec<u32> = self.retired.iter().filter(|(due, _)| *due <= now).map(|(_, number)| *number).collect();
        self.retired.retain(|(due, _)| *due > now);
        over.into_iter().for_each(|generation| self.abandon(generation));
        let boot_now = boot_ns();
        for _ in 0..SWEEP_BATCH {
            let Some(Reverse((at, generation, address))) = self.looks.peek().copied() else { break };
            if at > boot_now {
                break;
            }
            self.looks.pop();
            let Some(pins) = self.present.get_mut(&generation) else { continue };
            let Some(pin) = pins.get(&address) else { continue };
            let expiry = last_expiry(pin);
            if expiry > boot_now {
                self.looks.push(Reverse((expiry, generation, address)));
                continue;
            }
            pins.remove(&address);
            self.count -= 1;
            if pins.is_empty() {
                self.present.remove(&generation);
            }
            let _ = bpf::delete(self.map.as_fd(), &PinKey { generation, address });
        }
        let next_look = self.looks.peek().map(|Reverse((at, ..))| {
            // Not for each pin alone: what is over has no effect.
            now + Duration::from_nanos(at.saturating_sub(boot_now)).max(RETIRE_AFTER)
        });
        let next_retired = self.retired.iter().map(|(due, _)| *due).min();
        [next_look, next_retired].into_iter().flatten().min()
    }

    pub fn count(&self) -> usize {
        self.count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ranges(pin: &Pin) -> Vec<(u8, u16, u16, u64)> {
        let mut ranges: Vec<_> = pin
            .ranges
            .iter()
            .filter(|range| range.expires_at > 0)
            .map(|range| (range.protocol, range.low, range.high, range.expires_at))
            .collect();
        ranges.sort_unstable();
        ranges
    }

    #[test]
    fn the_later_expiry_wins() {
        let mut pin = Pin::zeroed();
        let range = WireRange(Protocol::Tcp, 443, 443, true);
        put(&mut pin, range, 50, 1);
        put(&mut pin, range, 20, 2);
        assert_eq!(ranges(&pin), [(6, 443, 443, 50)]);
        put(&mut pin, range, 70, 3);
        assert_eq!(ranges(&pin), [(6, 443, 443, 70)]);
    }

    #[test]
    fn names_on_one_address_share_its_places() {
        let mut pin = Pin::zeroed();
        for port in [1, 10, 20, 30] {
            put(&mut pin, WireRange(Protocol::Tcp, port, port, true), u64::from(port) + 100, 1);
        }
        put(&mut pin, WireRange(Protocol::Tcp, 5, 5, true), 300, 2);
        assert_eq!(ranges(&pin)[0], (6, 1, 5, 300), "widened");
        put(&mut pin, WireRange(Protocol::Udp, 7, 7, true), 300, 2);
        assert_eq!(ranges(&pin).len(), 4, "no place");
        put(&mut pin, WireRange(Protocol::Udp, 7, 7, true), 400, 115);
        assert!(ranges(&pin).contains(&(17, 7, 7, 400)), "one was over");
        put(&mut pin, WireRange(Protocol::Udp, 8, 8, true), 500, 116);
        assert!(ranges(&pin).contains(&(17, 8, 8, 500)), "what was over first made room");
    }
}
