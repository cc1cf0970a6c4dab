//! What is kept of one output stream: the first quarter of the limit and the newest three quarters. Offsets count from the
//! first byte that was ever written.

/// What a reader finds at an offset.
#[derive(Debug, PartialEq, Eq)]
pub enum Found<'a> {
    Bytes(&'a [u8]),
    /// Nothing is kept up to the given offset.
    Gap(u64),
    /// Nothing has been written there yet.
    End,
}

/// Smallest limit: below it a ring would only cost system calls.
pub const MIN_LIMIT: usize = 4 << 10;
/// Greatest limit of one stream.
pub const MAX_LIMIT: usize = 16 << 20;
pub const DEFAULT_LIMIT: usize = 1 << 20;

#[derive(Debug)]
pub struct Ring {
    head: Vec<u8>,
    head_limit: usize,
    /// A circle whose oldest byte is at `tail_at` once it is full; it grows up to `tail_limit`.
    tail: Vec<u8>,
    tail_at: usize,
    tail_limit: usize,
    total: u64,
    /// Contents were given back; what comes is only counted.
    forgotten: bool,
}

/// Grows by doubling, but not beyond the limit.
fn append(to: &mut Vec<u8>, bytes: &[u8], limit: usize) {
    let needed = to.len() + bytes.len();
    if needed > to.capacity() {
        let target = (2 * to.capacity()).min(limit).max(needed);
        to.reserve_exact(target - to.len());
    }
    to.extend_from_slice(bytes);
}

impl Ring {
    /// Allocates nothing until something is written.
    pub fn new(limit: usize) -> Self {
        let limit = limit.clamp(MIN_LIMIT, MAX_LIMIT);
        let head_limit = limit / 4;
        Self {
            head: Vec::new(),
            head_limit,
            tail: Vec::new(),
            tail_at: 0,
            tail_limit: limit - head_limit,
            total: 0,
            forgotten: false,
        }
    }

    /// Bytes ever written.
    pub fn total(&self) -> u64 {
        self.total
    }

    /// Bytes that are not kept.
    pub fn dropped(&self) -> u64 {
        self.total - (self.head.len() + self.tail.len()) as u64
    }

    /// Memory in use.
    pub fn held_bytes(&self) -> usize {
        self.head.capacity() + self.tail.capacity()
    }

    fn tail_start(&self) -> u64 {
        self.total - self.tail.len() as u64
    }

    /// Bytes that may still be written before one at or after `from` is lost.
    pub fn room_beyond(&self, from: u64) -> usize {
        let kept_from = from.max(self.head_limit as u64);
        let capacity = kept_from + self.tail_limit as u64;
        capacity.saturating_sub(self.total) as usize
    }

    /// Uses no more memory than it does, or than the least.
    pub fn stop_growing(&mut self) {
        let least = MIN_LIMIT / 4;
        self.head_limit = self.head_limit.min(self.head.len().max(least));
        // A circle that has begun to turn keeps its size.
        if self.tail.len() < self.tail_limit {
            self.tail_limit = self.tail.len().max(MIN_LIMIT - least).min(self.tail_limit);
        }
    }

    pub fn write(&mut self, mut bytes: &[u8]) {
        self.total += bytes.len() as u64;
        if self.forgotten {
            return;
        }
        let to_head = (self.head_limit - self.head.len()).min(bytes.len());
        if to_head > 0 {
            append(&mut self.head, &bytes[..to_head], self.head_limit);
            bytes = &bytes[to_head..];
        }
        if bytes.len() > self.tail_limit {
            bytes = &bytes[bytes.len() - self.tail_limit..];
        }
        // While it grows, the circle is a plain vector that begins at 0.
        let to_growth = (self.tail_limit - self.tail.len()).min(bytes.len());
        if to_growth > 0 {
            append(&mut self.tail, &bytes[..to_growth], self.tail_limit);
            bytes = &bytes[to_growth..];
        }
        while !bytes.is_empty() {
            let n = (self.tail_limit - self.tail_at).min(bytes.len());
            self.tail[self.tail_at..self.tail_at + n].copy_from_slice(&bytes[..n]);
            self.tail_at = (self.tail_at + n) % self.tail_limit;
            bytes = &bytes[n..];
        }
    }

