//! Files: in-process, with the rights of the user who is asked for. What may take long is cut into turns, or done by a worker
//! ([`crate::worker`]).

pub mod access;
pub mod change;
pub mod entry;
pub mod list;
pub mod open;
pub mod read;
pub mod remove;
pub mod target;
pub mod write;
