//! Layers that the store has laid out anew: when a pack is gone, the store's chunk map says where its chunks lie now.

use std::os::fd::AsFd;
use std::time::Instant;

use serde_json::json;

use super::Loader;
use super::plan::Job;
use crate::chunk_map::ChunkMap;
use crate::layer::{self, MAX_MAP_BYTES};
use crate::places::Place;
use crate::source;
use daemon::log::Level;

impl Loader {
    /// Where these chunks lie now, when that is elsewhere.
    pub fn moved(&self, job: &Job, chunks: &[(u32, Place)]) -> Option<Vec<(u32, Place)>> {
        let now = || job.layer.places.of(chunks.iter().map(|(chunk, _)| *chunk)).ok().filter(|places| places != chunks);
        // Somebody else may have looked in the meantime.
        now().or_else(|| {
            let turn = job.layer.places.look();
            if turn.is_some() {
                self.take_map(job);
            }
            drop(turn);
            now()
        })
    }

    fn take_map(&self, job: &Job) {
        let layer = &job.layer;
        let why = match self.map_of(job) {
            Ok(is_new) => {
                let fields = json!({ "layer": layer.digest.to_string(), "isNew": is_new });
                return self.log.write(Level::Info, "chunk-map-taken", &fields);
            }
            Err(why) => why,
        };
        let fields = json!({ "layer": layer.digest.to_string(), "message": why });
        self.log.write(Level::Warn, "chunk-map-not-taken", &fields);
    }

    fn map_of(&self, job: &Job) -> Result<bool, String> {
        let layer = &job.layer;
        let key = format!("layers/{}/{}", layer.digest.hex(), layer::MAP);
        let deadline = job.deadline.max(Instant::now() + super::events::MARGIN);
        let object = source::until(deadline, || self.source.object(&key, MAX_MAP_BYTES, deadline));
        let bytes = object.map_err(|error| error.to_string())?;
        let map = ChunkMap::parse(&bytes).map_err(|why| format!("the chunk map in the blob store {why}"))?;
        let own = &layer.map;
        let is_same = map.header.data_bytes == own.header.data_bytes && map.chunks_digest == own.chunks_digest;
        if !is_same {
            return Err("the chunk map in the blob store is that of another layer".to_owned());
        }
        layer::directory(self.layers.as_fd(), &layer.digest)
            .and_then(|directory| layer.places.replace(directory.as_fd(), &bytes, &map))
            .map_err(crate::failure::errno_name)
    }
}
