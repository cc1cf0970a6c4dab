//! Which sandbox has which uplink. The map of the kernel is the record: what is not in it is not there.
//!
//! A slot is free, live (its device has a sandbox), or closing (its device is being removed). One that became free is used again last, so that flows of the one before are
//! over by then.

use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;

use launcher::request::SandboxId;

use crate::block::Block;
use crate::layout::{Plain, PolicyWord, Uplink};
use crate::request::Name;
use crate::sys::mapped::Mapped;

pub struct Live {
    pub id: SandboxId,
    pub net_inode: u64,
    pub word: PolicyWord,
    /// An egressd before this one has made it, and its policy was not set again.
    pub is_adopted: bool,
    /// For the gate; an adopted uplink has none until its policy is set again.
    pub names: Arc<Vec<Name>>,
    /// The same: names by address.
    pub pinned: HashMap<crate::layout::Address, Vec<Pinned>>,
}

#[derive(Clone)]
pub struct Pinned {
    pub name: String,
    /// Of `CLOCK_BOOTTIME`.
    pub expires_at: u64,
    pub ranges: Vec<crate::request::WireRange>,
}

pub struct Uplinks {
    live: HashMap<u32, Live>,
    by_id: HashMap<SandboxId, u32>,
    closing: HashSet<u32>,
    free: VecDeque<u32>,
    pub last_generation: u32,
}

/// What was there.
pub struct Adopted {
    pub uplinks: Uplinks,
    /// Slots of devices that nobody has: they have to go.
    pub strays: Vec<u32>,
    /// Sandboxes whose devices are gone.
    pub gone: Vec<SandboxId>,
}

fn id_bytes(id: &SandboxId) -> [u8; 24] {
    let mut bytes = [0; 24];
    for (to, from) in bytes.iter_mut().zip(id.as_str().bytes()) {
        *to = from;
    }
    bytes
}

fn id_of(bytes: &[u8; 24]) -> Option<SandboxId> {
    let text = std::str::from_utf8(bytes).ok()?;
    SandboxId::parse(text.trim_end_matches('\0'))
}

impl Uplinks {
    /// Takes over the uplinks of the map that have devices, by slot.
    pub fn adopt(map: &Mapped<Uplink>, block: &Block, devices: &HashSet<u32>) -> Adopted {
        let mut gone = Vec::new();
        let mut uplinks = Self {
            live: HashMap::new(),
            by_id: HashMap::new(),
            closing: HashSet::new(),
            free: VecDeque::new(),
            last_generation: 0,
        };
        for slot in 0..block.uplinks() {
            let entry = map.get(slot as usize);
            let id = id_of(&entry.id).filter(|id| !uplinks.by_id.contains_key(id));
            match id.filter(|_| devices.contains(&slot)) {
                Some(id) => {
                    let word = PolicyWord::decode(entry.policy);
                    uplinks.last_generation = uplinks.last_generation.max(word.generation);
                    uplinks.insert(slot, id, entry.net_inode, word);
                    if let Some(live) = uplinks.live.get_mut(&slot) {
                        live.is_adopted = true;
                    }
                }
                None => {
                    gone.extend(id_of(&entry.id));
                    map.set(slot as usize, &Uplink::zeroed());
                    if !devices.contains(&slot) {
                        uplinks.free.push_back(slot);
                    }
                }
            }
        }
        let strays: Vec<u32> = devices.iter().filter(|slot| !uplinks.live.contains_key(slot)).copied().collect();
        uplinks.closing.extend(&strays);
        Adopted { uplinks, strays, gone }
    }

    fn insert(&mut self, slot: u32, id: SandboxId, net_inode: u64, word: PolicyWord) {
        self.by_id.insert(id.clone(), slot);
        let live = Live { id, net_inode, word, is_adopted: false, names: Arc::default(), pinned: HashMap::new() };
        self.live.insert(slot, live);
    }

    pub fn slot_of(&self, id: &SandboxId) -> Option<u32> {
        self.by_id.get(id).copied()
    }

    pub fn get(&self, slot: u32) -> Option<&Live> {
        self.live.get(&slot)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Live> {
        self.live.get_mut(&slot)
    }

    pub fn all(&self) -> impl Iterator<Item = (u32, &Live)> {
        self.live.iter().map(|(slot, live)| (*slot, live))
    }

    pub fn len(&self) -> usize {
        self.live.len()
    }

    pub fn is_empty(&self) -> bool {
        self.live.is_empty()
    }

    /// A slot for a sandbox, closed.
    pub fn take(&mut self, map: &Mapped<Uplink>, block: &Block, id: &SandboxId, net_inode: u64) -> Option<u32> {
        let slot = self.free.pop_front()?;
        let octets = crate::cidr::number;
        let entry = Uplink {
            policy: 0,
            address4: (octets(block.address4(slot)) as u32).to_be_bytes(),
            address6: octets(block.address6(slot)).to_be_bytes(),
            unused: 0,
            net_inode,
            id: id_bytes(id),
        };
        map.set(slot as usize, &entry);
        self.insert(slot, id.clone(), net_inode, PolicyWord::default());
        Some(slot)
    }

    /// The sandbox that a slot was kept for is there: with this network namespace.
    pub fn identify(&mut self, map: &Mapped<Uplink>, slot: u32, net_inode: u64) {
        if let Some(live) = self.live.get_mut(&slot) {
            live.net_inode = net_inode;
            map.set(slot as usize, &Uplink { net_inode, ..map.get(slot as usize) });
        }
    }

    /// Whether devices of uplinks that are closed are still to go.
    pub fn is_closing(&self) -> bool {
        !self.closing.is_empty()
    }

    /// Closes an uplink at once. Its device has to be removed.
    pub fn close(&mut self, map: &Mapped<Uplink>, slot: u32) -> Option<Live> {
        map.set(slot as usize, &Uplink::zeroed());
        let live = self.live.remove(&slot)?;
        self.by_id.remove(&live.id);
        self.closing.insert(slot);
        Some(live)
    }

    /// The device of a closing uplink is gone.
    pub fn free(&mut self, slot: u32) {
        if self.closing.remove(&slot) {
            self.free.push_back(slot);
        }
    }

    pub fn next_generation(&mut self) -> u32 {
        self.last_generation = self.last_generation.checked_add(1).unwrap_or(1);
        self.last_generation
    }
}
