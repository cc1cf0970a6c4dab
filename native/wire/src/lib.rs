//! Both ends of the wire protocol of `docs/wire.md`, without any I/O: bytes that came in are given to [`server::Server::receive`] or
//! [`client::Client::receive`], and bytes to be written are taken from their `output`. No thread, no runtime, no clock.
//!
//! ```
//! use wire::{client::{self, Client}, server::{Event, Limits, Server}};
//!
//! let mut server = Server::new("aether", Limits::default());
//! let mut client = Client::new("edge");
//! let stream = client.open("info", &serde_json::json!({})).unwrap();
//! server.receive(client.output()).unwrap();
//! let Some(Event::Open { stream: opened, method, .. }) = server.next_event() else { panic!() };
//! assert_eq!((opened, method.as_str()), (stream, "info"));
//! server.close_ok(opened, &serde_json::json!({"version": "1"}));
//! client.receive(server.output()).unwrap();
//! assert!(matches!(client.next_event(), Some(client::Event::Closed { result: Ok(_), .. })));
//! ```

pub mod client;
mod core;
pub mod error;
mod event;
pub mod frame;
pub mod json;
mod output;
pub mod server;
mod stream;

pub use crate::error::ProtocolError;
pub use crate::event::SendError;

/// Payload bytes of DATA, MESSAGE and every other frame but OPEN and CLOSE.
pub const MAX_DATA: usize = 65_536;
/// Payload bytes of OPEN and CLOSE.
pub const MAX_CONTROL: usize = 4 << 20;
/// Nesting of arrays and objects in any JSON payload.
pub const MAX_JSON_DEPTH: usize = 32;
/// Credit that both sides of a stream start with.
pub const INITIAL_WINDOW: u32 = 262_144;
/// Greatest credit that grants may add up to.
pub const MAX_WINDOW: u32 = 16 << 20;
/// What a DATA or MESSAGE frame costs at least, so that credit also bounds the number of frames that wait.
pub const MIN_COST: u32 = 64;
/// Streams that may be live on one connection, unless the server says less.
pub const MAX_STREAMS: usize = 1_024;
/// The protocol name in HELLO.
pub const PROTOCOL: &str = "dsec-wire";
/// The protocol version in HELLO.
pub const VERSION: u64 = 1;
