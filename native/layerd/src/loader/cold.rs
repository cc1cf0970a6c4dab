//! Which chunks are coldest: of all layers on the node, whether they are open or not, those that were read longest ago.

use std::collections::{HashMap, HashSet};
use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{AtFlags, statat};
use serde_json::json;

use super::Loader;
use super::book::ChunkKey;
use crate::chunk_map::{CHUNK_BYTES, Header};
use crate::digest::Digest;
use crate::filled::Filled;
use crate::layer::{self, Layer};
use daemon::log::Level;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cold {
    pub chunk: u32,
    pub bytes: u32,
    pub used_at: u32,
}

pub enum Owner {
    Open(u32, Arc<Layer>),
    Closed(Digest),
}

/// What one layer has of the coldest.
pub struct Found {
    pub owner: Owner,
    pub chunks: Vec<Cold>,
}

impl Loader {
    /// The coldest chunks that no thread may be reading, as many as have these bytes together.
    pub fn coldest(&self, surplus: u64) -> Vec<Found> {
        let Some(mut owners) = self.open_owners() else {
            self.log.write(Level::Error, "no-eviction", &json!({ "message": "more readers than can be remembered" }));
            return Vec::new();
        };
        let closed: Vec<Digest> = self.book().closed.keys().copied().collect();
        owners.extend(closed.into_iter().filter_map(|digest| self.closed_owner(digest)));
        let mut order: Vec<(u32, usize, usize)> = Vec::new();
        for (at, owner) in owners.iter().enumerate() {
            order.extend(owner.chunks.iter().enumerate().map(|(n, cold)| (cold.used_at, at, n)));
        }
        order.sort_unstable();
        let mut freed = 0;
        let mut chosen: HashMap<usize, Vec<Cold>> = HashMap::new();
        for (_, at, n) in order {
            if freed >= surplus {
                break;
            }
            let cold = owners[at].chunks[n];
            freed += u64::from(cold.bytes);
            chosen.entry(at).or_default().push(cold);
        }
        let chosen_of = |(at, found): (usize, Found)| Some(Found { chunks: chosen.remove(&at)?, owner: found.owner });
        owners.into_iter().enumerate().filter_map(chosen_of).collect()
    }

    /// Nothing when it is not known who reads what.
    fn open_owners(&self) -> Option<Vec<Found>> {
        let book = self.book();
        if book.readers.is_overflown {
            return None;
        }
        let pinned: HashSet<ChunkKey> =
            book.pinned(&self.shared).flat_map(|(index, chunks)| chunks.map(move |chunk| (index, chunk))).collect();
        let open: Vec<(u32, Arc<Layer>)> = book
            .open
            .iter()
            .filter(|(_, open)| open.layer.has_data())
            .map(|(index, open)| (*index, open.layer.clone()))
            .collect();
        drop(book);
        let found = |(index, layer): (u32, Arc<Layer>)| {
            let mut chunks = present(&layer.filled, layer.map.header.data_bytes);
            chunks.retain(|cold| !pinned.contains(&(index, cold.chunk)));
            Found { owner: Owner::Open(index, layer), chunks }
        };
        Some(open.into_iter().map(found).collect())
    }

    /// Nothing of a layer without `filled`: its data were not brought here by a loader, and nobody could bring them again.
    fn closed_owner(&self, digest: Digest) -> Option<Found> {
        let directory = layer::directory(self.layers.as_fd(), &digest).ok()?;
        let filled = Filled::existing(directory.as_fd()).ok()?;
        let data = statat(&directory, "data", AtFlags::SYMLINK_NOFOLLOW).ok()?;
        Some(Found { owner: Owner::Closed(digest), chunks: present(&filled, data.st_size as u64) })
    }
}

/// Chunks that are on the disk, or may be.
fn present(filled: &Filled, data_bytes: u64) -> Vec<Cold> {
    let bytes = |chunk| data_bytes.saturating_sub(Header::chunk_offset(chunk)).min(CHUNK_BYTES) as u32;
    (0..filled.chunks())
        .filter(|chunk| filled.may_be_there(*chunk))
        .map(|chunk| Cold { chunk, bytes: bytes(chunk), used_at: filled.used_at(chunk) })
        .collect()
}
