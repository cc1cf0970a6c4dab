//! `layer.json` and `set.json` (`docs/layers.md`): what says of them what can be checked.

use layer_form::digest::Digest;
use layer_form::{MAX_LAYERS, set_name};
use serde::{Deserialize, Deserializer};
use serde_json::{Map, Value};

use crate::Errno;

pub const MAX_RECORD_BYTES: u64 = 1 << 20;
pub const LAYER_RECORD: &str = "layer.json";
pub const SET_RECORD: &str = "set.json";
const LAYER_VERSION: u32 = 2;
const SET_VERSION: u32 = 1;

/// Digest and length of a file, or of data.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct Part {
    #[serde(deserialize_with = "digest")]
    pub digest: Digest,
    pub size_bytes: u64,
}

impl Part {
    /// Whether this is what was copied. Of what is longer than it may be, not all was.
    pub fn is(self, copied: Result<Self, Errno>) -> Result<bool, Errno> {
        match copied {
            Ok(part) => Ok(part == self),
            Err(Errno::FBIG) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

/// What a layer is made of. The rest of its record describes it, and is the word of whoever made it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LayerRecord {
    pub metadata: Part,
    pub data: Part,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SetRecord {
    pub image: Part,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct WrittenLayer {
    version: u32,
    #[serde(deserialize_with = "digest")]
    digest: Digest,
    size_bytes: u64,
    metadata: Part,
    data: Part,
    #[serde(rename = "createdAtMs")]
    _created_at_ms: i64,
    #[serde(rename = "architecture")]
    _architecture: String,
    #[serde(rename = "source")]
    _source: Map<String, Value>,
    #[serde(rename = "config")]
    _config: Map<String, Value>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct WrittenSet {
    version: u32,
    #[serde(deserialize_with = "digest")]
    digest: Digest,
    layers: Vec<String>,
    metadata: Part,
}

/// Nothing when these are not the bytes of a record of this layer.
pub fn layer(bytes: &[u8], of: &Digest) -> Option<LayerRecord> {
    let written: WrittenLayer = serde_json::from_slice(bytes).ok()?;
    let WrittenLayer { metadata, data, .. } = written;
    let is_sound = written.version == LAYER_VERSION
        && written.digest == *of
        && metadata.size_bytes.checked_add(data.size_bytes) == Some(written.size_bytes)
        && layer_form::layer_name(&metadata.digest, &data.digest) == *of;
    is_sound.then_some(LayerRecord { metadata, data })
}

/// Nothing when these are not the bytes of a record of this set, whose name is that of its layers.
pub fn set(bytes: &[u8], of: &Digest) -> Option<SetRecord> {
    let written: WrittenSet = serde_json::from_slice(bytes).ok()?;
    if !(1..=MAX_LAYERS).contains(&written.layers.len()) {
        return None;
    }
    let layers = written.layers.iter().map(|layer| Digest::parse(layer)).collect::<Option<Vec<_>>>()?;
    let is_sound = written.version == SET_VERSION && written.digest == *of && set_name(&layers) == *of;
    is_sound.then_some(SetRecord { image: written.metadata })
}

fn digest<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Digest, D::Error> {
    let text = String::deserialize(deserializer)?;
    Digest::parse(&text).ok_or_else(|| serde::de::Error::custom("no digest"))
}
