//! The parts of tar: 512-byte headers and pax records. Who walks what, and what becomes of it, is elsewhere.

pub mod header;
pub mod pax;
