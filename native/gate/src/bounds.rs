//! Every bound of the gate. What comes from a sandbox meets one of them before it costs anybody else something.

use std::time::Duration;

/// Connections at once, of all sandboxes; fewer where the process may open fewer files (two a connection).
pub const MAX_CONNECTIONS: usize = 8_192;
/// Files that are no connections: listeners, the pipe, control.
pub const OTHER_FILES: usize = 256;
/// Connections at once of one sandbox.
pub const MAX_CONNECTIONS_PER_SANDBOX: usize = 1_024;
/// Above this share of [`MAX_CONNECTIONS`] (in quarters) a sandbox gets no more than [`CROWDED_CONNECTIONS`], so that a few cannot keep out the rest.
pub const CROWDED_QUARTERS: usize = 3;
pub const CROWDED_CONNECTIONS: usize = 128;
/// Connections that one sandbox may begin at once, and then in a second.
pub const CONNECTION_BURST: u32 = 2_048;
pub const CONNECTIONS_A_SECOND: u32 = 512;
/// Connections of one sandbox that have not said yet where they go: what it may have buffered is this times [`MAX_PEEK`].
pub const MAX_UNDECIDED_PER_SANDBOX: usize = 256;

/// Bytes that are read of a connection before it is decided on: a client hello with its records, or an HTTP head. A hello with post-quantum keys has
/// below 4 KiB; web servers take heads of 8 to 64 KiB.
pub const MAX_PEEK: usize = 32 << 10;
/// Header fields of an HTTP head.
pub const MAX_FIELDS: usize = 256;
/// Names that one connection may ask for, one after the other.
pub const MAX_NAMES_PER_CONNECTION: usize = 8;

/// From the accept until the first bytes are whole.
pub const FIRST_BYTES_TIME: Duration = Duration::from_secs(10);
/// From the first byte of a later HTTP head (or second client hello) until it is whole.
pub const HEAD_TIME: Duration = Duration::from_secs(10);
/// For the upstream to take the connection.
pub const CONNECT_TIME: Duration = Duration::from_secs(15);

/// Bytes of one splice; and where half of what may be held of a sandbox is held, so that many slow readers have room each.
pub const SPLICE_BYTES: usize = 64 << 10;
pub const SHORT_SPLICE_BYTES: usize = 4 << 10;
/// What the pipe is told to hold: a place for each page of that is a place for each piece of a splice, which may be as short as one packet.
pub const PIPE_BYTES: usize = 1 << 20;
/// Splices of one connection in one direction before the others have their turn.
pub const SPLICES_A_TURN: usize = 8;
/// Bytes that were read and that the other end does not take yet: of one sandbox, and of all. Kernel buffers come on top, within the kernel's own bounds.
pub const MAX_HELD_PER_SANDBOX: usize = 16 << 20;
pub const MAX_HELD: usize = 128 << 20;
/// Connections taken from a listener before others have their turn.
pub const ACCEPTS_A_TURN: usize = 32;

/// TCP keep-alive, both ends: a peer that is gone is noticed within five minutes.
pub const KEEPALIVE_IDLE: Duration = Duration::from_secs(120);
pub const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(30);
pub const KEEPALIVE_PROBES: u32 = 6;

/// The packet filter judges a pin's expiry at the first packet, the gate a little later and by another clock.
pub const PIN_GRACE: Duration = Duration::from_secs(2);
pub const MAX_SANDBOXES: usize = 4_096;
pub const MAX_NAMES: usize = 8_192;
pub const MAX_PORT_RANGES: usize = 16;
/// Pins of one sandbox: pairs of name and address.
pub const MAX_PINS: usize = 4_096;
/// The longest that a pin may hold.
pub const MAX_PIN_TIME: Duration = Duration::from_secs(7 * 24 * 3_600);

/// Events of one sandbox at once, and then in a second; more are counted and told with the next.
pub const EVENT_BURST: u32 = 32;
pub const EVENTS_A_SECOND: u32 = 8;
/// Events that wait for one who does not read; older ones are counted and dropped.
pub const MAX_PENDING_EVENTS: usize = 4_096;
pub const MAX_CONTROL_CONNECTIONS: usize = 16;