    /// The longest contiguous piece at `offset`.
    pub fn at(&self, offset: u64) -> Found<'_> {
        if offset >= self.total {
            return Found::End;
        }
        if offset < self.head.len() as u64 {
            return Found::Bytes(&self.head[offset as usize..]);
        }
        let start = self.tail_start();
        if offset < start {
            return Found::Gap(start);
        }
        let behind = (offset - start) as usize;
        let index = (self.tail_at + behind) % self.tail.len();
        let end = if index >= self.tail_at { self.tail.len() } else { self.tail_at };
        Found::Bytes(&self.tail[index..end])
    }

    /// Gives the memory back; further bytes are counted only.
    pub fn forget(&mut self) {
        self.head = Vec::new();
        self.tail = Vec::new();
        self.tail_at = 0;
        self.forgotten = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    type Kept = Vec<(u64, u8)>;
    type Gap = Option<(u64, u64)>;

    /// Every kept byte by its offset, and the gap.
    fn collect(ring: &Ring) -> (Kept, Gap) {
        let (mut kept, mut gap, mut at) = (Vec::new(), None, 0);
        loop {
            match ring.at(at) {
                Found::End => return (kept, gap),
                Found::Gap(to) => {
                    assert_eq!(gap, None);
                    gap = Some((at, to));
                    at = to;
                }
                Found::Bytes(bytes) => {
                    assert!(!bytes.is_empty());
                    for &byte in bytes {
                        kept.push((at, byte));
                        at += 1;
                    }
                }
            }
        }
    }

    #[test]
    fn keeps_the_first_quarter_and_the_newest_three_whatever_the_sizes_of_the_writes() {
        for (step, total) in
            [(1, 9_000), (7, 20_000), (4_096, 40_960), (3_072, 30_720), (10_000, 50_000), (100, 100), (1_024, 4_096)]
        {
            let mut ring = Ring::new(MIN_LIMIT);
            let bytes: Vec<u8> = (0..total).map(|i: usize| (i % 251) as u8).collect();
            for chunk in bytes.chunks(step) {
                ring.write(chunk);
            }
            let (kept, gap) = collect(&ring);
            assert!(kept.iter().all(|&(at, byte)| byte == bytes[at as usize]));
            let expected_gap = (total > MIN_LIMIT).then(|| (1_024, (total - 3_072) as u64));
            assert_eq!(gap, expected_gap, "step {step} total {total}");
            assert_eq!(kept.len() as u64 + ring.dropped(), total as u64);
        }
    }

    #[test]
    fn room_counts_to_the_first_byte_that_would_be_lost() {
        let mut ring = Ring::new(MIN_LIMIT);
        assert_eq!(ring.room_beyond(0), MIN_LIMIT);
        ring.write(&[1; 4_096]);
        assert_eq!(ring.room_beyond(0), 0);
        assert_eq!(ring.room_beyond(1_024), 0);
        assert_eq!(ring.room_beyond(1_124), 100);
        ring.write(&[2; 100]);
        assert_eq!(ring.at(1_024), Found::Gap(1_124));
    }

    #[test]
    fn a_ring_that_may_not_grow_goes_on_with_what_it_has() {
        let mut ring = Ring::new(1 << 20);
        let bytes: Vec<u8> = (0..400_000).map(|i: usize| (i % 251) as u8).collect();
        ring.write(&bytes[..300_000]);
        ring.stop_growing();
        let held = ring.held_bytes();
        for chunk in bytes[300_000..].chunks(777) {
            ring.write(chunk);
            ring.stop_growing();
        }
        assert_eq!((ring.total(), ring.held_bytes()), (400_000, held));
        let (kept, gap) = collect(&ring);
        assert!(kept.iter().all(|&(at, byte)| byte == bytes[at as usize]));
        assert_eq!(gap, Some((262_144, 362_144)));
        let mut fresh = Ring::new(1 << 20);
        fresh.stop_growing();
        fresh.write(&bytes);
        assert!(fresh.held_bytes() <= 2 * MIN_LIMIT && fresh.dropped() > 0);
    }

    #[test]
    fn forgotten_contents_cost_nothing_and_are_counted() {
        let mut ring = Ring::new(MIN_LIMIT);
        ring.write(&[1; 10]);
        ring.forget();
        ring.write(&[1; 10]);
        assert_eq!((ring.total(), ring.dropped(), ring.held_bytes()), (20, 20, 0));
        assert_eq!(ring.at(0), Found::Gap(20));
    }
}
