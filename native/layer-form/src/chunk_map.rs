//! The chunk map of a layer (`docs/layers.md`): where each 256 KiB of its data come from.

use std::fmt;

use crate::digest::Digest;

pub const CHUNK_BYTES: u64 = 262_144;
pub const HEADER_BYTES: usize = 32;
pub const PACK_BYTES: usize = 32;
pub const ENTRY_BYTES: usize = 48;
/// Data of one layer: 256 GiB.
pub const MAX_CHUNKS: u32 = 1 << 20;
/// Every pack holds a chunk that the map names.
const MAX_PACK_BYTES: u64 = 64 << 20;

const BLOCK_BYTES: u64 = 4_096;
const MAGIC: &[u8; 8] = b"DSECCHNK";
const VERSION: u32 = 1;

/// Why bytes are no chunk map.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Invalid {
    Magic,
    Version,
    ChunkSize,
    ChunkCount,
    PackCount,
    Length,
    /// The data are not whole blocks of a file system.
    Blocks,
    /// A pack is named twice, or not used.
    Packs,
    /// Two different chunks share bytes of a pack.
    Overlap,
    /// The entry of this chunk names a pack, an offset or a length that cannot be.
    Entry(u32),
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Magic => f.write_str("does not begin as a chunk map does"),
            Self::Version => f.write_str("has another version"),
            Self::ChunkSize => f.write_str("has another chunk size"),
            Self::ChunkCount => f.write_str("counts its chunks wrongly"),
            Self::PackCount => f.write_str("counts its packs wrongly"),
            Self::Length => f.write_str("is cut off, or goes on after its end"),
            Self::Blocks => f.write_str("has data that are not whole blocks"),
            Self::Packs => f.write_str("names a pack twice, or one that it does not use"),
            Self::Overlap => f.write_str("has different chunks that share bytes of a pack"),
            Self::Entry(chunk) => write!(f, "has a wrong entry for chunk {chunk}"),
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    pub data_bytes: u64,
    pub chunks: u32,
    pub packs: u32,
}

impl Header {
    /// Reads the first bytes of a map.
    pub fn parse(bytes: &[u8]) -> Result<Self, Invalid> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>().ok_or(Invalid::Length)?;
        if !bytes.starts_with(MAGIC) {
            return Err(Invalid::Magic);
        }
        if word(bytes, 8) != VERSION {
            return Err(Invalid::Version);
        }
        if u64::from(word(bytes, 12)) != CHUNK_BYTES {
            return Err(Invalid::ChunkSize);
        }
        if !long(bytes, 16).is_multiple_of(BLOCK_BYTES) {
            return Err(Invalid::Blocks);
        }
        let header = Self { data_bytes: long(bytes, 16), chunks: word(bytes, 24), packs: word(bytes, 28) };
        if header.chunks > MAX_CHUNKS || header.data_bytes.div_ceil(CHUNK_BYTES) != u64::from(header.chunks) {
            return Err(Invalid::ChunkCount);
        }
        if header.packs > header.chunks {
            return Err(Invalid::PackCount);
        }
        Ok(header)
    }

    pub fn map_bytes(&self) -> u64 {
        self.entry_offset(self.chunks)
    }

    /// Where the entry of a chunk begins.
    pub fn entry_offset(&self, chunk: u32) -> u64 {
        HEADER_BYTES as u64 + u64::from(self.packs) * PACK_BYTES as u64 + u64::from(chunk) * ENTRY_BYTES as u64
    }

    /// Where the data of a chunk begin.
    pub fn chunk_offset(chunk: u32) -> u64 {
        u64::from(chunk) * CHUNK_BYTES
    }

    /// How long a chunk is: the last one is as long as the data go on.
    pub fn plain_bytes(&self, chunk: u32) -> u32 {
        self.data_bytes.saturating_sub(Self::chunk_offset(chunk)).min(CHUNK_BYTES) as u32
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub digest: Digest,
    pub pack: u32,
    pub offset: u64,
    pub stored_bytes: u32,
}

