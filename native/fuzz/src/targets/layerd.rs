//! layerd: chunk maps, which come from a store that others write to (whatever is accepted can be fetched and written without a further check); what other nodes
//! ask; traces, which may be cut anywhere.

use layerd::chunk_map::{CHUNK_BYTES, ChunkMap, ENTRY_BYTES, Entry, HEADER_BYTES};
use layerd::digest::Digest;
use layerd::peer::Question;
use layerd::trace;

use super::Target;
use crate::random::hash;

pub const CHUNK_MAP: Target = Target { name: "layerd-chunk-map", corpus: maps, run: map, max_memory };

pub const QUESTION: Target = Target { name: "layerd-question", corpus: questions, run: question, max_memory };
pub const TRACE: Target = Target { name: "layerd-trace", corpus: traces, run: read_trace, max_memory: trace_memory };

fn questions() -> Vec<Vec<u8>> {
    let of = |chunks: Vec<u32>| {
        let mut bytes = Vec::new();
        Question { layer: Digest([7; 32]), chunks }.write(&mut bytes).expect("written");
        bytes
    };
    vec![of(vec![0]), of((0..16).collect()), [of(vec![u32::MAX]), of(vec![1, 2])].concat(), of(vec![5])[..43].to_vec()]
}

/// What is read is what was written: nothing is left out, and the next one begins behind it.
fn question(input: &[u8]) -> u64 {
    let (mut rest, mut read) = (input, 0);
    loop {
        let before = rest;
        match Question::read(&mut rest) {
            Ok(Some(question)) => {
                let mut again = Vec::new();
                question.write(&mut again).expect("written");
                assert_eq!(again, before[..before.len() - rest.len()]);
                assert!((1..=16).contains(&question.chunks.len()));
                read += 2;
            }
            Ok(None) => return read,
            Err(_) => return read + 1,
        }
    }
}

fn traces() -> Vec<Vec<u8>> {
    let of = |chunks: u32, words: &[u32]| {
        let mut bytes = b"DSECTRAC".to_vec();
        bytes.extend(1_u32.to_le_bytes());
        bytes.extend(chunks.to_le_bytes());
        words.iter().for_each(|word| bytes.extend(word.to_le_bytes()));
        bytes
    };
    vec![of(10, &[]), of(10, &[9, 1, 9, 10, 0]), of(1_000, &[999, 5])[..22].to_vec(), of(u32::MAX, &[1])]
}

/// Whatever is read names chunks that can be, each once.
fn read_trace(input: &[u8]) -> u64 {
    let known = trace::parse(input, Some(10));
    let mut sorted = known.clone();
    sorted.sort_unstable();
    sorted.dedup();
    assert_eq!(sorted.len(), known.len());
    assert!(known.iter().all(|chunk| *chunk < 10) && known.len() <= input.len() / 4);
    let said = trace::parse(input, None);
    assert!(said.len() <= input.len() / 4);
    known.len() as u64 * 100 + said.len() as u64
}

/// With a bit for each chunk that a layer may have.
fn trace_memory(input: usize) -> usize {
    (256 << 10) + max_memory(input)
}

fn max_memory(input: usize) -> usize {
    (64 << 10) + 8 * input
}

/// A map of these entries: first byte of the digest, pack, offset, stored bytes.
fn encode(data_bytes: u64, packs: u8, entries: &[(u8, u32, u64, u32)]) -> Vec<u8> {
    let mut bytes = b"DSECCHNK".to_vec();
    bytes.extend(1_u32.to_le_bytes());
    bytes.extend((CHUNK_BYTES as u32).to_le_bytes());
    bytes.extend(data_bytes.to_le_bytes());
    bytes.extend((entries.len() as u32).to_le_bytes());
    bytes.extend(u32::from(packs).to_le_bytes());
    (1..=packs).for_each(|pack| bytes.extend([pack; 32]));
    for (digest, pack, offset, stored) in entries {
        bytes.extend([*digest; 32]);
        bytes.extend(pack.to_le_bytes());
        bytes.extend(offset.to_le_bytes());
        bytes.extend(stored.to_le_bytes());
    }
    bytes
}

fn maps() -> Vec<Vec<u8>> {
    vec![
        encode(0, 0, &[]),
        encode(4_096, 1, &[(9, 0, 0, 4_096)]),
        encode(3 * CHUNK_BYTES, 2, &[(1, 0, 0, 50), (0, 0, 0, 0), (2, 1, 7, 262_144)]),
        encode(CHUNK_BYTES + 8_192, 1, &[(1, 0, 0, 50), (2, 0, 49, 50)]),
        b"DSECCHNK".to_vec(),
    ]
}

fn map(input: &[u8]) -> u64 {
    let map = match ChunkMap::parse(input) {
        Ok(map) => map,
        // Why it was refused, but not at which chunk.
        Err(why) => {
            let reason: Vec<u8> = why.to_string().bytes().filter(|byte| !byte.is_ascii_digit()).collect();
            return hash(&reason);
        }
    };
    let header = map.header;
    assert_eq!(map.packs.len(), header.packs as usize);
    assert_eq!(input.len() as u64, header.map_bytes());
    let mut holes = 0;
    for chunk in 0..header.chunks {
        let at = header.entry_offset(chunk) as usize;
        let bytes: &[u8; ENTRY_BYTES] = input[at..].first_chunk().expect("within the map");
        let entry = Entry::parse(bytes, &header, chunk).expect("a map that was accepted has sound entries");
        assert!((1..=CHUNK_BYTES).contains(&u64::from(header.plain_bytes(chunk))));
        assert_eq!(map.is_hole(chunk), entry.is_hole());
        if entry.is_hole() {
            holes += 1;
        } else {
            assert!((entry.pack as usize) < map.packs.len());
            assert!((1..=header.plain_bytes(chunk)).contains(&entry.stored_bytes));
            assert!(entry.offset + u64::from(entry.stored_bytes) <= 64 << 20);
        }
    }
    assert!(input.len() >= HEADER_BYTES);
    1 + u64::from(header.chunks) * 1_000 + holes
}
