//! An EROFS image whose data are a device of its own, cut into chunks and packs.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use layerd::chunk_map::CHUNK_BYTES;
use layerd::digest::Digest;

/// Short, so that an image has several.
const PACK_BYTES: usize = 1 << 20;

pub struct Chunk {
    pub digest: Digest,
    pub pack: u32,
    pub offset: u64,
    pub stored_bytes: u32,
}

pub struct Image {
    pub hex: String,
    pub directory: PathBuf,
    pub data: Vec<u8>,
    pub packs: Vec<(Digest, PathBuf)>,
    pub chunks: Vec<Chunk>,
    pub files: BTreeMap<String, Vec<u8>>,
}

/// Bytes from a seed that do not compress.
pub fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut bytes = Vec::with_capacity(length + 8);
    while bytes.len() < length {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        bytes.extend(state.to_le_bytes());
    }
    bytes.truncate(length);
    bytes
}

/// Files of this length, of which every other one compresses.
pub fn files(count: usize, length: usize) -> BTreeMap<String, Vec<u8>> {
    (0..count)
        .map(|n| {
            let bytes = match n % 2 {
                0 => noise(n as u64 + 1, length),
                _ => format!("file {n} of many\n").into_bytes().into_iter().cycle().take(length).collect(),
            };
            (format!("f{n:03}"), bytes)
        })
        .collect()
}

impl Image {
    pub fn build(at: &Path, files: &BTreeMap<String, Vec<u8>>) -> Self {
        let tree = at.join("tree");
        std::fs::create_dir_all(&tree).expect("tree");
        for (name, bytes) in files {
            std::fs::write(tree.join(name), bytes).expect("file");
        }
        let (metadata, device) = (at.join("rootfs.erofs"), at.join("device"));
        let made = Command::new("mkfs.erofs")
            .args(["--quiet", "-T0", "--all-root", "-U00000000-0000-0000-0000-000000000000", "--chunksize=262144"])
            .arg(format!("--blobdev={}", device.display()))
            .args([&metadata, &tree])
            .output()
            .expect("mkfs.erofs");
        assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
        let mut data = std::fs::read(&device).expect("device");
        data.resize(data.len().next_multiple_of(4_096), 0);
        std::fs::remove_dir_all(&tree).and_then(|()| std::fs::remove_file(&device)).expect("removed");

        let mut packs: Vec<Vec<u8>> = Vec::new();
        let mut chunks = Vec::new();
        for plain in data.chunks(CHUNK_BYTES as usize) {
            if plain.iter().all(|byte| *byte == 0) {
                chunks.push(Chunk { digest: Digest::HOLE, pack: 0, offset: 0, stored_bytes: 0 });
                continue;
            }
            let mut stored = vec![0; zstd_safe::compress_bound(plain.len())];
            let length = zstd_safe::compress(stored.as_mut_slice(), plain, 3).expect("compressed");
            stored.truncate(length);
            if stored.len() >= plain.len() {
                stored = plain.to_vec();
            }
            if packs.last().is_none_or(|pack| pack.len() + stored.len() > PACK_BYTES) {
                packs.push(Vec::new());
            }
            let pack = packs.len() as u32 - 1;
            let offset = packs[pack as usize].len() as u64;
            chunks.push(Chunk { digest: Digest::of(plain), pack, offset, stored_bytes: stored.len() as u32 });
            packs[pack as usize].extend(stored);
        }
        let packs: Vec<(Digest, PathBuf)> = packs.iter().map(|pack| install(at, pack)).collect();
        let map = encode(data.len() as u64, &packs, &chunks);
        let digests: Vec<u8> = chunks.iter().flat_map(|chunk| chunk.digest.0).collect();
        let metadata_bytes = std::fs::read(&metadata).expect("metadata");
        let (metadata_digest, chunks_digest) = (Digest::of(&metadata_bytes).hex(), Digest::of(&digests).hex());
        let hex = Digest::of(format!("dsec-layer 2\n{metadata_digest}\n{chunks_digest}\n").as_bytes()).hex();
        let directory = at.join("layers").join(&hex);
        std::fs::create_dir_all(&directory).expect("layer");
        // The directory of layers may be another volume.
        std::fs::copy(&metadata, directory.join("rootfs.erofs")).expect("copied");
        std::fs::remove_file(&metadata).expect("removed");
        std::fs::write(directory.join("chunks"), map).expect("map");
        Self { hex, directory, data, packs, chunks, files: files.clone() }
    }