impl Entry {
    pub fn is_hole(&self) -> bool {
        self.digest == Digest::HOLE
    }

    /// Reads and checks the entry of `chunk`.
    pub fn parse(bytes: &[u8; ENTRY_BYTES], header: &Header, chunk: u32) -> Result<Self, Invalid> {
        let mut digest = [0; 32];
        digest.copy_from_slice(&bytes[..32]);
        let entry = Self {
            digest: Digest(digest),
            pack: word(bytes, 32),
            offset: long(bytes, 36),
            stored_bytes: word(bytes, 44),
        };
        if entry.is_hole() {
            let names_nothing = (entry.pack, entry.offset, entry.stored_bytes) == (0, 0, 0);
            return names_nothing.then_some(entry).ok_or(Invalid::Entry(chunk));
        }
        let end = entry.offset.checked_add(u64::from(entry.stored_bytes));
        let is_sound = entry.pack < header.packs
            && (1..=header.plain_bytes(chunk)).contains(&entry.stored_bytes)
            && end.is_some_and(|end| end <= MAX_PACK_BYTES);
        is_sound.then_some(entry).ok_or(Invalid::Entry(chunk))
    }
}

/// A whole map.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChunkMap {
    pub header: Header,
    pub packs: Vec<Digest>,
    /// One bit for each chunk that is a hole.
    pub holes: Vec<u64>,
    /// Of all chunk digests, one behind the other: a part of the layer's name.
    pub chunks_digest: Digest,
}

impl ChunkMap {
    /// Reads and checks every entry. Entries are not kept: a loader reads those that it needs.
    pub fn parse(bytes: &[u8]) -> Result<Self, Invalid> {
        let header = Header::parse(bytes)?;
        if bytes.len() as u64 != header.map_bytes() {
            return Err(Invalid::Length);
        }
        let (packs, entries) = bytes[HEADER_BYTES..].split_at(header.packs as usize * PACK_BYTES);
        let packs: Vec<Digest> = packs.as_chunks::<PACK_BYTES>().0.iter().map(|id| Digest(*id)).collect();
        let mut distinct = packs.clone();
        distinct.sort_unstable();
        distinct.dedup();
        if distinct.len() != packs.len() {
            return Err(Invalid::Packs);
        }
        drop(distinct);
        let mut is_used = vec![false; packs.len()];
        // Where each stored chunk lies, and which entry says so.
        let mut places: Vec<(u32, u32, u32)> = Vec::new();
        let mut holes = vec![0; header.chunks.div_ceil(64) as usize];
        let mut hasher = crate::digest::Hasher::default();
        for (chunk, bytes) in (0..).zip(entries.as_chunks::<ENTRY_BYTES>().0) {
            let entry = Entry::parse(bytes, &header, chunk)?;
            if entry.is_hole() {
                holes[chunk as usize / 64] |= 1 << (chunk % 64);
            } else {
                is_used[entry.pack as usize] = true;
                // Packs are shorter than four gigabytes.
                places.push((entry.pack, entry.offset as u32, chunk));
            }
            hasher.update(&bytes[..32]);
        }
        if is_used.contains(&false) {
            return Err(Invalid::Packs);
        }
        check_overlaps(places, entries)?;
        Ok(Self { header, packs, holes, chunks_digest: hasher.finish() })
    }

    pub fn is_hole(&self, chunk: u32) -> bool {
        self.holes[chunk as usize / 64] & (1 << (chunk % 64)) != 0
    }
}

fn check_overlaps(mut places: Vec<(u32, u32, u32)>, entries: &[u8]) -> Result<(), Invalid> {
    let entries = entries.as_chunks::<ENTRY_BYTES>().0;
    let stored = |chunk: u32| word(&entries[chunk as usize], 44);
    places.sort_unstable_by_key(|(pack, offset, chunk)| (*pack, *offset, stored(*chunk)));
    for pair in places.windows(2) {
        let ((pack, offset, chunk), (next_pack, next_offset, next)) = (pair[0], pair[1]);
        let is_apart = pack != next_pack || offset + stored(chunk) <= next_offset;
        if !is_apart && entries[chunk as usize] != entries[next as usize] {
            return Err(Invalid::Overlap);
        }
    }
    Ok(())
}

