//! What is fetched together, and what is fetched ahead.

use std::sync::Arc;
use std::time::Instant;

use crate::layer::Layer;
use crate::places::Place;

/// Chunks of one read of the blob store.
pub const MAX_JOB_CHUNKS: usize = 16;
/// Chunks ahead of a reader, at most.
const MAX_AHEAD: u32 = 16;
/// A reader is this many times further than what is fetched ahead of it: so little is fetched in vain.
const RUN_PER_AHEAD: u32 = 4;
/// Sequential readers that are followed in one layer.
const MAX_STREAMS: usize = 8;

/// Chunks that lie one behind the other in one pack.
pub struct Job {
    pub index: u32,
    pub layer: Arc<Layer>,
    pub chunks: Vec<(u32, Place)>,
    pub deadline: Instant,
    pub is_prefetch: bool,
}

/// Divides chunks into those that one read can bring.
pub fn group(mut chunks: Vec<(u32, Place)>) -> Vec<Vec<(u32, Place)>> {
    chunks.sort_by_key(|(chunk, place)| (place.pack, place.offset, *chunk));
    let mut groups: Vec<Vec<(u32, Place)>> = Vec::new();
    for (chunk, place) in chunks {
        let last = groups.last_mut().filter(|group| group.len() < MAX_JOB_CHUNKS);
        let follows = last.filter(|group| {
            group.last().is_some_and(|(_, before)| {
                before.pack == place.pack && before.offset + u64::from(before.stored_bytes) == place.offset
            })
        });
        match follows {
            Some(group) => group.push((chunk, place)),
            None => groups.push(vec![(chunk, place)]),
        }
    }
    groups
}

/// Follows readers that go forward.
#[derive(Default)]
pub struct Streams(Vec<Stream>);

struct Stream {
    next: u32,
    run: u32,
}

impl Streams {
    /// Says how many chunks behind `last` are likely to be read soon.
    pub fn ahead(&mut self, first: u32, last: u32) -> u32 {
        let known = self.0.iter().position(|stream| first == stream.next || first + 1 == stream.next);
        let mut stream = match known {
            Some(at) => self.0.remove(at),
            None => Stream { next: first, run: 0 },
        };
        stream.run = stream.run.saturating_add((last + 1).saturating_sub(stream.next));
        stream.next = stream.next.max(last + 1);
        let ahead = (stream.run / RUN_PER_AHEAD).min(MAX_AHEAD);
        if self.0.len() >= MAX_STREAMS {
            // The one that has not gone on for the longest time.
            self.0.remove(0);
        }
        self.0.push(stream);
        ahead
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::digest::Digest;

    fn place(pack: u8, offset: u64, stored_bytes: u32) -> Place {
        Place { digest: Digest([1; 32]), pack: Digest([pack; 32]), offset, stored_bytes }
    }

    #[test]
    fn neighbours_in_a_pack_are_read_together() {
        let chunks = vec![
            (9, place(1, 0, 5)),
            (3, place(0, 10, 10)),
            (4, place(0, 0, 10)),
            (5, place(0, 30, 1)),
            (6, place(0, 31, 1)),
        ];
        let groups: Vec<Vec<u32>> =
            group(chunks).iter().map(|group| group.iter().map(|(chunk, _)| *chunk).collect()).collect();
        assert_eq!(groups, [vec![4, 3], vec![5, 6], vec![9]]);
        let long = group((0..40).map(|n| (n, place(0, u64::from(n) * 7, 7))).collect());
        assert_eq!(long.iter().map(Vec::len).collect::<Vec<_>>(), [16, 16, 8]);
    }

    #[test]
    fn only_readers_that_go_forward_get_more_than_they_ask_for() {
        let mut streams = Streams::default();
        assert_eq!(streams.ahead(0, 1), 0);
        assert_eq!(streams.ahead(100, 101), 0, "another one");
        assert_eq!(streams.ahead(2, 3), 1);
        assert_eq!(streams.ahead(3, 3), 1, "the rest of a chunk");
        assert_eq!(streams.ahead(4, 7), 2);
        assert_eq!(streams.ahead(50, 50), 0, "a jump");
        assert_eq!(streams.ahead(8, 200), 16, "bounded");
        for jump in 0..20 {
            assert_eq!(streams.ahead(1_000 + 5 * jump, 1_000 + 5 * jump), 0);
        }
    }
}