    /// The chunks that a file's bytes are in.
    pub fn chunks_of(&self, name: &str) -> Vec<usize> {
        let bytes = &self.files[name];
        let start =
            (0..self.data.len()).step_by(4_096).find(|at| self.data[*at..].starts_with(bytes)).expect("in data");
        (start / CHUNK_BYTES as usize..=(start + bytes.len() - 1) / CHUNK_BYTES as usize).collect()
    }

    /// As the store lays a layer out anew: these chunks first, in this order, in a pack of their own, then the others; the packs of before are gone. Returns the map.
    pub fn relayout(&self, at: &Path, trace: &[usize]) -> Vec<u8> {
        let stored = |chunk: &Chunk| {
            let pack = std::fs::read(&self.packs[chunk.pack as usize].1).expect("pack");
            pack[chunk.offset as usize..][..chunk.stored_bytes as usize].to_vec()
        };
        let is_stored = |n: &usize| self.chunks[*n].stored_bytes > 0;
        let first: Vec<usize> = trace.iter().copied().filter(is_stored).collect();
        let rest: Vec<usize> = (0..self.chunks.len()).filter(|n| is_stored(n) && !first.contains(n)).collect();
        let mut packs = Vec::new();
        let mut places = BTreeMap::new();
        for group in [first, rest].into_iter().filter(|group| !group.is_empty()) {
            let mut bytes = Vec::new();
            for n in group {
                places.insert(n, (packs.len() as u32, bytes.len() as u64));
                bytes.extend(stored(&self.chunks[n]));
            }
            packs.push(bytes);
        }
        let installed: Vec<(Digest, PathBuf)> = packs.iter().map(|pack| install(at, pack)).collect();
        for (digest, path) in &self.packs {
            if !installed.iter().any(|(new, _)| new == digest) {
                std::fs::remove_file(path).expect("removed");
            }
        }
        let moved = self.chunks.iter().enumerate().map(|(n, chunk)| {
            let (pack, offset) = places.get(&n).copied().unwrap_or_default();
            Chunk { digest: chunk.digest, pack, offset, stored_bytes: chunk.stored_bytes }
        });
        let map = encode(self.data.len() as u64, &installed, &moved.collect::<Vec<_>>());
        let directory = at.join("blob/layers").join(&self.hex);
        std::fs::create_dir_all(&directory).expect("layer");
        std::fs::write(directory.join("chunks"), &map).expect("map");
        map
    }

    /// The pack that has the first chunk of a file.
    pub fn pack_of(&self, name: &str) -> &Path {
        &self.packs[self.chunks[self.chunks_of(name)[0]].pack as usize].1
    }
}

fn install(at: &Path, pack: &[u8]) -> (Digest, PathBuf) {
    let digest = Digest::of(pack);
    let path = at.join("blob/packs").join(&digest.hex()[..2]).join(digest.hex());
    std::fs::create_dir_all(path.parent().expect("a parent")).expect("packs");
    std::fs::write(&path, pack).expect("pack");
    (digest, path)
}

fn encode(data_bytes: u64, packs: &[(Digest, PathBuf)], chunks: &[Chunk]) -> Vec<u8> {
    let mut map = b"DSECCHNK".to_vec();
    map.extend(1_u32.to_le_bytes());
    map.extend((CHUNK_BYTES as u32).to_le_bytes());
    map.extend(data_bytes.to_le_bytes());
    map.extend((chunks.len() as u32).to_le_bytes());
    map.extend((packs.len() as u32).to_le_bytes());
    packs.iter().for_each(|(pack, _)| map.extend(pack.0));
    for chunk in chunks {
        map.extend(chunk.digest.0);
        map.extend(chunk.pack.to_le_bytes());
        map.extend(chunk.offset.to_le_bytes());
        map.extend(chunk.stored_bytes.to_le_bytes());
    }
    map
}