fn word(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]])
}

fn long(bytes: &[u8], at: usize) -> u64 {
    u64::from(word(bytes, at)) | (u64::from(word(bytes, at + 4)) << 32)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(data_bytes: u64, entries: &[(u8, u32, u64, u32)], packs: u32) -> Vec<u8> {
        let mut bytes = MAGIC.to_vec();
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((CHUNK_BYTES as u32).to_le_bytes());
        bytes.extend(data_bytes.to_le_bytes());
        bytes.extend((entries.len() as u32).to_le_bytes());
        bytes.extend(packs.to_le_bytes());
        for pack in 0..packs {
            bytes.extend([pack as u8 + 1; 32]);
        }
        for (digest, pack, offset, stored) in entries {
            bytes.extend([*digest; 32]);
            bytes.extend(pack.to_le_bytes());
            bytes.extend(offset.to_le_bytes());
            bytes.extend(stored.to_le_bytes());
        }
        bytes
    }

    #[test]
    fn a_map_is_read() {
        let parsed = ChunkMap::parse(&map(CHUNK_BYTES + 4_096, &[(7, 0, 5, 99), (0, 0, 0, 0)], 1)).expect("sound");
        assert_eq!((parsed.header.chunks, parsed.packs.as_slice()), (2, [Digest([1; 32])].as_slice()));
        assert_eq!((parsed.is_hole(0), parsed.is_hole(1)), (false, true));
        assert_eq!((parsed.header.plain_bytes(0), parsed.header.plain_bytes(1)), (262_144, 4_096));
        assert!(ChunkMap::parse(&map(0, &[], 0)).is_ok());
    }

    #[test]
    fn wrong_maps_are_refused() {
        let good = map(CHUNK_BYTES + 4_096, &[(7, 0, 5, 99), (8, 0, 104, 4_096)], 1);
        for length in 0..good.len() {
            assert_eq!(ChunkMap::parse(&good[..length]), Err(Invalid::Length), "{length}");
        }
        assert_eq!(ChunkMap::parse(&[good.clone(), vec![0]].concat()), Err(Invalid::Length));
        let changed = |at: usize, byte: u8| {
            let mut bytes = good.clone();
            bytes[at] = byte;
            ChunkMap::parse(&bytes)
        };
        assert_eq!(changed(0, 0), Err(Invalid::Magic));
        assert_eq!(changed(8, 2), Err(Invalid::Version));
        assert_eq!(changed(12, 1), Err(Invalid::ChunkSize));
        assert_eq!(changed(16, 1), Err(Invalid::Blocks));
        assert_eq!(changed(24, 3), Err(Invalid::ChunkCount));
        assert_eq!(changed(28, 3), Err(Invalid::PackCount));
        let two = |packs| ChunkMap::parse(&map(CHUNK_BYTES + 4_096, &[(7, 0, 5, 99), (8, 0, 103, 4_096)], packs));
        assert_eq!(two(1), Err(Invalid::Overlap));
        assert_eq!(two(2), Err(Invalid::Packs), "one that is not used");
        let entry = |pack, offset, stored| ChunkMap::parse(&map(4_096, &[(7, pack, offset, stored)], 1));
        assert_eq!(entry(1, 0, 1), Err(Invalid::Entry(0)), "a pack that is not there");
        assert_eq!(entry(0, 0, 4_097), Err(Invalid::Entry(0)), "more than it could be as it is");
        assert_eq!(entry(0, 0, 0), Err(Invalid::Entry(0)));
        assert_eq!(entry(0, u64::MAX, 1), Err(Invalid::Entry(0)));
        assert_eq!(entry(0, MAX_PACK_BYTES, 1), Err(Invalid::Entry(0)), "beyond the longest pack");
    }
}
