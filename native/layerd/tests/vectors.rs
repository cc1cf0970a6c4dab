//! The golden vectors that the TypeScript side writes and reads.

use std::path::{Path, PathBuf};

use layerd::chunk_map::{ChunkMap, ENTRY_BYTES, Entry, Header};
use layerd::digest::Digest;
use serde_json::Value;

fn vectors() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/vectors/layers")
}

fn bytes(name: &str) -> Vec<u8> {
    std::fs::read(vectors().join(name)).expect(name)
}

fn digest(value: &Value) -> Digest {
    Digest::parse_hex(value.as_str().expect("text")).expect("a digest")
}

#[test]
fn the_chunk_map_says_what_the_vector_says() {
    let vector: Value = serde_json::from_slice(&bytes("vector.json")).expect("JSON");
    let map = bytes("chunks.bin");
    let parsed = ChunkMap::parse(&map).expect("sound");
    assert_eq!(vector["dataBytes"], parsed.header.data_bytes);
    let chunks = vector["chunks"].as_array().expect("chunks");
    assert_eq!(parsed.header.chunks as usize, chunks.len());
    let mut data = Vec::new();
    for (chunk, expected) in (0..).zip(chunks) {
        let at = parsed.header.entry_offset(chunk) as usize;
        let entry: &[u8; ENTRY_BYTES] = map[at..].first_chunk().expect("an entry");
        let entry = Entry::parse(entry, &parsed.header, chunk).expect("sound");
        let plain_bytes = parsed.header.plain_bytes(chunk) as usize;
        assert_eq!(parsed.is_hole(chunk), expected.get("hole").is_some());
        if entry.is_hole() {
            data.resize(data.len() + plain_bytes, 0);
            continue;
        }
        assert_eq!(entry.digest, digest(&expected["digest"]));
        assert_eq!(parsed.packs[entry.pack as usize], digest(&expected["pack"]));
        assert_eq!(expected["plainBytes"], plain_bytes);
        let pack = bytes(&format!("pack-{}.bin", entry.pack));
        let stored = &pack[entry.offset as usize..][..entry.stored_bytes as usize];
        let plain = if stored.len() == plain_bytes {
            stored.to_vec()
        } else {
            let mut plain = vec![0; plain_bytes];
            assert_eq!(zstd_safe::decompress(plain.as_mut_slice(), stored), Ok(plain_bytes));
            plain
        };
        assert_eq!(Digest::of(&plain), entry.digest);
        assert_eq!(data.len() as u64, Header::chunk_offset(chunk));
        data.extend(plain);
    }
    assert_eq!(Digest::of(&data), digest(&vector["dataDigest"]));
    for (n, pack) in vector["packs"].as_array().expect("packs").iter().enumerate() {
        assert_eq!(Digest::of(&bytes(&format!("pack-{n}.bin"))), digest(&pack["id"]));
    }
    let name =
        format!("dsec-layer 2\n{}\n{}\n", vector["metadataDigest"].as_str().expect("text"), parsed.chunks_digest.hex());
    assert_eq!(Digest::of(name.as_bytes()), digest(&vector["layer"]));
}

#[test]
fn what_the_other_side_refuses_is_refused() {
    let vector: Value = serde_json::from_slice(&bytes("vector.json")).expect("JSON");
    let refused = vector["refused"].as_array().expect("refused");
    assert!(!refused.is_empty());
    for name in refused {
        let name = name.as_str().expect("text");
        assert!(ChunkMap::parse(&bytes(name)).is_err(), "{name}");
    }
}
