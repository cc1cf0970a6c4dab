//! What all of this may cost, whatever programs do. Who waits for an answer spends time of its own, so what is beyond a bound is not taken yet, and its
//! caller waits for its turn.

use std::time::Duration;

use super::rate::Rate;

/// Refused calls of one sandbox that are answered: so many at once, then so many a second.
pub const CALLS: Rate = Rate { burst: 64, per_second: 200 };
/// Refused calls and touches of all sandboxes. One takes 10 to 25 µs of the observer, so this is at most a twentieth of a core.
pub const ANSWERS: Rate = Rate { burst: 200, per_second: 2_000 };
/// A sandbox that has used up its rate is looked at again when it has so many once more: one by one would be a timer each.
pub const CALLS_AT_ONCE: u32 = 8;
/// The same for all.
pub const ANSWERS_AT_ONCE: u32 = 20;

/// Events of one sandbox that are told: what is beyond is counted.
pub const EVENTS: Rate = Rate { burst: 32, per_second: 8 };
/// Events of all sandboxes.
pub const ALL_EVENTS: Rate = Rate { burst: 512, per_second: 256 };
/// Alike events within so long are one.
pub const WINDOW: Duration = Duration::from_secs(1);
/// Kinds of alike events that are kept for their window, of all sandboxes.
pub const MAX_ALIKE: usize = 2_048;

pub const MAX_ANCESTORS: usize = 32;
/// Of the command line of a process.
pub const MAX_ARGV_BYTES: usize = 4_096;
pub const MAX_ARGUMENTS: usize = 64;
/// Of the name of something that is covered.
pub const MAX_PATH_BYTES: usize = 512;

/// How long the command line of a process may take to be read.
pub const ARGV_PATIENCE: Duration = Duration::from_millis(100);
/// A sandbox in which it took longer so often has no command lines told any more.
pub const MAX_LATE_ARGV: u32 = 2;
/// Readers that are stuck in sandboxes, until those end. With so many, no command lines are read.
pub const MAX_STUCK_READERS: usize = 32;

/// Events that wait for a client who does not read, or for the first one.
pub const MAX_WAITING_EVENTS: usize = 1_024;

/// Files with several names that are tripwires, of all sandboxes: each is a descriptor. One beyond it counts as absent.
pub const MAX_PINNED: usize = 4_096;

/// After the observer has died a new one begins, but not sooner than so long after the last one began.
pub const OBSERVER_REST: Duration = Duration::from_secs(1);
/// It is told of sandboxes so long after they were made, many at once; who is refused something before waits.
pub const ORDERS_AFTER: Duration = Duration::from_millis(5);
/// The observer gives way to whoever serves a request.
pub const OBSERVER_NICE: i32 = 5;
