//! The form of layers and sets (`docs/layers.md`), for those who fill them and those who publish them.

pub mod chunk_map;
pub mod digest;

use digest::{Digest, Hasher};

/// Layers that a sandbox may stand on.
pub const MAX_LAYERS: usize = 64;

/// The name that the content gives a layer.
///
/// `chunks` is the digest of the digests of all chunks, one behind the other.
pub fn layer_name(metadata: &Digest, chunks: &Digest) -> Digest {
    Digest::of(format!("dsec-layer 2\n{}\n{}\n", metadata.hex(), chunks.hex()).as_bytes())
}

/// The name that its layers, topmost first, give a set.
pub fn set_name(layers: &[Digest]) -> Digest {
    let mut hasher = Hasher::default();
    hasher.update(b"dsec-set 1\n");
    layers.iter().for_each(|layer| hasher.update(format!("{}\n", layer.hex()).as_bytes()));
    hasher.finish()
}
